"""The command line. Thin: reads arguments, calls the client, the daemon or the storage inspector, prints.

    app         the tree of commands, imported one by one; what a mistake looks like (one line, a stable exit
                status); completion
    arguments   options that commands share, and how their texts are read
    interrupts  Ctrl-C, and where it may end the work
    output      JSON lines, plain lines, tables; says that the server is away, and that it is back
    messages    push poll ack nack touch peek tail cancel reschedule move
    feed        push --lines: a file or a pipe as a stream of batches
    queues      queue list|show|create|set|pause|resume|purge|delete, stats, top
    dlq         dlq list|show|replay|purge
    node        serve, dev
    cluster     cluster start|status|add|remove|transfer
    config      config show|path|check: settings, and where each comes from
    contexts    context add|use|list|show|remove: names for servers, and which one a command speaks to
    doctor      doctor
    wal         wal inspect|verify
    backup      backup, restore
    worker      worker
    spec        spec list|check|simulate: the model checker

Exit statuses are those of `errors.ERRORS`; 2 is a mistake in the arguments, 130 an interrupt. Every command's
help ends with an example that a test runs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `walrq` and `python -m walrq`; ends the process."""
    # Before anything that an older Python could not even read.
    if sys.version_info < (3, 11):  # noqa: UP036
        have = "%d.%d" % sys.version_info[:2]  # noqa: UP031
        sys.exit("walrq: Python 3.11 or newer is needed, this is Python " + have)
    try:
        from walrq.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        # Pressed while modules are imported: no traceback either.
        sys.exit(130)
