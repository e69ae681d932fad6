"""Fakes, oracles and a node in the test's process, for walrq's own tests and for those of its users. Nothing else in
walrq imports it.

For users (docs/testing.md):
    plugin      the pytest plugin: fixtures
    server      Server: a whole node in a background thread
    clock       MovableClock: what it, its clients and workers take for time
    faults      Faults: what can be done to a server
    running     Runner: runs a worker until its queues are empty
    report      what a failing test shows

Below them:
    faulty_disk a SimDisk for several threads, full, slow or dead on demand
    wire        the network between the server and its clients

For walrq itself:
    node, nodes a real daemon as a child process; several of them that make one cluster
    links       the network between such nodes: a proxy per node, a gate per direction
    disk        SimDisk: loses, tears and reorders what was not synced; fails, fills up
    model       the oracle of the queue state machine
    cluster     the command line of `walrq.simulator`: `python -m walrq.testing.cluster --seed N`
"""
