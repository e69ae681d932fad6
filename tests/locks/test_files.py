"""Secrets in files: what is read, what is refused, and what is said about who else can read them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from walrq.errors import ConfigError
from walrq.locks.files import read_secret


def make(path: Path, text: str, mode: int = 0o600) -> str:
    """A file with that in it."""
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_white_space_around_a_secret_is_none_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Editors end files with a newline; a file of its owner's alone is nothing to talk about."""
    assert "correct horse" == read_secret(make(tmp_path / "s", " correct horse\n"), "requirepass_file", 1)
    assert not caplog.records


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_who_else_can_read_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    """In a warning that names the file and the setting, never the secret."""
    with caplog.at_level(logging.WARNING, "walrq.locks"):
        read_secret(make(tmp_path / "s", "correct horse", mode), "requirepass_file", 1)
    [record] = caplog.records

    assert f"requirepass_file={tmp_path / 's'} mode={mode:03o}" in record.getMessage()
    assert "correct" not in record.getMessage()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("correct horse battery", 0o602, "written by anybody"),
        ("short", 0o600, "5 bytes, allowed are 16 to"),
        ("", 0o600, "0 bytes"),
    ],
)
def test_what_cannot_be_a_secret_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    """One line that names the setting, and not what is in the file."""
    with pytest.raises(ConfigError, match=words) as refused:
        read_secret(make(tmp_path / "s", text, mode), "admin_token_file", 16)
    assert "admin_token_file" in refused.value.text
    assert not text or text not in refused.value.text


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the system's own words."""
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "none"), "admin_token_file", 16)
