"""What waits beyond the horizon: messages due later than the hot window looks, at no cost of memory per message.

    put ──► tail (bounded, part of the state) ──seal──► pages, sorted by time, immutable ──take──► back to the queues

A *row* is one stretch of messages: its time, its ids, the address of its bodies. Rows gather in the tail; a full tail
is sorted by time and sealed into pages. Of a page the state keeps only its number, its bounds, its hash and which rows
of it are gone; its bytes are an image page, which lies in memory until a durable snapshot holds it, and on disk only
after that. So pages are as durable, as well checked and as well travelled as snapshots are.

Rows leave in order of their keys (time, id). The *frontier* is the key below which all have left: a slice is taken
from every page that begins below the new frontier, and nothing is ever put below it.

Pure. Drive it: `Far.put`, `seal_if_full` at the end of each entry, `take` with the rows that somebody read from pages.
What the caller owes: the same calls in the same order on every replica. What it never does: look at a clock or a file,
know what a queue does with a row.

Source: sorted runs with fences, as log-structured merge trees have them, without merging: time does it.
"""
