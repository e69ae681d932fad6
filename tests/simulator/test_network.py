"""The links of the simulator do what they are told, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

from walrq.raft.messages import Heartbeat, decode
from walrq.simulator.network import SimNetwork, Weather


class World:
    """Everything happens at once, in order."""

    def __init__(self) -> None:
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.marks: list[str] = []

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        self.later.append((delay_us, action))

    def mark(self, name: str, times: int = 1) -> None:
        self.marks.append(name)

    def say(self, text: str) -> None:
        """Nobody listens."""

    def run(self) -> None:
        """Until nothing is left."""
        while self.later:
            self.later.pop(0)[1]()


class Peer:
    """A node that writes down what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.told: list[str] = []

    def hear(self, data: bytes) -> None:
        self.told.append(f"heard {decode(data).sender}")

    def link_up(self, peer: str) -> None:
        self.told.append(f"up {peer}")

    def link_lost(self, peer: str) -> None:
        self.told.append(f"lost {peer}")


def network(weather: Weather | None = None, *names: str) -> tuple[SimNetwork, World, dict[str, Peer]]:
    """A network of nodes that are up, and know it."""
    world = World()
    peers = {name: Peer(name) for name in names or ("a", "b", "c")}
    made = SimNetwork(world, peers, random.Random(1), weather or Weather())  # type: ignore[arg-type]
    made.changed()
    world.run()
    for peer in peers.values():
        peer.told.clear()
    return made, world, peers


def beat(sender: str, receiver: str) -> Heartbeat:
    """A message."""
    return Heartbeat("x", sender, receiver, 1, 0, 1)


def test_a_message_arrives_unless_it_is_blocked_when_sent_or_when_it_would_arrive() -> None:
    """Cut in mid-flight counts as cut."""
    made, world, peers = network()
    made.send(beat("a", "b"))
    world.run()
    assert peers["b"].told == ["heard a"]

    made.send(beat("a", "b"))
    made.blocked.add(("a", "b"))
    world.run()
    made.send(beat("a", "b"))
    world.run()
    assert peers["b"].told == ["heard a"]


def test_a_cut_one_way_leaves_the_other_open() -> None:
    """Who hears nobody may be heard."""
    made, world, peers = network()
    made.cut(["a"], outbound=False)
    world.run()
    for name in "abc":
        peers[name].told.clear()
    made.send(beat("a", "b"))
    made.send(beat("b", "a"))
    world.run()

    assert peers["b"].told == ["heard a"]
    assert peers["a"].told == []


def test_links_come_up_with_both_ends_and_both_directions() -> None:
    """A transport connects when it can, and then only tells what still is."""
    made, world, peers = network()
    peers["c"].is_up = False
    made.changed()
    peers["c"].is_up = True
    made.changed()
    world.run()

    assert "up c" in peers["a"].told and "up c" in peers["b"].told
    assert sorted(peers["c"].told) == ["up a", "up b"]
    assert "lost c" not in peers["a"].told[-1:]


def test_bad_weather_loses_doubles_and_speaks_with_foreign_tongues() -> None:
    """Each share is one."""
    made, world, peers = network(Weather(drop=1.0))
    made.send(beat("a", "b"))
    world.run()
    assert peers["b"].told == [] and world.marks == ["message lost"]

    made, world, peers = network(Weather(double=1.0, foreign=1.0))
    made.send(beat("a", "b"))
    world.run()
    assert peers["b"].told == ["heard a"] * 3
    assert sorted(world.marks) == ["message doubled", "message of another cluster"]


def test_a_strobe_ends_healed() -> None:
    """It cuts and heals in turn, and leaves nothing behind."""
    made, world, _ = network()
    made.strobe(["a"], 4)
    seen = []
    while world.later:
        seen.append(bool(made.blocked))
        world.later.pop(0)[1]()

    assert True in seen and False in seen
    assert not made.blocked
