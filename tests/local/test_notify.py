"""The word to a service manager."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from tests.requirements import require
from walrq.local import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_reads_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    """systemd hands out a path or an abstract name; both must reach it."""
    name = f"@walrq-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    if abstract:
        require("linux")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)

        assert notify.tell(notify.READY)
        assert notify.tell(notify.STOPPING)
        assert [b"READY=1", b"STOPPING=1"] == [manager.recv(100), manager.recv(100)]


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most nodes are started by hand."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify.tell(notify.READY)


def test_a_manager_that_is_gone_ends_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node is worth more than the word about it; the log says that it was not heard."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    with caplog.at_level(logging.WARNING, "walrq.notify"):
        assert not notify.tell(notify.READY)
    assert "notify_failed" in caplog.text


def test_a_manager_that_does_not_read_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full socket is an answer too: the start goes on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        told = [notify.tell(notify.READY) for _ in range(5_000)]

    assert told[0]
    assert not told[-1]
