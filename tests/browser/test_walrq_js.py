"""walrq.js in a real browser, against real nodes: three of them, one of which is killed in the end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.browser.chromium import WEB, Browser, ScriptError
from tests.daemon.process import Daemon
from tests.ports import free_port
from tests.requirements import require
from walrq import api
from walrq.limits import SEGMENT_BYTES_MIN
from walrq.protocol.columns import pack

require("chromium")

NAMES = ("n1", "n2", "n3")
# How often it is looked at who leads: an election rings no bell here.
LOOK_S = 0.02
OPEN = "const client = await walrq.connect(args.urls, { worker: 'page' });"


@attrs.define
class Nodes:
    """The cluster."""

    daemons: dict[str, Daemon]
    urls: dict[str, str]

    def leader(self) -> str:
        """Who leads, once somebody does."""
        while True:
            for daemon in self.daemons.values():
                if daemon.process.poll() is None:
                    with daemon.connect() as client:
                        state = client.ask(api.ClusterStatus())
                    if state.leader in self.daemons and self.daemons[state.leader].process.poll() is None:
                        return str(state.leader)
            time.sleep(LOOK_S)

    def ask(self, request: api.Request) -> Any:
        """Ask the leader, as often as it takes."""
        while True:
            with self.daemons[self.leader()].connect() as client:
                reply = client.ask(request)
            if not isinstance(reply, api.Failed):
                return reply


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes, each in a process."""
    folder = tmp_path_factory.mktemp("nodes")
    peers = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
    bootstrap = ",".join(f"{name}={address}" for name, address in peers.items())
    daemons = {}
    try:
        for name in NAMES:
            daemons[name] = Daemon(
                folder / name,
                node_id=name,
                ws_listen="127.0.0.1:0",
                bootstrap=bootstrap,
                cluster_secret="a secret for tests only",
                fsync="never",
                max_wal_segment_size=str(SEGMENT_BYTES_MIN),
            )
        ready = {name: daemon.wait_ready() for name, daemon in daemons.items()}
        made = Nodes(daemons, {name: f"ws://{line['endpoints']['ws']}" for name, line in ready.items()})
        made.leader()
        yield made
    finally:
        for daemon in daemons.values():
            daemon.__exit__(None, None, None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> Iterator[Browser]:
    """The browser, started once."""
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def page(browser: Browser, nodes: Nodes, request: pytest.FixtureRequest) -> Any:
    """Runs a script with `args.urls` (any node, leader or not) and a queue of the test's own, `args.queue`."""

    def run(code: str, **args: Any) -> Any:
        name = request.node.name.removeprefix("test_")
        return browser.run(code, urls=[*nodes.urls.values()], queue=name, **args)

    return run


def test_a_page_pushes_and_polls_and_acknowledges(page: Any) -> None:
    """With all that a message carries."""
    found = page(
        OPEN
        + """
        const id = await client.push(args.queue, "héllo", { priority: 7, headers: { a: [1, null] }, group: "g" });
        const [message] = await client.poll(args.queue, { visibility: 5 });
        const seen = {
          same: id === message.id, text: message.text(), payload: message.payload, priority: message.priority,
          headers: message.headers, group: message.group, delivery: message.delivery, attempts: message.attempts,
          young: Math.abs(Date.now() - message.pushedAt) < 60000, left: message.leasedUntil - performance.now(),
        };
        await message.ack();
        const shown = await client.show(args.queue);
        await client.close();
        return { ...seen, settled: message.settled, ready: shown.ready, leased: shown.leased };
        """
    )

    assert 0 < found.pop("left") <= 5_000
    assert {
        "same": True,
        "text": "héllo",
        "payload": "héllo",
        "priority": 7,
        "headers": {"a": [1, None]},
        "group": "g",
        "delivery": 1,
        "attempts": 0,
        "young": True,
        "settled": True,
        "ready": 0,
        "leased": 0,
    } == found


def test_every_byte_survives_and_so_does_a_mebibyte(page: Any) -> None:
    """Bytes are bytes in the browser too, of any view, and text with a mark of its byte order keeps it."""
    found = page(
        OPEN
        + """
        const all = Uint8Array.from({ length: 256 }, (_, index) => index);
        const big = Uint8Array.from({ length: 1 << 20 }, (_, index) => (index * 31) >> 3);
        const bodies = [all, all.buffer, all.subarray(100, 110), big, new Uint8Array(0), "\\ufeffmark\\u0000", ""];
        await client.pushBatch(args.queue, bodies);
        const messages = await client.poll(args.queue, { maxMessages: 10 });
        const same = messages.map((message, index) => {
          const sent = bodies[index];
          const bytes = typeof sent === "string" ? new TextEncoder().encode(sent) : new Uint8Array(sent);
          const got = message.bytes();
          return got.length === bytes.length && got.every((byte, at) => byte === bytes[at]);
        });
        const text = messages[5].text();
        await client.ack(messages);
        await client.close();
        return { same, text };
        """
    )

    assert 7 * [True] == found["same"]
    assert "\ufeffmark\x00" == found["text"]


def test_messages_are_given_back_in_three_ways(page: Any, nodes: Nodes) -> None:
    """Released at once, failed with what went wrong, rejected at once; receipts of the past are refused."""
    found = page(
        OPEN
        + """
        await client.pushBatch(args.queue, ["one", "two", "three"]);
        const [one, two, three] = await client.poll(args.queue, { visibility: 60 });
        await one.nack({ mode: "release" });
        await two.nack({ delay: 60, error: new TypeError("cannot") });
        await client.nack([three], { mode: "reject", error: "never" });
        const again = await client.poll(args.queue);
        const late = await one.ack().catch((error) => ({ reason: error.reason, definite: error.definite }));
        const dead = await client.request("list_dead", { queue: args.queue });
        const delayed = await client.peek(args.queue, { state: "delayed" });
        await client.close();
        const history = (page) => page.messages.map((each) => [each.payload, each.history[0]?.error_type,
                                                               each.history[0]?.error_text]);
        return { again: again.map((each) => [each.text(), each.delivery, each.attempts]), late,
                 dead: history(dead), delayed: history(delayed) };
        """
    )

    assert [["one", 2, 0]] == found["again"]
    assert {"reason": "RECEIPT_EXPIRED", "definite": True} == found["late"]
    assert [["three", "Error", "never"]] == found["dead"]
    assert [["two", "TypeError", "cannot"]] == found["delayed"]


def test_a_lease_is_touched_while_its_message_is_in_hand(page: Any) -> None:
    """A page may take longer than the visibility; it stays the only one to have the message."""
    found = page(
        OPEN
        + """
        await client.push(args.queue, "slow");
        const other = await walrq.connect(args.urls);
        for await (const message of client.consume(args.queue, { visibility: 0.4 })) {
          const first = message.leasedUntil;
          const stolen = await other.poll(args.queue, { wait: 1.2 });
          const later = message.leasedUntil;
          await message.touch(30);
          await message.ack();
          await Promise.all([client.close(), other.close()]);
          return { stolen: stolen.length, gained: later - first, last: message.leasedUntil - performance.now() };
        }
        """
    )

    assert 0 == found["stolen"]
    assert found["gained"] > 400
    assert found["last"] > 20_000


def test_consuming_waits_for_messages_and_gives_back_what_it_did_not_hand_out(page: Any, nodes: Nodes) -> None:
    """Leaving the loop costs no message an attempt."""
    found = page(
        OPEN
        + """
        const producer = await walrq.connect(args.urls);
        const seen = [];
        const later = new Promise((resolve) => setTimeout(resolve, 200)).then(() =>
          producer.pushBatch(args.queue, ["a", "b", "c", "d"]));
        for await (const message of client.consume(args.queue, { maxMessages: 4, visibility: 60 })) {
          seen.push(message.text());
          await message.ack();
          if (seen.length === 2) break;
        }
        await later;
        const shown = await client.show(args.queue);
        const rest = await client.poll(args.queue, { maxMessages: 4 });
        await Promise.all([client.close(), producer.close()]);
        return { seen, ready: shown.ready, leased: shown.leased,
                 rest: rest.map((each) => [each.text(), each.attempts]) };
        """
    )

    assert {"seen": ["a", "b"], "ready": 2, "leased": 0, "rest": [["c", 0], ["d", 0]]} == found


def test_an_aborted_poll_leases_nothing(page: Any) -> None:
    """Whoever presses cancel does not take a message along; a loop that is aborted ends with the signal's reason."""
    found = page(
        OPEN
        + """
        const controller = new AbortController();
        const polled = client.poll(args.queue, { wait: 60, signal: controller.signal }).catch((error) => error.name);
        const loop = (async () => {
          for await (const _ of client.consume(args.queue, { signal: controller.signal })) return "a message";
        })().catch((error) => error.name);
        await new Promise((resolve) => setTimeout(resolve, 100));
        controller.abort();
        const names = [await polled, await loop];
        const before = await client.poll(args.queue, { signal: controller.signal }).catch((error) => error.name);
        await client.push(args.queue, "x");
        const shown = await client.show(args.queue);
        await client.close();
        return { names, before, ready: shown.ready, leased: shown.leased };
        """
    )

    assert {"names": ["AbortError", "AbortError"], "before": "AbortError", "ready": 1, "leased": 0} == found


def test_errors_have_codes_and_say_whether_it_happened(page: Any) -> None:
    """What the page got wrong, what is not there, and who is closed."""
    found = page(
        OPEN
        + """
        const caught = async (promise) => {
          try { return [await promise]; }
          catch (error) { return [error instanceof walrq.WalrqError, error.name, error.reason ?? null,
                                  error.definite ?? null, error.message]; }
        };
        await client.push(args.queue, "x");
        const made = [
          await caught(client.show(args.queue + "x")),
          await caught(client.push("a\\nb", "x")),
          await caught(client.push(args.queue, { not: "text" })),
          await caught(client.push(args.queue, "x", { delay: -1 })),
          await caught(client.push(args.queue, "x", { delay: 31 * 24 * 3600 })),
          await caught(client.ack({ queue: args.queue })),
          await caught(client.nack([], { mode: "maybe" })),
          await caught(client.request("push", { queue: args.queue, payload: "x", delay: 1 })),
          await caught(walrq.connect([])),
          await caught(walrq.connect("no address at all")),
          await caught(walrq.connect("http://127.0.0.1:9")),
          await caught(walrq.connect("ws://127.0.0.1:9", { timeout: 0.3 })),
        ];
        await client.close();
        made.push(await caught(client.push(args.queue, "x")));
        return made;
        """
    )
    [
        absent,
        name,
        thing,
        negative,
        month,
        receipt,
        mode,
        field,
        nowhere,
        nonsense,
        scheme,
        nobody,
        closed,
    ] = found

    assert [True, "WalrqError", "QUEUE_NOT_FOUND", True] == absent[:4]
    assert "did you mean" in absent[4]
    assert [True, "WalrqError", "INVALID_QUEUE_NAME", True] == name[:4]
    assert [False, "TypeError"] == thing[:2]
    assert [False, "RangeError"] == negative[:2]
    assert [True, "WalrqError", "DELAY_TOO_LONG", True] == month[:4]
    assert [False, "TypeError"] == receipt[:2]
    assert [False, "TypeError"] == mode[:2]
    assert "did you mean delay_ms?" in field[4]
    assert [False, "TypeError"] == nowhere[:2]
    assert ([False, "TypeError"], [False, "TypeError"]) == (nonsense[:2], scheme[:2])
    assert "ws://127.0.0.1:50052" in scheme[4]
    assert [True, "WalrqError", "NOT_CONNECTED", True] == nobody[:4]
    assert [True, "WalrqError", "NOT_CONNECTED", True] == closed[:4]


def test_many_requests_are_under_way_at_once(page: Any) -> None:
    """More than the window holds, each answered, none twice; old polls do not hold the session up."""
    found = page(
        OPEN
        + """
        const parked = client.poll(args.queue + ".never", { wait: 60 });
        parked.catch(() => undefined);
        const ids = await Promise.all(Array.from({ length: 1500 }, (_, index) => client.push(args.queue, `${index}`)));
        const shown = await client.show(args.queue);
        await client.push(args.queue + ".never", "at last");
        const [late] = await parked;
        await client.close();
        return { ids: new Set(ids).size, ready: shown.ready, late: late.text() };
        """
    )

    assert {"ids": 1500, "ready": 1500, "late": "at last"} == found


def test_the_example_page_shows_what_was_pushed(browser: Browser, nodes: Nodes) -> None:
    """What its form pushes comes back as a line; markup in a message is text."""
    found = browser.run(
        """
        const frame = document.createElement("iframe");
        frame.src = `/page.html?server=${encodeURIComponent(args.server)}`;
        document.body.append(frame);
        const until = async (found) => {
          for (;;) {
            const value = found(frame.contentDocument);
            if (value) return value;
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
        };
        await until((page) => page.querySelector("[role=status]")?.textContent === "connected");
        const form = frame.contentDocument.querySelector("form");
        form.elements.text.value = "<b>hello</b>";
        form.requestSubmit();
        const line = await until((page) => page.querySelector("li"));
        const made = { text: line.textContent, children: line.childElementCount };
        frame.remove();
        return made;
        """,
        server=",".join(nodes.urls.values()),
    )

    assert found["text"].endswith("<b>hello</b>")
    assert 0 == found["children"]


def test_types_name_what_the_module_has(page: Any) -> None:
    """An editor that completes what is not there is worse than none."""
    found = page(
        """
        const names = (made) => Object.getOwnPropertyNames(made).filter((name) => !/^_|^constructor$/.test(name));
        const client = await walrq.connect(args.urls);
        await client.push(args.queue, "x");
        const [message] = await client.poll(args.queue);
        const error = await client.show("no such queue").catch((error) => error);
        await client.close();
        return {
          module: Object.keys(walrq),
          Client: [...names(walrq.Client.prototype), ...names(client)],
          Message: [...names(walrq.Message.prototype), ...names(message)],
          WalrqError: names(error).filter((name) => !["stack", "message", "name"].includes(name)),
        };
        """
    )
    types = (WEB / "walrq.d.ts").read_text()
    declared = {
        name: set(re.findall(r"^  (?:readonly )?(\w+)[(:?]", body, re.MULTILINE)) - {"constructor"}
        for name, body in re.findall(r"^export declare class (\w+)[^{]*\{\n(.*?)^\}", types, re.MULTILINE | re.DOTALL)
    }
    module = set(re.findall(r"^export declare (?:const|class|function) (\w+)", types, re.MULTILINE))

    assert module == set(found.pop("module"))
    assert declared == {name: set(members) for name, members in found.items()}


def test_a_page_of_another_site_is_not_let_in(page: Any, browser: Browser, nodes: Nodes) -> None:
    """The browser says whose page it is, and the node refuses; `localhost` is another name than `127.0.0.1`."""
    other = [url.replace("127.0.0.1", "localhost") for url in nodes.urls.values()]
    with pytest.raises(ScriptError) as caught:
        page("await walrq.connect(args.other, { timeout: 0.5 });", other=other)

    assert "NOT_CONNECTED" == caught.value.thrown["reason"]
    assert "origin" in caught.value.thrown["message"]


def test_the_page_goes_on_when_its_leader_is_killed(browser: Browser, nodes: Nodes) -> None:
    """Pushed while the leader dies, consumed meanwhile: every message is there, each took effect once."""
    queue = "killed"
    leader = nodes.leader()
    nodes.ask(api.Push(queue, pack([b"0"])))
    browser.start(
        """
        // The leader first: it is this very connection that breaks. The others are learned.
        const client = await walrq.connect(args.first, { timeout: 60 });
        const consumer = await walrq.connect(args.first, { timeout: 60 });
        const events = [];
        for (const name of ["open", "lost"]) client.addEventListener(name, () => events.push(name));
        const seen = [];
        const consuming = (async () => {
          for await (const message of consumer.consume(args.queue, { visibility: 30 })) {
            seen.push(message.text());
            await message.ack();
            if (new Set(seen).size === args.count) return;
          }
        })();
        for (let number = 1; number < args.count; number += 1) {
          await client.push(args.queue, `${number}`);
          if (number === 30) {
            await fetch("/done", { method: "POST", body: JSON.stringify({ value: "now", loose: [] }) });
          }
        }
        await consuming;
        const url = client.url;
        await Promise.all([client.close(), consumer.close()]);
        return { seen, events, url };
        """,
        first=nodes.urls[leader],
        queue=queue,
        count=200,
    )
    now = browser.result()
    nodes.daemons[leader].process.kill()
    found = browser.result()
    left = nodes.ask(api.ShowQueue(queue))

    assert "now" == now
    # At least once is what consuming promises; that no push was doubled is what the counts say.
    assert {str(number) for number in range(200)} == set(found["seen"])
    assert len(found["seen"]) < 203
    assert "lost" == found["events"][0]
    assert "open" == found["events"][-1]
    assert nodes.urls[leader] != found["url"]
    assert (0, 0) == (left.ready, left.leased)
