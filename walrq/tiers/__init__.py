"""What is not in memory, read back: blocking, off the loop.

Knows neither roles nor verbs. What it reads are image pages, from memory or from the newest snapshot (`storage`); what
it gives are the rows in them. Who asks turns them into commands (`replica`).
"""
