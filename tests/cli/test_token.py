"""`walrq token` against a locked node: made, used, listed, revoked; a secret is shown once and nowhere else."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_examples import example_of
from tests.cli.test_serve import make_shell

MASTER = "a master token for tests only"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose server asks who is there, and a file with a token that may do everything."""
    shell = make_shell(tmp_path, None)
    file = shell.folder / "admin-token"
    file.write_text(MASTER + "\n")
    file.chmod(0o600)
    serve = (
        "serve",
        "--data-dir",
        "data",
        "--listen",
        "127.0.0.1:0",
        "--fsync",
        "never",
        "--admin-token-file",
        "admin-token",
    )
    with shell.popen(*serve) as serving:
        assert serving.stdout is not None
        ready = json.loads(serving.stdout.readline())
        shell.environment["WALRQ_SERVER"] = f"walrq://{ready['endpoints']['cbor']}"
        try:
            yield shell
        finally:
            serving.send_signal(signal.SIGTERM)
            _, log = serving.communicate()
            assert MASTER.encode() not in log


def test_a_token_is_made_used_and_revoked(locked: Shell) -> None:
    """The examples of the help, as they are printed."""
    nobody = locked.walrq("push", "jobs-a", "x")
    locked.environment["WALRQ_TOKEN_FILE"] = "admin-token"
    made = locked(example_of("walrq token create"))
    secret = made.stdout.decode().strip()
    listed = locked.walrq("token", "list", "--json")
    del locked.environment["WALRQ_TOKEN_FILE"]
    locked.environment["WALRQ_TOKEN"] = secret
    pushed = locked.walrq("push", "jobs-a", "x")
    beyond = locked.walrq("push", "mail", "x")
    purge = locked.walrq("queue", "purge", "jobs-a", "--yes")
    del locked.environment["WALRQ_TOKEN"]
    revoked = locked(f"{example_of('walrq token revoke')} --token-file admin-token")
    again = locked.walrq("token", "revoke", "ci", "--yes", "--token-file", "admin-token")
    gone = locked.walrq("push", "jobs-a", "x", "--token", secret)

    assert (77, 0, 77, 77, 77) == tuple(each.returncode for each in (nobody, pushed, beyond, purge, gone))
    assert (0, 0, 3) == (made.returncode, revoked.returncode, again.returncode)
    assert b"give a token" in nobody.stderr
    assert b"needs the right write on queue 'mail'" in beyond.stderr
    assert secret.startswith("walrq_")
    assert [
        {"right": "write", "queues": "jobs-*"},
        {"right": "read", "queues": "*"},
    ] == json.loads(listed.stdout)["grants"]
    for each in (listed, pushed, beyond, revoked, gone):
        assert secret.encode() not in each.stdout + each.stderr


@pytest.mark.parametrize("grant", ["own", "write:", "writes:jobs"])
def test_a_grant_that_is_none_is_named(locked: Shell, grant: str) -> None:
    """Before anything is asked."""
    ran = locked.walrq("token", "create", "ci", "--grant", grant)

    assert 2 == ran.returncode
    assert repr(grant).encode() in ran.stderr
