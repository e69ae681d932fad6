"""Fakes and oracles, for walrq's own tests and for those of its users. Nothing else in walrq imports it.

Modules:
    disk        SimDisk: loses, tears and reorders what was not synced; fails, fills up
    model       the oracle of the queue state machine
    cluster     the simulator: real replicas, one event heap, one seed; `python -m walrq.testing.cluster --seed N`
    processes   its clients; what they were told
    promises    the promises by name, checked on a machine and on a log
"""
