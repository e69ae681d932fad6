"""The record's format: what is written is read, and a broken record is told from a broken promise."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.__main__ import main
from chaos.history import Actor, HistoryError, Writer, pack, parse, read, unpack
from tests.chaos.story import Story


@given(st.lists(st.integers(min_value=0, max_value=50)))
def test_packed_values_unpack_to_themselves(values: list[int]) -> None:
    """Ranges are only a shorter way to write the same list, in its order."""
    assert values == unpack(json.loads(json.dumps(pack(values))))


@pytest.mark.parametrize("bad", [["a"], [[3, 1]], [[1]], [None], [[1, 2, 3]]])
def test_what_is_no_packed_list_is_refused(bad: list[object]) -> None:
    """A typo in a history must not become an empty list."""
    with pytest.raises(HistoryError):
        unpack(bad)


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Writer and reader agree on every field."""
    path = tmp_path / "history.ndjson"
    with path.open("wb") as file:
        writer = Writer(file, monotonic_ns=lambda: 5, wall_ns=lambda: 9)
        writer.invoke("p", "push", {"queue": "jobs", "values": [1]})
        writer.complete("p", "ok", {"first": "1"})
        writer.nemesis("kill", {"node": 1})
    events = list(read(path))

    assert ["invoke", "ok", "nemesis"] == [event.type for event in events]
    assert [{"queue": "jobs", "values": [1]}, {"first": "1"}, {"node": 1}] == [e.body for e in events]
    assert {(5, 9)} == {(event.time, event.wall) for event in events}


def test_a_torn_last_line_is_left_out() -> None:
    """The recorder may have been killed too; everything before is still worth checking."""
    story = Story()
    story.push([1])
    lines = story.lines()
    lines[-1] = lines[-1][:20]

    assert 1 == len(list(parse(lines)))


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b"[1]\n", b'{"type":"ok","time":1}\n'])
def test_a_line_that_is_no_event_is_named(line: bytes) -> None:
    """The file is wrong, not the queue."""
    with pytest.raises(HistoryError, match="line 1"):
        list(parse([line]))


def test_time_that_goes_back_is_refused() -> None:
    """Parts of a history recorded by several processes must be merged first."""
    file = io.BytesIO()
    times = iter((5, 4))
    writer = Writer(file, monotonic_ns=lambda: next(times), wall_ns=lambda: 0)
    writer.nemesis("kill", {})
    writer.nemesis("restart", {})

    with pytest.raises(HistoryError, match="time goes back"):
        list(parse(file.getvalue().splitlines(keepends=True)))


def test_an_actor_goes_on_under_a_new_name_after_an_unknown_outcome() -> None:
    """A process ends with an unknown outcome, because its operation may still be running."""
    writer = Writer(io.BytesIO())
    actor = Actor(writer, "w1")
    before = actor.process
    actor.invoke("show", {"queue": "jobs"})
    actor.complete("info", {})
    actor.invoke("show", {"queue": "jobs"})

    assert before != actor.process


def test_check_exits_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shells and continuous integration read the status, people the table."""
    story = Story()
    story.push([1])
    path = tmp_path / "history.ndjson"
    path.write_bytes(b"".join(story.lines()))
    unknown = main(["check", str(path)])
    story.drained()
    path.write_bytes(b"".join(story.lines()))
    lost = main(["check", str(path), "--json"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    story = Story()
    story.push([1])
    story.settle(story.poll([1]))
    story.drained()
    path.write_bytes(b"".join(story.lines()))
    clean = main(["check", str(path)])
    path.write_bytes(b"{}\n")
    nonsense = main(["check", str(path)])
    absent = main(["check", str(tmp_path / "absent")])

    assert (3, 1, 0, 2, 2) == (unknown, lost, clean, nonsense, absent)
    assert 1 == last["violations"]["NoSilentLoss"]
    assert "chaos: " in capsys.readouterr().err
