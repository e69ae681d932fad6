"""The daemon of one node: drives the replica, serves the doors, talks to peers.

How to run one::

    from walrq.daemon.config import Config
    from walrq.daemon.supervisor import serve
    status = serve(Config.load({"data_dir": "walrq-data"}, os.environ, None))

`serve` blocks until a signal ends it and returns the exit status (its table is in `supervisor.py`). When the
node is ready it prints one JSON line on standard output, and nothing else there; logs go to standard error.

The nursery tree; each line is a file::

    supervisor      start, shutdown, exit statuses
    ├ driver          take_batch -> persist -> complete -> replies
    ├ peers           the links to other nodes, and Raft's ticks, while there are any
    ├ members         who is in the cluster: status, add, remove, hand over
    ├ reaper          an empty entry when something falls due
    ├ compactor       snapshots, reclaim, the reserve of a full disk
    ├ backup          a backup that is being read
    ├ pollers         deadlines of parked polls
    ├ bodies          replies that need the disk
    └ connections
      ├ reactor         plain TCP, one task for all
      ├ stream_front    any Trio stream, a task each
      └ accepting
        └ listener        sockets, the cap, running out of descriptors

Beside it: `broker` (admission, matching results with who asked, parked polls), `connection` (one client,
whichever front carries it), `config`, `clock` (the only place of time).

Rules that hold everywhere here: the replica, broker and connections are touched by the event loop's thread
only, in plain functions between two awaits; a thread runs `replica.persist`, `fill`, background jobs, `load_body`,
snapshots and nothing else; no task, event or cancel scope is made per request.
"""
