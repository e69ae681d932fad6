"""Three nodes in containers: what the file says, and that its command lines make a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell, make_shell
from tests.deploy.reading import DEPLOY, compose, health_command, instructions, last_stage, one, settings
from walrq.daemon.config import VARIABLES, Config
from walrq.local.layout import prepare

FOUND = compose()
SERVICES: dict[str, dict[str, Any]] = FOUND["services"]
IMAGE = last_stage(instructions((DEPLOY / "Dockerfile").read_text()))
SECONDS_MAX = 60


def test_every_node_is_confined_and_has_a_place_of_its_own() -> None:
    """Two nodes on one volume would be one node; a writable root would be forgotten messages."""
    volumes = [service["volumes"] for service in SERVICES.values()]
    ports = [port for service in SERVICES.values() for port in service["ports"]]

    assert ["n1", "n2", "n3"] == list(SERVICES)
    assert [[f"{name}:{one(IMAGE, 'VOLUME')}"] for name in SERVICES] == volumes
    assert set(SERVICES) == set(FOUND["volumes"])
    assert len(ports) == len(set(ports))
    assert all(port.startswith("127.0.0.1:") for port in ports), "it is for trying, on this machine"
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert ["ALL"] == service["cap_drop"]
        assert ["no-new-privileges:true"] == service["security_opt"]
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_password_comes_from_a_secret() -> None:
    """A password in a variable is in every `docker inspect`."""
    for service in SERVICES.values():
        given = service["environment"]
        secret, token = service["secrets"]
        assert f"/run/secrets/{secret}" == given["WALRQ_CLUSTER_SECRET_FILE"]
        assert {f"/run/secrets/{token}"} == {given["WALRQ_ADMIN_TOKEN_FILE"], given["WALRQ_TOKEN_FILE"]}
        assert not {"WALRQ_CLUSTER_SECRET", "WALRQ_ADMIN_TOKEN", "WALRQ_TOKEN", "WALRQ_REQUIREPASS"} & set(given)
        assert {secret, token} == set(FOUND["secrets"])


def test_every_node_is_told_the_same_list_and_who_it_is() -> None:
    """The three agree on a cluster only if they were told the same."""
    lists = set()
    for name, service in SERVICES.items():
        flags = flags_of(service["command"])
        config = Config.load(flags, {**settings(IMAGE), **service["environment"]})
        lists.add(config.bootstrap)

        assert name == config.node_id
        assert dict(config.bootstrap)[name] == config.advertise
        # The token file is for the commands that are run inside.
        assert {"WALRQ_TOKEN_FILE"} == set(service["environment"]) - set(VARIABLES)
        assert str(config.advertise).rpartition(":")[2] in one(IMAGE, "EXPOSE").split()
    assert 1 == len(lists)


def flags_of(command: list[str]) -> dict[str, str]:
    """The flags of `serve`, by the names of their settings."""
    assert "serve" == command[0]
    return {
        flag.removeprefix("--").replace("-", "_"): text for flag, text in zip(command[1::2], command[2::2], strict=True)
    }


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    """Every service's command with the real CLI, host names and paths replaced by those of this machine."""
    made = prepare(tmp_path / "ports", 3, 0)
    places = dict(zip(SERVICES, made.places, strict=True))

    def here(text: str) -> str:
        for name, place in places.items():
            text = re.sub(rf"\b{name}:50151\b", place.peer, text)
        return text

    token = tmp_path / "admin-token"
    token.write_text("a token of this test, long enough")
    token.chmod(0o400)
    shells: dict[str, Shell] = {}
    processes = []
    try:
        for name, service in SERVICES.items():
            (tmp_path / name).mkdir()
            shells[name] = shell = make_shell(tmp_path / name, None)
            variables = {**settings(IMAGE), **service["environment"]}
            del variables["PATH"]
            shell.environment.update({variable: here(text) for variable, text in variables.items()})
            shell.environment.update(
                WALRQ_DATA_DIR=str(tmp_path / name / "data"),
                WALRQ_LISTEN=places[name].listen,
                WALRQ_PEER_LISTEN=places[name].peer,
                WALRQ_CLUSTER_SECRET_FILE=str(made.secret),
                WALRQ_ADMIN_TOKEN_FILE=str(token),
                WALRQ_TOKEN_FILE=str(token),
            )
            processes.append(shell.popen(*map(here, service["command"])))
            shell.environment["WALRQ_SERVER"] = f"walrq://{places[name].listen}"
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1].decode()
        yield shells
    finally:
        for process in processes:
            process.terminate()
        ended = [process.communicate(timeout=SECONDS_MAX) for process in processes]
    assert [0, 0, 0] == [process.returncode for process in processes], ended


def test_the_services_form_a_cluster_and_their_health_checks_pass(started: dict[str, Shell]) -> None:
    """The command lines of the file, as they stand there, and the one that its comment ends with."""
    check = health_command(IMAGE)
    asked = next(line for line in (DEPLOY / "compose.yaml").read_text().splitlines() if "compose exec" in line)
    words = asked.partition("exec n1 walrq ")[2].split()

    for name, shell in started.items():
        server = shell.environment["WALRQ_SERVER"]
        well = shell.walrq(*[server if word == "walrq://127.0.0.1:50051" else word for word in check[1:]])
        assert (0, name) == (well.returncode, json.loads(well.stdout)["node"]), well.stderr
    pushed = started["n2"].walrq("push", "mail", "hello")
    polled = started["n3"].walrq("poll", "mail", "--ack")
    shown = started["n1"].walrq(*words, "--json")

    assert (0, b"") == (pushed.returncode, pushed.stderr)
    assert b"hello\n" == polled.stdout
    assert ["n1", "n2", "n3"] == [each["node"] for each in json.loads(shown.stdout)["members"]]
