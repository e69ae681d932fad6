"""What a node does by itself, beside answering requests: one file per task of the core's nursery.

    reaper      an entry when something falls due and nobody else writes
    fetcher     messages from beyond the horizon, before they are due
    compactor   snapshots, reclaim and rewriting
    memory      a bound for what the process uses

Each sleeps until there is something to do (`alarm.py`), and ends with the core.
"""
