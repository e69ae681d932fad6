"""Several nodes from one command: their start, their deaths, their end. The nodes are fakes, the processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.requirements import require
from walrq.errors import ConfigError
from walrq.local import launcher, layout

FAKE = Path(__file__).with_name("fake_node.py")
PROGRAM = (sys.executable, str(FAKE))
SECONDS_MAX = 30


@attrs.define
class Story:
    """A launcher that runs in this process, what it said, and what to do at each word."""

    made: layout.Layout
    said: list[str] = attrs.field(factory=list)
    ready: list[Mapping[str, Any]] = attrs.field(factory=list)
    on_ready: Callable[[Mapping[str, Any]], None] = lambda ready: os.kill(os.getpid(), signal.SIGTERM)
    on_word: Callable[[str], None] = lambda text: None

    def run(self, *flags: str) -> int:
        """To the end; the status."""

        def announce(ready: Mapping[str, Any]) -> None:
            self.ready.append(ready)
            self.on_ready(ready)

        def say(text: str) -> None:
            self.said.append(text)
            self.on_word(text)

        async def bounded() -> int:
            with trio.fail_after(SECONDS_MAX):
                return await launcher.run(self.made, flags, say=say, announce=announce, program=PROGRAM)

        return trio.run(bounded)

    def signals(self, node: str) -> list[str]:
        """What a fake node was sent."""
        path = self.made.base / node / "signals"
        return path.read_text().split() if path.exists() else []

    def plant(self, node: str, order: str, text: str = "") -> None:
        """Tell a fake node how to behave."""
        (self.made.base / node).mkdir(exist_ok=True)
        (self.made.base / node / order).write_text(text)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Three nodes on free ports."""
    return Story(layout.prepare(tmp_path / "cluster", 3, 0))


def gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_every_node_is_started_announced_once_and_stopped_in_good_order(story: Story, number: int) -> None:
    """One line says where all of them are; one signal ends all of them, and nothing stays behind."""
    story.on_ready = lambda ready: os.kill(os.getpid(), number)
    status = story.run("--fsync", "never")
    (ready,) = story.ready

    assert 0 == status
    assert "ready" == ready["event"]
    assert story.made.url == ready["url"]
    assert [(place.node, place.listen, place.peer) for place in story.made.places] == [
        (each["node"], each["endpoints"]["cbor"], each["endpoints"]["peer"]) for each in ready["nodes"]
    ]
    assert [f"{signal.Signals(number).name}: stopping n1, n2 and n3"] == story.said
    assert [["SIGTERM"]] * 3 == [story.signals(place.node) for place in story.made.places]
    assert all(gone(each["pid"]) for each in ready["nodes"])
    assert [] == [place.node for place in story.made.places if place.pid_file.exists()]
    for place in story.made.places:
        given = (place.data_dir / "arguments").read_text().split("\n")
        assert [*story.made.flags(place), "--fsync", "never"] == given


def test_a_node_that_is_killed_is_reported_and_not_started_again(story: Story) -> None:
    """The others go on; who restarts what died hides what it died of. The line says how a person does it."""
    place = story.made.places[1]
    story.on_ready = lambda ready: os.kill(ready["nodes"][1]["pid"], signal.SIGKILL)
    story.on_word = lambda text: os.kill(os.getpid(), signal.SIGTERM) if "n2 was" in text else None
    status = story.run()

    assert 0 == status
    assert [
        "n2 was killed by SIGKILL; n1 and n3 go on;"
        f" start it again with: walrq serve --data-dir {place.data_dir} --listen {place.listen}",
        "SIGTERM: stopping n1 and n3",
    ] == story.said
    assert [] == story.signals("n2")


def test_a_node_that_ends_by_itself_is_reported_with_its_last_words(story: Story) -> None:
    """The reason is in its log; nobody should have to look for it."""
    story.on_ready = lambda ready: os.kill(ready["nodes"][0]["pid"], signal.SIGUSR1)
    story.on_word = lambda text: os.kill(os.getpid(), signal.SIGTERM) if "n1 ended" in text else None

    assert 0 == story.run()
    assert story.said[0].startswith("n1 ended with status 74: the disk is gone; n2 and n3 go on; start it again with: ")


def test_it_ends_when_no_node_is_left(story: Story) -> None:
    """A launcher of nothing would look like a cluster that runs."""

    def kill_all(ready: Mapping[str, Any]) -> None:
        for each in ready["nodes"]:
            os.kill(each["pid"], signal.SIGKILL)

    story.on_ready = kill_all

    assert launcher.EXIT_DESERTED == story.run()
    assert story.said[-1].endswith("; no node is left")


def test_a_node_that_does_not_start_ends_the_start(story: Story) -> None:
    """Its status and its last words are those of the command, and the nodes that did start are stopped."""
    story.plant("n3", "fail", "75")
    status = story.run()

    assert 75 == status
    assert [] == story.ready
    assert "n3 ended with status 75 before the cluster was ready: fatal DataDirLocked: it is in use" == story.said[0]
    assert "stopping n1 and n2" == story.said[1]


def test_last_words_are_those_of_this_life(story: Story) -> None:
    """A log collects all lives: an old mistake must not be shown as the new one."""
    story.made.places[0].log.write_text("an old mistake\n")
    story.on_ready = lambda ready: os.kill(ready["nodes"][0]["pid"], signal.SIGKILL)
    story.on_word = lambda text: os.kill(os.getpid(), signal.SIGTERM) if "n1 was" in text else None
    story.run()

    assert "an old mistake" not in story.said[0]
    assert "an old mistake\n" == story.made.places[0].log.read_text()


def test_a_second_signal_makes_nodes_exit_at_once_and_a_third_kills(story: Story) -> None:
    """As at a node itself: the first is polite, the second final; what cannot even hear is killed by the third."""
    story.plant("n1", "deaf")
    heard = story.made.base / "n1/heard"
    os.mkfifo(heard)

    def press_again() -> None:
        # Two signals at one moment are one.
        heard.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    impatient = threading.Thread(target=press_again)
    story.on_word = lambda text: impatient.start() if "stopping" in text else None
    status = story.run()
    impatient.join()

    assert 143 == status
    assert ["SIGTERM", "SIGTERM"] == story.signals("n1")
    assert re_said("again: n", story) == 1

    def never_continues(ready: Mapping[str, Any]) -> None:
        os.kill(ready["nodes"][0]["pid"], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGTERM)

    stopped = Story(story.made, on_ready=never_continues)
    stopped.on_word = lambda text: (
        os.kill(os.getpid(), signal.SIGTERM) if "stopping" in text or "exit at once" in text else None
    )
    status = stopped.run()

    assert 128 + signal.SIGKILL == status
    assert re_said("killing n1", stopped) == 1


def re_said(part: str, story: Story) -> int:
    """How many lines contain it."""
    return sum(part in text for text in story.said)


def test_nodes_do_not_outlive_a_launcher_that_is_killed(story: Story) -> None:
    """kill -9 of the launcher would leave processes that nobody knows of; the kernel tells them to stop."""
    require("linux")
    script = (
        "import sys, trio, json\nfrom pathlib import Path\nfrom walrq.local import launcher, layout\n"
        "def announce(ready): print(json.dumps([each['pid'] for each in ready['nodes']]), flush=True)\n"
        "made = layout.prepare(Path(sys.argv[1]))\n"
        "trio.run(lambda: launcher.run(made, (), say=print, announce=announce, program=sys.argv[2:]))\n"
    )
    root = Path(__file__).resolve().parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", script, str(story.made.base), *PROGRAM], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().strip(b"[]\n").split(b",")]
        # Of the nodes' ends a descriptor tells, without asking again and again.
        watched = [os.pidfd_open(pid) for pid in pids]
        process.kill()

    async def wait_gone() -> None:
        with trio.fail_after(SECONDS_MAX):
            for descriptor in watched:
                await trio.lowlevel.wait_readable(descriptor)

    try:
        trio.run(wait_gone)
    finally:
        for descriptor in watched:
            os.close(descriptor)

    assert [["SIGTERM"]] * 3 == [story.signals(place.node) for place in story.made.places]


def test_what_says_who_a_node_is_does_not_come_from_outside(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the shell would make three processes one node, and READY=1 is the launcher's to say."""
    kept: list[int] = []
    for name in ("NODE_ID", "DATA_DIR", "WALRQ_JOIN", "WALRQ_ADVERTISE", "WALRQ_CLUSTER_SECRET", "NOTIFY_SOCKET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("WALRQ_FSYNC", "never")
    seen: list[dict[str, str]] = []

    def look(ready: Mapping[str, Any]) -> None:
        for each in ready["nodes"]:
            raw = Path(f"/proc/{each['pid']}/environ").read_bytes().decode().split("\0")
            seen.append(dict(line.split("=", 1) for line in raw if line))
            kept.append(int((story.made.base / f"{each['node']}.pid").read_text()) - each["pid"])
        os.kill(os.getpid(), signal.SIGTERM)

    require("linux")
    story.on_ready = look
    story.run()

    assert (3, [0, 0, 0]) == (len(seen), kept)
    for environment in seen:
        assert "never" == environment["WALRQ_FSYNC"]
        assert {"NODE_ID", "DATA_DIR", "WALRQ_JOIN", "WALRQ_ADVERTISE", "NOTIFY_SOCKET"}.isdisjoint(environment)
        assert "WALRQ_CLUSTER_SECRET" not in environment


@pytest.mark.parametrize("flag", ["--data-dir", "--listen=:1", "--node-id", "--cluster-secret", "--join"])
def test_a_flag_that_differs_from_node_to_node_is_refused(flag: str) -> None:
    """It would be given to all of them."""
    name = flag.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{name} differs from node to node"):
        launcher.check_flags(["--fsync", "never", flag])
    launcher.check_flags(["--fsync", "never", "--max-connections=5"])
