"""Type checkers see a task's own signature, and find the mistakes in calls of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = Path(__file__).with_name("sample.py")

MISTAKES = """
import walrq
from sample import bare, fetch, send, worker

bare.enqueue("1")  # error
bare.enqueue(1, 2)  # error
bare.enqueue(number="x")  # error
send.enqueue(to="ada")  # error
send.enqueue("ada", delay=60)  # error
send.options(delay=60).enqueue(5)  # error
send.options(dealy=60)  # error
send.call("ada", urgent="yes")  # error
send.enqueue_many([bare.call(1)])  # error
worker.task(queue=5)  # error
worker.run(backend="gevent")  # error

@worker.handler(queue="x")  # error
def wrong(number: int) -> None: ...

send.enqueue("ada")
"""


def mypy(folder: Path, *paths: Path) -> list[str]:
    """What mypy says in strict mode, one line each."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    config = folder / "mypy.ini"
    config.write_text("[mypy]\npython_version = 3.11\nfollow_imports = silent\n")
    ran = subprocess.run(
        [*command, "--config-file", config, "--cache-dir", folder / "cache", *paths],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout.splitlines()


def test_a_users_module_is_clean_and_mistakes_are_found_in_their_lines(tmp_path: Path) -> None:
    """mypy --strict, without a plugin."""
    sample, wrong = tmp_path / "sample.py", tmp_path / "mistakes.py"
    shutil.copy(SAMPLE, sample)
    wrong.write_text(MISTAKES)
    expected = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# error")]
    said = mypy(tmp_path, sample, wrong)
    errors = [line for line in said if ": error: " in line]

    assert [] == [line for line in errors if wrong.name not in line]
    assert expected == sorted({int(line.split(":")[1]) for line in errors})
