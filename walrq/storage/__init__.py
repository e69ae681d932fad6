"""Storage of one node: what must survive a power loss, and nothing that decides anything.

How to drive it:

    storage = Storage.open(RealDisk(), StorageConfig(data_dir="walrq-data"))
    storage.recovered            hard state, snapshot, report; then recovered.entries(snapshot index + 1)
    storage.append_batch(...)    durable per policy when it returns
    storage.read(index)          one record by its address
    storage.begin_snapshot(...)  put / drop / finish, in a thread of its own
    storage.reclaim(...)         after a snapshot: segments without live records go back to the pool
    storage.pin(), .stream(...)  what another node needs that is far behind, as bytes to be read from any offset
    storage.begin_install(...)   the other end: feed / finish; the log and the snapshot are then the other node's
    storage.close(clean=True)

A member of a cluster looks at `needs_repair` first: `drop_untrusted` before anything is read, `repaired` when the
others have given back what was lost. A node that is alone says `repaired` at once.

Threads: one thread at a time appends, syncs, settles, cuts, writes hard state. Beside it any thread may read,
one may write a snapshot, one may receive one (beside its `finish` nothing else is written), and `reclaim`,
`replenish` and `stats` may be called. Everything blocks, for milliseconds.

What the caller owes: indexes without gaps; after any StorageError from a write the process ends, because what
the disk holds is then unknown; after DiskFull nothing was written and it may go on. `settle` once the log is
idle, `sync` each interval under `interval:MS`, `replenish` now and then while `space.pushes_allowed` is
False.

The bytes on disk are described in docs/storage-format.md.
"""
