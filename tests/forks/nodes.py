"""Nodes of tests: forked like other commands, and with small segments.

A node preallocates its segments, of which most tests fill a few kilobytes. A test that measures a node, or whose point
is how one starts, takes walrq.testing.node's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import IO, Any, Final

from tests.forks.processes import Walrq
from walrq.testing import node

SEGMENT: Final = {"WALRQ_MAX_WAL_SEGMENT_SIZE": "4MiB"}


class Node(node.Node):
    """As walrq.testing.node.Node; one with a `prefix` is a real interpreter."""

    def __init__(self, *given: Any, environment: Mapping[str, str] | None = None, **keywords: Any) -> None:
        super().__init__(*given, environment=SEGMENT | dict(environment or {}), **keywords)

    def start(self, seconds: float = node.READY_S_MAX) -> Node:
        """As the other's."""
        super().start(seconds)
        return self

    def _begin(self, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        if self._prefix:
            return super()._begin(environment, log)
        _, module, walrq, *arguments = self.command
        assert ["-m", "walrq"] == [module, walrq]
        return Walrq(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=dict(environment))
