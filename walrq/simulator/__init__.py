"""The simulator: real replicas on simulated disks and links, one event heap, one integer that decides everything.

    cluster     the world of one seed, and its run: load, calm, drain, converge
    node        a process, which drives a replica exactly as the daemon does
    hardware    its machine: a disk and two clocks, and what is done to them
    clock       the clocks
    network     links that lose, delay, double, reorder, and are cut one way or both
    nemesis     the plan of faults; `damage` is its hand for files
    processes   clients; what they were told
    history     what was decided, on a shadow machine that never restarts
    consensus   the promises of consensus, checked after every event
    promises    the promises of queues by name, checked on a machine and on the log
    options     what a seed does not decide; marks and shares that a batch of seeds owes

`python -m walrq.testing.cluster` is its command line. There is no Trio, no thread and no real time here: the `Replica`
is driven through exactly the seam that the daemon uses. A persist takes simulated time, in which others propose,
messages come and `advance` is called. Power is lost between any two operations of a disk, and what was not synced is
lost, torn or garbage; files are damaged, disks wiped; processes are killed and paused; writes and syncs fail; disks
fill up, slow down and stand still; clocks drift and jump; links fail in every way; the group changes; replies get
lost and requests arrive twice, or at the wrong node.

In the end a majority is healed while the others stay as bad as they were: it must elect, and everything is drained
and compared with what the processes were told. Then all are healed and must come to the same state, byte by byte.
"""
