"""Backups: one file that holds a node as it was at one log index, and a data directory made from it again.

    export.py     a pinned snapshot as numbered parts that can be read in any order
    archive.py    the file: a tar of these parts between a manifest and their checksums
    restoring.py  from the file to a data directory; or to the verdict that the file is intact

    node ── export ── parts ──(protocol, or directly)──► archive.Writer ──► FILE ──► restoring ──► data directory

Blocking, plain functions. Never decides when a backup may be taken, never talks to anybody, never changes the
directory that is backed up. The format is docs/storage-format.md, "A backup file"; what a restored node promises is
docs/guarantees.md.
"""
