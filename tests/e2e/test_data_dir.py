"""Data directories in bad shape: in use, read-only, not a directory, full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from chaos.stops import Line
from tests.e2e.conftest import Starter
from tests.e2e.talk import ack, empty, push, take
from tests.requirements import require
from walrq import api
from walrq.errors import ERRORS, Code
from walrq.testing.node import Node

MIB = 1024 * 1024
SMALL_DISK_BYTES = 48 * MIB


def ends(data_dir: Path, log: Path, *flags: str) -> tuple[int, str]:
    """Exit status and last words of a node that cannot start here."""
    node = Node(data_dir, flags=flags, log=log)
    with node:
        node.launch()
        status = node.wait(60)
    return status, node.last_words()


def one_clear_line(words: str, code: Code) -> None:
    """No traceback, and the error's name in the last line."""
    assert "Traceback" not in words
    last = words.splitlines()[-1]
    assert code.name in last or ERRORS[code].error.__name__ in last, words


def test_a_second_daemon_on_the_same_directory_is_refused(start_node: Starter, tmp_path: Path) -> None:
    """Two writers would destroy the log; the first one must not even notice."""
    node = start_node()
    status, words = ends(node.data_dir, tmp_path / "log")

    assert ERRORS[Code.DATA_DIR_LOCKED].exit == status
    one_clear_line(words, Code.DATA_DIR_LOCKED)
    line = Line(node.address)
    assert isinstance(push(line, "jobs", [b"still here"]), api.Pushed)
    line.close()


def test_a_directory_is_free_again_after_kill_9(start_node: Starter) -> None:
    """A lock that outlives its owner would need a person."""
    node = start_node()
    node.kill()
    node.start()

    assert node.running


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """One line that names the path."""
    path = tmp_path / "data"
    path.write_text("not a directory")
    status, words = ends(path, tmp_path / "log")

    assert ERRORS[Code.DATA_DIR_INVALID].exit == status
    one_clear_line(words, Code.DATA_DIR_INVALID)
    assert "not a directory" == path.read_text()


@contextlib.contextmanager
def small_disk(point: Path, size: int, *options: str) -> Iterator[Path]:
    """A file system of its own, in memory."""
    require("root", "linux")
    point.mkdir()
    chosen = ",".join([f"size={size}", *options])
    subprocess.run(["mount", "-t", "tmpfs", "-o", chosen, "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    """Whoever mounted it so gets told so, in one line."""
    with small_disk(tmp_path / "disk", MIB, "ro") as disk:
        status, words = ends(disk / "data", tmp_path / "log")

    assert status in (ERRORS[Code.DATA_DIR_INVALID].exit, ERRORS[Code.STORAGE_FAILED].exit)
    one_clear_line(words, Code.DATA_DIR_INVALID)


def test_a_disk_too_small_for_the_log_is_refused(tmp_path: Path) -> None:
    """Without room for its first segments a node could not even settle."""
    with small_disk(tmp_path / "disk", MIB) as disk:
        status, words = ends(disk / "data", tmp_path / "log", "--max-wal-segment-size", "1MiB")

    assert 0 != status
    one_clear_line(words, Code.DISK_FULL)


def test_a_full_disk_refuses_pushes_and_serves_the_rest(tmp_path: Path, start_node: Starter) -> None:
    """Work that is there can be finished; new work waits for space, and comes in again by itself."""
    with small_disk(tmp_path / "disk", SMALL_DISK_BYTES) as disk:
        node = start_node("--max-wal-segment-size", "1MiB", data_dir=disk / "data")
        line = Line(node.address)
        pushed: list[bytes] = []
        push(line, "jobs", [b"first"])
        pushed.append(b"first")
        ballast = disk / "ballast"
        fill(ballast)
        refused = None
        for number in range(10_000):
            payload = b"%06d" % number + os.urandom(20_000)
            reply = push(line, "jobs", [payload])
            if isinstance(reply, api.Failed):
                refused = reply
                break
            pushed.append(payload)
        assert refused is not None
        assert Code.DISK_FULL == refused.code, refused
        runs = take(line, "jobs", most=5)
        assert 5 == sum(run.count for run in runs)
        assert {0} == set(ack(line, runs))
        ballast.unlink()
        while isinstance(reply := push(line, "jobs", [b"again"]), api.Failed):
            assert Code.DISK_FULL == reply.code
        pushed.append(b"again")
        left = empty(line, "jobs")
        line.close()
        assert pushed[5:] == left
        assert 0 == node.stop()


def test_a_full_disk_loses_nothing_over_a_kill(tmp_path: Path, start_node: Starter) -> None:
    """Recovery has to work without space too."""
    with small_disk(tmp_path / "disk", SMALL_DISK_BYTES) as disk:
        node = start_node("--max-wal-segment-size", "1MiB", data_dir=disk / "data")
        line = Line(node.address)
        pushed = [os.urandom(1_000) for _ in range(20)]
        push(line, "jobs", pushed)
        line.close()
        fill(disk / "ballast")
        node.kill()
        node.start()
        line = Line(node.address)

        assert pushed == empty(line, "jobs")
        line.close()


def fill(path: Path) -> None:
    """Take every block that is left."""
    block = bytes(64 * 1024)
    with path.open("wb", buffering=0) as file:
        for size in (len(block), 4096):
            with contextlib.suppress(OSError):
                while file.write(block[:size]):
                    pass


def test_a_port_in_use_is_refused(start_node: Starter, tmp_path: Path) -> None:
    """Two nodes at one address would answer each other's clients."""
    node = start_node()
    other = Node(tmp_path / "other", listen=node.ready["endpoints"]["cbor"], log=tmp_path / "other.log")
    with other:
        other.launch()
        status = other.wait(60)

    assert ERRORS[Code.ADDRESS_IN_USE].exit == status
    one_clear_line(other.last_words(), Code.ADDRESS_IN_USE)
