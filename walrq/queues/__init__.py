"""The state machine of queues: pure, deterministic, sans-IO.

Drive it: `Machine.apply(index, stamp, commands)` with rising indexes and stamps that never go back; one result per
command. Results name bodies by address (log index, ordinal); the caller reads them from the log. `take_effects()`
tells which queues are worth another lease attempt.

What the caller owes: requests checked at the edge (`protocol/`), the same entries in the same order on every replica,
the same `Bounds` everywhere. What it never does: read a clock, a file or a random number, or keep a payload.

Reading order: commands (what the log says), batch (the nouns), queue (the places and moves), machine (the verbs),
then leases, pushes, death, pending, sessions; reads and image look from outside.
"""
