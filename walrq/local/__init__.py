"""Nodes as processes of this machine: several of them started by one command, and the word to a service manager.

    layout      a base directory: which nodes it holds, where each listens, the secret they share
    launcher    starts `walrq serve` for each of them, says when one ended, ends all of them
    notify      READY=1 and STOPPING=1 to systemd, or to whoever set NOTIFY_SOCKET
    tracing     what consensus did, as a file that the specification judges

`walrq cluster start` is `layout.prepare` and `launcher.run`. A node knows nothing of the launcher: each can be
stopped, and started again by hand with `walrq serve --data-dir BASE/n1`.

Never: sees a message, a lease or the log; restarts a node; ends a process that it did not start.
"""
