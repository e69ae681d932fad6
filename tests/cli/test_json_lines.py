"""`walrq push --json-lines`: messages with options of their own, and what other commands print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Shell, text_of


def values(output: bytes) -> list[dict[str, Any]]:
    """One JSON value per line."""
    return [json.loads(line) for line in output.splitlines()]


def objects(*given: object) -> bytes:
    """Lines of JSON."""
    return text_of([json.dumps(each) for each in given])


def test_each_line_says_what_it_likes_and_the_command_the_rest(shell: Shell) -> None:
    """Payload in three forms; headers are merged; order is that of the lines."""
    lines = objects(
        {"payload": "grün", "headers": {"own": 1}, "priority": 7},
        {"payload_base64": "/wA=", "group": "g"},
        {"json": {"a": [1, None]}, "priority": 7, "delay": "1h"},
        {"payload": "again", "dedup_id": "d"},
        {"payload": "again", "dedup_id": "d"},
    )
    pushed = shell.walrq("push", "own", "--json-lines", "-", "--priority", "2", "--header", "all=x", stdin=lines)

    assert b"pushed 5 messages to own\n" == pushed.stdout
    ready = values(shell.walrq("peek", "own", "--json").stdout)
    delayed = values(shell.walrq("peek", "own", "--state", "delayed", "--json").stdout)
    assert [
        ("grün", 7, {"all": "x", "own": 1}, None),
        (None, 2, {"all": "x"}, "g"),
        ("again", 2, {"all": "x"}, None),
    ] == [(each.get("payload"), each["priority"], each["headers"], each["group"]) for each in ready]
    assert "/wA=" == ready[1]["payload_base64"]
    assert ['{"a":[1,null]}'] == [each["payload"] for each in delayed]


def test_what_peek_and_poll_print_can_be_pushed(shell: Shell) -> None:
    """Messages travel between queues and servers through a pipe."""
    shell.walrq("push", "here", "a", "b", "--priority", "3", "--header", "k=v", "--group", "g")
    assert 0 == shell("walrq peek here --json | walrq push there --json-lines -").returncode
    assert 0 == shell("walrq poll there --json | walrq push beyond --json-lines -").returncode

    (first,) = values(shell.walrq("peek", "beyond", "--json").stdout)[:1]
    assert ("a", 3, {"k": "v"}, "g") == tuple(first[name] for name in ("payload", "priority", "headers", "group"))


def test_many_kinds_of_options_keep_the_order_of_the_lines(shell: Shell) -> None:
    """Batches of different kinds are under way together."""
    lines = [{"payload": str(number), "max_attempts": number % 90 + 1} for number in range(400)]
    shell.walrq("push", "kinds", "--json-lines", "-", stdin=objects(*lines))

    assert text_of([str(number) for number in range(400)]) == shell.walrq("poll", "kinds", "--max", "400").stdout


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('{"payload": "x", "prio": 1}', "there is no field 'prio'; did you mean priority?"),
        ('{"payload": ', "it is no JSON"),
        ("[1]", "no JSON object"),
        ("{}", "one of payload, payload_base64 and json"),
        ('{"payload": "x", "json": 1}', "one of payload, payload_base64 and json"),
        ('{"payload": 5}', "payload is 5, which is no text"),
        ('{"payload": "\\ud800"}', "half a surrogate pair"),
        ('{"payload_base64": "?"}', "payload_base64"),
        ('{"payload": "x", "headers": []}', "headers is []"),
        ('{"payload": "x", "priority": true}', "priority is true"),
        ('{"payload": "x", "delay": "soon"}', "no duration"),
        ('{"payload": "x", "deliver_at": "2026-01-01"}', "time zone"),
    ],
)
def test_a_wrong_line_is_named_and_those_before_it_are_pushed(shell: Shell, line: str, hint: str) -> None:
    """One can mend the line and go on from there."""
    queue = f"wrong-{line.encode().hex()[:60]}"
    ran = shell.walrq("push", queue, "--json-lines", "-", stdin=b'{"payload": "good"}\n\n' + line.encode() + b"\n")

    certain, said = ran.stderr.decode().splitlines()
    assert (1, b"") == (ran.returncode, ran.stdout)
    assert f"walrq: 1 line is in {queue} for certain" == certain
    assert said.startswith("walrq: line 3 of the input: ")
    assert hint in said


def test_standard_input_can_be_one_message(shell: Shell) -> None:
    """Whatever is in it."""
    body = b"first\nsecond\x00\xff\n"
    assert 0 == shell.walrq("push", "whole", "--stdin", "--header", "type=blob", stdin=body).returncode

    assert body + b"\n" == shell.walrq("poll", "whole").stdout


def test_headers_go_with_payloads_and_with_lines(shell: Shell) -> None:
    """However many messages there are."""
    shell.walrq("push", "headed", "one", "--header", "k=v=w", "--header", "l=")
    shell.walrq("push", "headed", "two", "three", "--header", "k=v=w", "--header", "l=")
    shell.walrq("push", "headed", "--lines", "-", "--header", "k=v=w", "--header", "l=", stdin=b"four\n")

    found = values(shell.walrq("peek", "headed", "--json").stdout)
    assert [({"k": "v=w", "l": ""}, each) for each in ("one", "two", "three", "four")] == [
        (each["headers"], each["payload"]) for each in found
    ]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["x", "--stdin"], "one of them"),
        (["--lines", "-", "--json-lines", "-"], "one of them"),
        (["--json-lines", "-", "--dedup-id", "d"], "--dedup-id goes with one payload"),
        (["x", "--delay", "5", "--at", "2030-01-01T00:00:00Z"], "not both"),
        (["x", "--header", "novalue"], "NAME=VALUE"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(shell: Shell, arguments: list[str], hint: str) -> None:
    """What goes together and what does not."""
    ran = shell.walrq("push", "mail", *arguments)

    assert (2, b"") == (ran.returncode, ran.stdout)
    assert 1 == len(ran.stderr.splitlines())
    assert hint in ran.stderr.decode()
