"""`python -m chaos`, or `walrq-chaos` once installed.

Exit status: 0 all promises kept, 1 a promise broken, 2 wrong usage, 3 not everything could be judged.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from walrq.testing.node import NodeFailed

from . import checker, history

# Each subcommand is a module with `add_arguments(parser)` and `run(arguments) -> int`, imported when it is
# named.
COMMANDS = {
    "soak": "run daemons and clients under faults, then check the history",
    "cluster": "kill the leader of several nodes again and again under load, then check the history",
    "stops": "SIGTERM and SIGINT under load, many times",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named subcommand and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m chaos" if __package__ == "chaos" else "walrq-chaos",
        description="Run walrq under faults and judge what its clients saw.",
        epilog="Example: python -m chaos soak --nodes 1 --duration 60 --seed 7",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help="judge a history file", epilog="Example: python -m chaos check history.ndjson --json"
    )
    check.add_argument("history", type=Path)
    check.add_argument("--json", action="store_true", help="end with one JSON object instead of a table")
    check.set_defaults(run=run_check)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if arguments[:1] == [name]:
            module = importlib.import_module(f".{name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
    except NodeFailed as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    return status


def run_check(arguments: argparse.Namespace) -> int:
    """Judge one file."""
    try:
        verdict = checker.check(history.read(arguments.history))
    except OSError as error:
        print(f"chaos: cannot read {arguments.history}: {error.strerror}", file=sys.stderr)
        return 2
    except history.HistoryError as error:
        print(f"chaos: {arguments.history}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(verdict.as_dict()) if arguments.json else checker.report(verdict))
    return 0 if verdict.valid else 1 if verdict.violations else 3


if __name__ == "__main__":
    sys.exit(main())
