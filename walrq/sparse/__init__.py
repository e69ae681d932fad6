"""Sparse segments, and who writes them: an install, a repair, a rewrite.

A sparse segment holds the records of a span of indexes that are alive, and says that nothing is missing between them.
It is written whole beside the log and takes its place by a rename.

    outgoing     a snapshot and its live records as bytes for another node
    installing   the other end: both take the place of what was there
    restoring    single records that another node still has, in the places of lost ones
    rewriting    neighbouring segments as one, without what is dead in them

Blocking, below `Storage`, which makes them all. Knows neither roles nor verbs.
"""
