"""What goes wrong while a seed is under load: faults of machines, of the network, of the group, drawn one by one.

A seed has a focus, so that some seeds are mostly about disks, others about elections. Whatever is done, each
acknowledged datum keeps enough intact copies to be recovered (`may_impair`): damage and wipes strike a minority of
every group that any node believes in, and strike again only when that is repaired. Availability is nobody's right
before the end: faults may well silence a majority for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from walrq.errors import WalrqError
from walrq.raft.membership import Member
from walrq.raft.quorum import majority
from walrq.replica import Replica
from walrq.simulator.clock import MS
from walrq.simulator.damage import damage
from walrq.simulator.node import Node

if TYPE_CHECKING:
    from walrq.simulator.cluster import Cluster

# Nodes beyond those of the beginning that a seed may add.
NEWCOMERS_MAX: Final = 3
# How often each fault is drawn: on one node alone, and among several.
ALONE: Final = {
    "arm": 6,
    "error": 1,
    "fill": 2,
    "slow": 1,
    "jump": 1,
    "plug": 2,
    "kill": 1,
    "stop": 1,
    "sleep": 1,
}
TOGETHER: Final = ALONE | {
    "arm": 4,
    "sleep": 1,
    "kill": 3,
    "pause": 2,
    "stick": 1,
    "cut": 3,
    "isolate": 3,
    "one-way": 3,
    "strobe": 1,
    "heal": 5,
    "transfer": 2,
    "group": 2,
    "damage": 1,
    "wipe": 1,
    "blackout": 1,
}
# What a seed has more of than others.
FOCUS: Final[dict[str, dict[str, int]]] = {
    "everything": {},
    "leaders": {"isolate": 8, "transfer": 6, "pause": 6, "kill": 6, "heal": 8},
    "disks": {"arm": 8, "damage": 8, "wipe": 3, "stick": 4, "slow": 4, "blackout": 3},
    "links": {"cut": 8, "one-way": 8, "strobe": 5, "heal": 12},
    "groups": {"group": 20, "transfer": 4, "wipe": 3, "cut": 3, "heal": 6},
    "laggards": {"isolate": 6, "pause": 3, "damage": 3, "heal": 6},
}


class Nemesis:
    """See the module."""

    def __init__(self, cluster: Cluster, fault_ms: int) -> None:
        self._cluster = cluster
        self._draw = cluster.draw("faults")
        self._mean_us = fault_ms * MS
        self.focus = self._draw.choice(sorted(FOCUS)) if len(cluster.nodes) > 1 else "everything"
        weights = ALONE if len(cluster.nodes) == 1 else {**TOGETHER}
        if len(cluster.nodes) > 1:
            for kind, more in FOCUS[self.focus].items():
                weights[kind] = weights.get(kind, 0) + more
        self._kinds = list(weights)
        self._weights = list(weights.values())
        self._acts: dict[str, Callable[[Node], None]] = {
            "arm": lambda node: node.hardware.arm_power_loss(),
            "error": lambda node: node.hardware.arm_error(),
            "fill": lambda node: node.hardware.fill_disk(),
            "slow": lambda node: node.hardware.slow_disk(),
            "jump": self._jump,
            "plug": lambda node: node.lose_power("pulled the plug"),
            "kill": lambda node: node.kill(),
            "stop": lambda node: node.stop(),
            "sleep": self._sleep,
            "pause": lambda node: node.pause(self._draw.choice((60, 150, 400)) * MS),
            "stick": lambda node: node.hardware.stick(self._draw.randrange(50, 600) * MS),
            "cut": self._cut,
            "isolate": self._isolate,
            "one-way": self._one_way,
            "strobe": self._strobe,
            "heal": lambda _node: cluster.network.heal(),
            "transfer": self._transfer,
            "group": self._group,
            "damage": self._damage,
            "wipe": self._wipe,
            "blackout": self._blackout,
        }
        # Nodes to bring in, and to take out, in place of those that were lost.
        self._wanted: list[str] = []
        self._unwanted: list[str] = []
        self._newcomers = 0
        self._refusal = ""

    # --- the plan -------------------------------------------------------------------------------------------
    def next(self) -> None:
        """Draw the moment of the next fault."""
        self._cluster.at(int(self._draw.expovariate(1 / self._mean_us)), self._strike)

    def _strike(self) -> None:
        cluster = self._cluster
        if cluster.now_us >= cluster.load_until_us:
            return
        node = self._draw.choice([node for node in cluster.nodes.values() if not node.gone])
        kind = self._draw.choices(self._kinds, self._weights)[0]
        leader = cluster.leader
        if leader is not None and self._draw.random() < 0.3:
            node = leader
        if node.is_up:
            self._acts[kind](node)
        self.next()

    def _jump(self, node: Node) -> None:
        self._cluster.mark("clock jumped")
        step_ms = node.hardware.clock.jump(self._cluster.now_us)
        self._cluster.say(f"{node.name}'s wall clock jumps by {step_ms} ms")

    def _sleep(self, _node: Node) -> None:
        """Everybody sleeps for longer than a session may idle; rare, for all that runs is over afterwards."""
        if self._draw.random() < 0.3:
            self._cluster.sleep(61 * 60 * 1000)

    # --- links ----------------------------------------------------------------------------------------------
    def _side(self) -> list[str]:
        names = [name for name, node in self._cluster.nodes.items() if not node.gone]
        return self._draw.sample(names, self._draw.randrange(1, max(2, len(names))))

    def _cut(self, _node: Node) -> None:
        side = self._side()
        self._cluster.mark("partition")
        self._cluster.say(f"cut off: {', '.join(side)}")
        self._cluster.network.cut(side)

    def _isolate(self, node: Node) -> None:
        self._cluster.mark("partition")
        self._cluster.say(f"cut off: {node.name}")
        self._cluster.network.cut([node.name])

    def _one_way(self, node: Node) -> None:
        self._cluster.mark("one-way partition")
        network, draw = self._cluster.network, self._draw
        match draw.randrange(3):
            case 0:
                other = draw.choice(list(self._cluster.nodes))
                self._cluster.say(f"{other} does not hear {node.name}")
                network.block(node.name, other)
            case 1:
                self._cluster.say(f"nobody hears {node.name}")
                network.cut([node.name], inbound=False)
            case _:
                self._cluster.say(f"{node.name} hears nobody")
                network.cut([node.name], outbound=False)

    def _strobe(self, _node: Node) -> None:
        side = self._side()
        self._cluster.mark("strobe")
        self._cluster.say(f"cut off and healed again and again: {', '.join(side)}")
        self._cluster.network.strobe(side, 2 * self._draw.randrange(1, 5))

    # --- the group ------------------------------------------------------------------------------------------
    def _transfer(self, _node: Node) -> None:
        leader = self._cluster.leader
        if leader is not None:
            others = [name for name in leader.configuration.voters if name != leader.name]
            if others:
                target = self._draw.choice(others)
                if self._ask(leader, f"hand over to {target}", lambda replica: replica.transfer(target)):
                    self._cluster.mark("leadership transferred")

    def _group(self, _node: Node) -> None:
        leader = self._cluster.leader
        if leader is None:
            return
        now = leader.configuration
        choices: list[Callable[[], bool]] = [lambda: self._add(leader)]
        choices += [lambda name=name: self._promote(leader, name) for name in now.learners] * 2
        choices += [
            lambda name=name: self._remove(leader, name)  # type: ignore[misc]
            for name in now.nodes
            if name not in now.voters or self._may_leave(leader, name)
        ]
        self._draw.choice(choices)()

    def _may_leave(self, leader: Node, name: str) -> bool:
        """Whether those who stay are three, or two and whole: a group of two with a broken disk is at its end."""
        stay = [other for other in leader.configuration.voters if other != name]
        intact = [other for other in stay if self._cluster.nodes[other].is_intact]
        return len(stay) >= 2 and len(intact) >= majority(len(stay)) and (len(stay) > 2 or len(intact) == 2)

    def _ask(self, leader: Node, text: str, call: Callable[[Replica], object]) -> bool:
        try:
            leader.operate(call)
        except WalrqError as error:
            refusal = f"{leader.name} is asked to {text}: {error.text}"
            if refusal != self._refusal:
                self._cluster.say(refusal)
            self._refusal = refusal
            return False
        self._cluster.say(f"{leader.name} is asked to {text}")
        return True

    def _add(self, leader: Node, name: str | None = None) -> bool:
        if name is None:
            spare = [
                node.name
                for node in self._cluster.nodes.values()
                if node.is_intact and node.name not in leader.configuration.nodes
            ]
            if self._newcomers >= NEWCOMERS_MAX and not spare:
                return False
            name = self._draw.choice(spare) if spare else self._cluster.newcomer().name
            self._newcomers += not spare
        node = self._cluster.nodes[name]
        member = Member(name, f"{name}.example:1", node.hardware.uuid)
        if self._ask(leader, f"add {name}", lambda replica: replica.add_learner(member)):
            self._cluster.mark("learner added")
            return True
        return False

    def _promote(self, leader: Node, name: str) -> bool:
        if self._ask(leader, f"promote {name}", lambda replica: replica.promote(name)):
            self._cluster.mark("learner promoted")
            return True
        return False

    def _remove(self, leader: Node, name: str) -> bool:
        if self._ask(leader, f"remove {name}", lambda replica: replica.remove(name)):
            self._cluster.mark("voter removed")
            return True
        return False

    # --- disks ----------------------------------------------------------------------------------------------
    def may_impair(self, name: str) -> bool:
        """Whether every group that anybody believes in keeps an intact majority without that node."""
        for configuration in self._cluster.configurations():
            voters = set(configuration.voters)
            intact = {
                other for other in voters if other in self._cluster.nodes and self._cluster.nodes[other].is_certain
            }
            if len(intact - {name}) < majority(len(voters)):
                return False
        return True

    def _damage(self, node: Node) -> None:
        if not node.is_intact or not self.may_impair(node.name):
            return
        node.kill()
        node.damaged = True
        what = damage(node.hardware.disk, self._draw)
        self._cluster.mark("file damaged")
        self._cluster.say(f"{node.name}: {what}")

    def _wipe(self, node: Node) -> None:
        if node.is_intact and len(node.configuration.voters) > 2 and self.may_impair(node.name):
            node.kill()
            self._cluster.replace(node)

    def _blackout(self, _node: Node) -> None:
        self._cluster.mark("all lost power")
        for node in list(self._cluster.nodes.values()):
            if node.is_up:
                node.lose_power("everybody does")

    # --- repair ---------------------------------------------------------------------------------------------
    def replace(self, lost: Node, newcomer: Node) -> None:
        """Somebody has to tell the group that a node is gone and another one takes its place."""
        if lost.name in self._wanted:
            self._wanted.remove(lost.name)
        self._unwanted.append(lost.name)
        self._wanted.append(newcomer.name)
        self._cluster.at(20 * MS, self._repair)

    def _repair(self) -> None:
        """One step towards the group that is wanted, if there is somebody to ask. Goes on after the faults."""
        leader = self._cluster.leader
        if leader is not None and not self._cluster.is_minimal:
            now = leader.configuration
            self._wanted = [name for name in self._wanted if name not in now.voters]
            self._unwanted = [name for name in self._unwanted if name in now.nodes]
            if self._wanted:
                name = self._wanted[0]
                (self._promote if name in now.learners else self._add)(leader, name)
            elif self._unwanted:
                self._remove(leader, self._unwanted[0])
        if self._wanted or self._unwanted:
            self._cluster.at(60 * MS, self._repair)
