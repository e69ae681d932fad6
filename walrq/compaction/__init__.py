"""Compaction: the log's room is given back, also where something in it is alive.

    bound        how much disk a node may use: one function, for whoever keeps it and whoever checks it
    liveness     which addresses are alive in the newest durable snapshot, page by page
    thinning     the body of an entry without what is dead in it, and bodies read back from either form
    planning     which segments are worth writing anew
    compaction   a pass over the log, in small steps

How to drive it:

    compaction = Compaction(storage, through=lambda: ...)   entries up to there are needed by nobody else
    while compaction.step(): ...                            blocking, some milliseconds; any thread, one at a time
    compaction.usage()                                      what is used, and the bound

A pass is due after every snapshot. What is dead is taken from the snapshot, never from the state in memory: that is one
state of one moment, and durable.

Blocking. Knows pages and entries, neither consensus nor time: whoever drives it says when the hot path comes first.
"""
