"""Chaos: run walrq under faults, record what every client saw, and judge the record.

Parts, each usable alone:

- `history`: the record. One JSON line per invocation and per completion, and one per fault.
- `checker` with `world` and `invariants`: reads a history once, in order, and says which promises it breaks.
- `soak`: real daemons, real clients, kill -9; writes a history and hands it to the checker.
- `cluster`: the same for several nodes whose leader is killed and whose links are cut.

A failing run prints its seed; the same seed gives the same schedule of faults and the same data.

The folder is `chaos` in a checkout (`python -m chaos`) and `walrq._chaos` once installed (`walrq-chaos`), so
it imports itself relatively.
"""
