"""Many connections with single messages: what a fleet of plain workers asks of a node."""

from __future__ import annotations

import argparse
from typing import Any

from . import throughput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench: those of `throughput`, with other defaults."""
    throughput.add_arguments(parser)
    parser.set_defaults(batch=1, producers=8, consumers=8, window=16)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    return throughput.run(arguments)
