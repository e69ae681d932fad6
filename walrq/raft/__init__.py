"""Consensus: pure, sans-IO. One voter now, behind the interface that peers will use.

Drive it:

    raft = Raft(node_id, voters, HardState(term, vote), Tail(last_index, last_term))
    raft.campaign()                      a new term, a vote for oneself
    ready = raft.take_ready()            what must be written, in order: hard state, then entries
    ... write and sync ...
    raft.persisted(ready)                votes and appends count only from here on
    raft.append(kind)                    leader only: position of the new entry; its body stays with the caller
    raft.commit_index                    entries up to here may be applied

What the caller owes: nothing that a Ready names is acted on before it is durable; readies are persisted in the order
they were taken. What it never does: read a clock, touch a socket or a file, keep an entry's body.

Source: Diego Ongaro, "Consensus: Bridging Theory and Practice", chapters 3 and 10.2.1.
"""
