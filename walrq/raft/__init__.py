"""Consensus: pure, sans-IO, deterministic. docs/consensus.md is the chapter.

Drive it:

    raft = Raft(node_id, voters, HardState(term, vote), Tail(...), cluster=..., draw=random.Random(seed).randrange)
    raft.tick()                            time passed
    first = raft.receive(message)          a peer's message; bodies of its entries from `first` on are yours to keep
    raft.append(kind)                      leader only: position of the new entry; its body stays with you
    messages = raft.take_messages()        may leave at once, also while a ready is being written
    ready = raft.take_ready()              what must be written, top to bottom: hard state, cut, entries
    ... write and sync ...
    raft.persisted(ready)                  now it counts, and the messages that waited for it come out
    raft.commit_index                      entries up to here may be applied

Beside that: `read` and `take_reads`, `add_learner`, `promote` and `remove`, `transfer`, `snapshot_taken`,
`wanted_chunks` and `supply` at a leader, `take_chunks`, `chunk_stored`, `installed` at a follower, `begin_repair`,
`link_lost`.

A node that is alone does not need `tick`, `receive` and `take_messages`: `campaign()`, two readies, and it leads.

What the caller owes:

- Readies are persisted in the order they were taken, each wholly, before `persisted` says so. One that cannot be
  written ends the process (a node that is alone may `withdraw` it).
- An `Append` out of `take_messages` is filled with its entries before anything else is done with the core.
- Bodies: of appended entries until they are written, then from storage. `cut_from` voids those behind it.
- An entry of kind CONFIGURATION is stored with the body that the call which made it returned; at the next start the
  configurations of the newest snapshot and of all entries behind it are handed in.
- Membership is by (node id, disk uuid): a node whose disk was lost comes back under another name, as a learner.

What it never does: read a clock, draw a number of its own, touch a socket or a file, keep an entry's body, send
what is not durable yet.

Sources: Diego Ongaro, "Consensus: Bridging Theory and Practice" (2014), by chapter in each module; etcd-io/raft for the
three states of a follower and for keeping apart what waits for the disk.
"""
