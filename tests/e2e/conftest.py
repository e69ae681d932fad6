"""Real daemons for end-to-end tests: each test gets a starter, and every child is killed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from walrq.testing.node import Node

Starter = Callable[..., Node]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Starter]:
    """`start_node(*flags, data_dir=..., listen=..., prefix=...)`: a node that is ready."""
    nodes: list[Node] = []

    def start(
        *flags: str, data_dir: Path | None = None, listen: str = "127.0.0.1:0", prefix: tuple[str, ...] = ()
    ) -> Node:
        log = tmp_path / f"node{len(nodes)}.log"
        node = Node(data_dir or tmp_path / f"data{len(nodes)}", flags=flags, listen=listen, prefix=prefix, log=log)
        nodes.append(node)
        return node.start()

    yield start
    for node in nodes:
        node.kill()
