"""Tables on narrow terminals."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime

import pytest

from walrq.cli import output


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
