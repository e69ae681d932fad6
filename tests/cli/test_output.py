"""Tables on narrow terminals."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime

import pytest

from walrq.cli import output


def test_names_of_segments_stay_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long titles give way before what stands below them."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    titles = ("segment", "first_index", "last_index", "records", "end", "file_bytes", "sealed")

    output.table(titles, [("seg-00000000000000000001.wal", 100_000, 200_000, 100_000, 67_108_000, 67_108_864, False)])

    shown = capsys.readouterr().out
    assert "seg-00000000000000000001.wal" in shown
    assert "67108864" in shown


@pytest.mark.parametrize("columns", ["80", "140"])
def test_message_ids_stay_in_one_piece(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is never broken; payloads give way, one line for each message."""
    identifier = "01JDXYZ0123456789ABCDEFGHJ"
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [(identifier, datetime.now(UTC), "max_deliveries", 3, "ValueError: " + "e" * 40, "p" * 60)] * 3

    output.table(("message", "died", "reason", "attempts", "last error", "payload"), rows)

    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert 3 == sum(identifier in line for line in shown)
    assert max(map(len, shown)) <= int(columns)
    rule = next(number for number, line in enumerate(shown) if "──" in line)
    assert 3 == sum(bool(line.strip()) for line in shown[rule + 1 :]), "one line each"
