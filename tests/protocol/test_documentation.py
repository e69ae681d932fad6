"""docs/protocol.md says what the grammar, the tables and the bytes say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.protocol import samples
from walrq import api
from walrq.errors import ERRORS
from walrq.protocol.codec import Decoder
from walrq.protocol.columns import pack
from walrq.protocol.framing import frame
from walrq.protocol.handshake import (
    GoAway,
    Hello,
    Shards,
    Welcome,
    decode_hello,
    encode_goaway,
    encode_hello,
    encode_welcome,
    read_goaway,
    read_welcome,
)
from walrq.protocol.replies import KINDS, decode_reply, encode_reply
from walrq.protocol.requests import OPERATIONS, decode_request, encode_request

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
CONTRACT = re.sub(r";[^\n]*", "", (ROOT / "spec" / "protocol.cddl").read_text(encoding="utf-8"))
REQUESTS, REPLIES = PAGE.split("\n## Requests\n")[1].split("\n## Replies\n")
REPLIES = REPLIES.split("\n## Sessions")[0]


def entries(rule: str) -> str:
    """An array of the contract as the page writes it: the names of its entries in order."""
    found = re.search(rf"^{rule} = \[(.*?)\]$", CONTRACT, re.MULTILINE | re.DOTALL)
    assert found, rule
    parts = [part.strip() for part in re.sub(r"\[[^\]]*\]", "any", found.group(1)).split(",")]
    return f"[{', '.join(part.split(':')[0] for part in parts if part)}]"


def sections(text: str) -> dict[str, str]:
    """Heading -> body of each third-level section."""
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def kebab(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


# Second rows of a class, for what only they can say.
SPECIAL = {(29, api.Push): "counted-push", (30, api.Poll): "numbered-poll", (17, api.Pushed): "counted-pushed"}


def rule_of(number: int, cls: type) -> str:
    return SPECIAL.get((number, cls), kebab(cls))


def test_every_request_has_its_section_with_its_array() -> None:
    """Number, name, and the elements in their order."""
    found = sections(REQUESTS)
    assert [f"{op} {rule_of(op, cls)}" for op, cls, *_ in OPERATIONS] == list(found)
    for op, cls, length, *_ in OPERATIONS:
        array = entries(rule_of(op, cls))
        assert f"`{array}`" in found[f"{op} {rule_of(op, cls)}"]
        assert length == array.count(",") + 1


def test_every_reply_has_its_section_with_its_array() -> None:
    """The same for replies, and the arrays inside them."""
    found = sections(REPLIES)
    assert [f"{kind} {rule_of(kind, cls)}" for kind, cls, *_ in KINDS] == list(found)
    for kind, cls, length, *_ in KINDS:
        array = entries(rule_of(kind, cls))
        assert f"`{array}`" in found[f"{kind} {rule_of(kind, cls)}"]
        assert length == array.count(",") + 1
    assert f"`{entries('run')}`" in found["2 polled"]
    assert f"`{entries('peeked')}`" in found["6 page"]
    assert f"`{entries('attempt')}`" in found["6 page"]
    assert f"`{entries('member-state')}`" in found["16 cluster-state"]


@pytest.mark.parametrize(("heading", "rule"), [("Hello", "hello"), ("Welcome", "welcome"), ("GoAway", "go-away")])
def test_the_handshake_is_written_as_it_is(heading: str, rule: str) -> None:
    """The first frames, too."""
    assert f"`{entries(rule)}`" in sections(PAGE.split("\n## Requests\n")[0])[heading]


def test_the_error_table_is_the_table_of_the_code() -> None:
    """Every code with its class, its outcome and whether to retry; the meaning is the class's first line."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
    expected = [
        (
            str(int(code)),
            row.error.__name__,
            "definite" if row.definite else "unknown",
            "yes" if row.retry else "no",
            (row.error.__doc__ or "").strip().splitlines()[0],
        )
        for code, row in ERRORS.items()
    ]
    assert expected == rows


def test_every_error_the_page_names_exists() -> None:
    """A misspelt name would send readers searching."""
    names = {row.error.__name__ for row in ERRORS.values()}
    mentioned = set(re.findall(r"`([A-Z]\w+)`", PAGE))
    assert mentioned <= names
    assert len(mentioned) > 10


IDENTIFIER = 0x018BCFE568000000000100000000002A
ONE = pack([b"hello"])
TWO = pack([b"hello", b"you"], [{"a": 1}, None])
RUN = api.Delivered(
    "jobs", samples.RECEIPT, 1, IDENTIFIER, 1, 0, (12, 0), 5, 1_700_000_000_000, None, 0, ONE.ends, ONE.payloads
)
HELLO = Hello("me/1")
WELCOME = Welcome(
    "n1",
    "c1",
    (Shards(0, 31, "127.0.0.1:50051"),),
    {},
    None,
    1_700_000_000_000,
    nodes=(api.NodeAt("n1", "127.0.0.1:50051"),),
    leader="127.0.0.1:50051",
)
GOAWAY = GoAway(52, "the node is stopping")


def reads_request(request: api.Request) -> Callable[[bytes], bool]:
    return lambda body: decode_request(body).request == request


def reads_reply(reply: api.Reply) -> Callable[[bytes], bool]:
    return lambda body: decode_reply(body)[1] == reply


PUSH_ONE = api.Push("jobs", ONE)
PUSH_TWO = api.Push("jobs", TWO, priority=5)
POLL = api.Poll(("jobs",), 10, 30_000, 1_000)
ACK = api.Settle("jobs", api.SettleKind.ACK, (api.Item(samples.RECEIPT),))
POLLED = api.Polled(0, 30_000, (RUN,))
FAILED = api.Failed(8, 'there is no queue "jbos"', {"nearest": "jobs"})
# Title on the page -> (the bytes our encoder makes, whether our decoder reads them back).
EXAMPLES: dict[str, tuple[bytes, Callable[[bytes], bool]]] = {
    'Hello of version 1 by "me/1"': (encode_hello(HELLO), lambda body: decode_hello(body) == HELLO),
    "Welcome": (encode_welcome(WELCOME), lambda body: read_welcome(Decoder().decode(body)) == WELCOME),
    "push of one message": (encode_request(1, PUSH_ONE), reads_request(PUSH_ONE)),
    "push of two messages, the first with headers, in a session": (
        encode_request(2, PUSH_TWO, 9, 7),
        reads_request(PUSH_TWO),
    ),
    "pushed": (encode_reply(2, api.Pushed(IDENTIFIER, 2)), reads_reply(api.Pushed(IDENTIFIER, 2))),
    "poll": (encode_request(3, POLL), reads_request(POLL)),
    "polled": (encode_reply(3, POLLED), reads_reply(POLLED)),
    "ack": (encode_request(4, ACK), reads_request(ACK)),
    "settled": (encode_reply(4, api.Settled((0,))), reads_reply(api.Settled((0,)))),
    "an error": (encode_reply(5, FAILED), reads_reply(FAILED)),
    "GoAway": (encode_goaway(GOAWAY), lambda body: read_goaway(Decoder().decode(body)) == GOAWAY),
}


def test_the_examples_are_the_bytes_we_send_and_read() -> None:
    """Somebody will compare their first frame with these, byte by byte."""
    block = PAGE.split("## Examples")[1].split("```text\n")[1].split("```")[0]
    shown: dict[str, bytes] = {}
    for part in block.strip().split("\n\n"):
        title, _, digits = part.partition("\n")
        shown[title.removeprefix("; ")] = bytes.fromhex(digits.replace("\n", " "))

    assert {title: frame(body) for title, (body, _) in EXAMPLES.items()} == shown
    for title, (_, reads) in EXAMPLES.items():
        assert reads(shown[title][4:]), title
