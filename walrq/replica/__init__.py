"""One replica: consensus, queues and storage composed. The daemon and the simulator make the same calls.

    ticket = replica.propose(command)            any time, while it accepts
    batch  = replica.take_batch(reading)         pure: ONE stamped entry of all that gathered, and what peers sent
    replica.persist(batch)                       blocking, storage only; one at a time; a thread may run it
    done   = replica.complete(batch)             pure: what is durable now counts, what committed is applied
    done   = replica.advance()                   pure, any time, also while a persist runs

With peers, in between, at any time:

    replica.receive(message, reading)            a peer said something
    replica.tick(reading)                        every TICK_MS
    messages = replica.take_messages(reading)    after each of all these calls: send them. An append that is not filled
    replica.fill(append)                         is filled by a thread, blocking; per receiver the order is kept
    job = replica.background()                   blocking work: `job.run()` in a thread, at most one at a time, beside
    done = replica.background_done(job)          persists; then this, pure

A leader whose queues have more than the hot window holds, besides, after `complete` and `advance`:

    job = replica.read_ahead()                   what comes next of them: `job.run()` in a thread, at any time, beside
    replica.read_ahead_done(job)                 everything else; then this, pure, which proposes

After `receive`, `tick`, `link_up`, `link_lost`, a change of the group and `read`: `advance`, `take_messages`, and
`take_batch` if `has_work`.

Group commit needs no component: a batch is what was proposed while the last one was being persisted. Entries, once
applied, are gone from memory, apart from the newest ones kept for followers; bodies stay in a bounded cache and in
the log.

Blocking: `open`, `persist`, `fill`, `Job.run`, `load_body`, `SnapshotJob.write`, `SnapshotJob.finish`, `reclaim`,
`close`. Everything else is called from one thread.
"""

from walrq.replica.ahead import ColdSearch, ReadAhead, Sweep
from walrq.replica.batch import Batch, Done
from walrq.replica.config import ReplicaConfig
from walrq.replica.images import SnapshotJob
from walrq.replica.jobs import Job
from walrq.replica.replica import Replica

__all__ = ["Batch", "ColdSearch", "Done", "Job", "ReadAhead", "Replica", "ReplicaConfig", "SnapshotJob", "Sweep"]
