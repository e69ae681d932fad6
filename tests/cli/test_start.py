"""What a command does not need it does not import: a shell loop starts it a thousand times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, Shell

# What costs tens of milliseconds each, or shows that something was imported which only others need.
HEAVY = frozenset(
    """
    anyio asyncio ssl trio rich rich_click importlib.metadata email multiprocessing concurrent.futures
    walrq.daemon.supervisor walrq.replica walrq.queues.machine walrq.client.asynchronous walrq.storage.storage
    walrq.worker walrq.backup walrq.live tomllib unittest
    """.split()
)
_RUN = """
import json, sys
from walrq.cli.app import run
try:
    status = run(sys.argv[1:])
except SystemExit as error:
    status = error.code
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


def imported(shell: Shell, *arguments: str) -> set[str]:
    """The modules there are when the command is done."""
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        capture_output=True,
        cwd=shell.folder,
        env=shell.environment | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    status, names = json.loads(ran.stderr.splitlines()[-1])
    assert 0 == status, ran.stderr.decode()
    return set(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["push", "start", "x"],
        ["poll", "start", "--ack"],
        ["queue", "list"],
        ["stats", "--json"],
        ["completion", "bash"],
    ],
    ids=" ".join,
)
def test_a_command_imports_no_more_than_it_needs(shell: Shell, arguments: list[str]) -> None:
    """Time is not measured here, its causes are counted."""
    assert set() == HEAVY & imported(shell, *arguments)


def test_asking_for_the_version_does_not_import_the_client(shell: Shell) -> None:
    """Nor anything else that speaks to a server."""
    names = imported(shell, "--version")

    # Only what the test itself asks for: the tree, and what tells an error from another.
    assert {
        "walrq",
        "walrq.cli",
        "walrq.cli.app",
        "walrq.cli.arguments",
        "walrq.cli.interrupts",
        "walrq.cli.output",
    } == {name for name in names if name.split(".")[0] == "walrq"}
    assert set() == {"cbor2", "attrs", "attr"} & names


def test_a_command_imports_its_own_module_only(shell: Shell) -> None:
    """The tree knows the others by name."""
    names = {name.removeprefix("walrq.cli.") for name in imported(shell, "queue", "list") if "walrq.cli." in name}

    assert {"app", "arguments", "contexts", "interrupts", "output", "queues"} == names


def test_the_check_sees_what_is_imported(shell: Shell) -> None:
    """A list of names that are never there would prove nothing."""
    assert {"walrq.daemon.listener", "trio"} <= imported(shell, "doctor", "--listen", "127.0.0.1:0")
