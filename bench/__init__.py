"""Benchmarks: what walrq does per second, how long one request takes, what a backlog costs.

`python -m bench NAME` in a checkout, `walrq-bench NAME` once installed. Every bench starts its own daemon on
a free port over a temporary data directory, generates its load in another process than the daemon's, prints
a table and, with `--json`, ends with one JSON object. docs/benchmarks.md has the commands, the machine and
the figures.

An *op* is one message through one of push, lease or ack; a message that goes all the way is three ops.
"""
