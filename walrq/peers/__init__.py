"""The links between nodes of a cluster (Trio): Raft's messages out and in, by name, over sockets that come and go.

How to drive it::

    mesh = Mesh(node_id=..., ..., deliver=driver.deliver, fill=replica.fill, link_up=..., link_lost=...)
    address = await nursery.start(mesh.run)       # listening: "host:port", "" without a socket
    mesh.send(replica.take_messages(reading))     # at once, never blocks; what cannot be sent is dropped and counted
    mesh.members_changed()                        # whenever the configuration may differ

Each node dials its own links: what A says to B travels on connections that A opened. There are two of them per peer,
*control* (votes, heartbeats, replies) and *bulk* (appends and snapshots), so that a heartbeat never waits behind a
megabyte. On each of them order is kept; all appends to one follower use the same one, because their order matters.

Messages may be lost: a connection breaks, a peer is away, a queue is full. Raft repeats. Whatever was lost of bulk is
told by `link_lost`, which spares Raft the time to notice.

Never here: a decision about who leads, who is a member, or what is durable.

Files: mesh (all of them together), outgoing (links that this node opened), lane (what waits on one of them), incoming
(connections of others), joining (a node without a cluster asks for one), wire (sockets, TLS), tls (certificates),
reports (figures and log lines). The bytes are walrq/protocol/peer.py's.
"""
