"""Who is in the cluster, for operators: status, add, remove, hand over; and new nodes that ask to be taken in.

Every node tells what it knows. Changes are the leader's: one at a time, each answered when it is committed and not
before. They are idempotent, because whoever asked may have to ask again at another leader:

    add      a newcomer becomes a learner (probed first: the right name, no cluster of its own, a disk to bind it to);
             once it has caught up it is promoted. A member that is there already goes on from where it is
    remove   refused while those left could not decide anything: a majority of them must be there
    hand over   answered once another leads

A node that was started with `join` is taken in as a learner, nothing more: whether it votes is for `add` to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import trio

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.driver import Driver
from walrq.daemon.peers import TICK_MS, TIMING, Peers
from walrq.daemon.pollers import Call, Port, to_failed
from walrq.errors import (
    Code,
    InvalidArgument,
    LeadershipLost,
    NotLeader,
    NotReady,
    Overloaded,
    WalrqError,
    WrongCluster,
    WrongNode,
)
from walrq.protocol.peer import Admission, PeerHello
from walrq.raft.membership import Member
from walrq.raft.quorum import majority
from walrq.replica import Replica

log = logging.getLogger("walrq.members")

# A member that was not heard for so many ticks is not counted on.
_SILENT_TICKS: Final = 2 * TIMING.election
# A hand-over is decided within an election time-out; then the old leader goes on.
_TRANSFER_S: Final = 2 * TIMING.election * TICK_MS / 1000
# A commit that takes longer is waited for by whoever asks again.
_COMMIT_S_MAX: Final = 30.0
_REQUESTS_MAX: Final = 16


class Members:
    """See the module. One per node; `run` is a task of the core."""

    def __init__(self, replica: Replica, driver: Driver, broker: Broker, peers: Peers | None) -> None:
        self._replica = replica
        self._driver = driver
        self._broker = broker
        self._peers = peers
        self._node_id = replica.config.node_id
        # Where clients reach a node that has no peers to tell it to.
        self.endpoint: str | None = None
        self._nursery: trio.Nursery | None = None
        self._count = 0
        # Held while a change is on its way to be committed.
        self._changing = trio.Lock()
        if peers is not None:
            peers.admit = self.admit
        broker.serve(
            {
                api.ClusterStatus: self._status,
                api.AddNode: self._submit,
                api.RemoveNode: self._submit,
                api.TransferLeadership: self._submit,
            },
            on_closed=_nothing,
        )

    # --- requests -----------------------------------------------------------------------------------------
    def _status(self, call: Call, request: api.ClusterStatus) -> None:
        self._broker.answer(call, self.state())

    def _submit(self, call: Call, request: Any) -> None:
        if not self._replica.is_leader:
            raise self._broker.not_leader()
        if self._nursery is None:
            raise NotReady("the node is still starting")
        if self._count >= _REQUESTS_MAX:
            raise Overloaded(
                f"{_REQUESTS_MAX} changes of the cluster are under way", limit="changes", retry_after_ms=1_000
            )
        self._count += 1
        self._nursery.start_soon(self._serve, call, request)

    async def run(self) -> None:
        """Carry out changes, for ever; an error of one is the answer to it."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def _serve(self, call: Call, request: Any) -> None:
        try:
            await self._do(call, request)
            reply: api.Reply = self.state()
        except WalrqError as error:
            reply = to_failed(self._broker.not_leader() if isinstance(error, NotLeader) else error)
        except Exception as error:
            # A mistake of ours costs one request, not the node.
            log.exception("request_failed %s: %s", type(request).__name__, error)
            reply = api.Failed(int(Code.INTERNAL), f"the node failed at this request: {error}")
        finally:
            self._count -= 1
        self._broker.answer(call, reply)
        self._broker.flush()

    async def _do(self, call: Call, request: Any) -> None:
        if isinstance(request, api.AddNode):
            await self._add(call.port, request)
        elif isinstance(request, api.RemoveNode):
            await self._remove(request.node)
        else:
            await self._transfer(request.target)

    # --- status -------------------------------------------------------------------------------------------
    def state(self) -> api.ClusterState:
        """The cluster as this node knows it."""
        known = self._replica.cluster_state()
        members = []
        for node, member in sorted(known["members"].items()):
            is_leader = node == known["leader"]
            members.append(
                api.MemberState(
                    node=node,
                    role="leader" if is_leader else "voter" if member["voter"] else "learner",
                    address=member["address"],
                    endpoint=self._endpoint_of(node),
                    status=self._status_of(node, member, known),
                    match_index=member["match_index"],
                    heard_ms=self._heard_ms(node, member),
                )
            )
        return api.ClusterState(
            node=known["node"],
            cluster=known["cluster"],
            leader=known["leader"],
            term=known["term"],
            commit_index=known["commit_index"],
            applied_index=known["applied_index"],
            members=tuple(members),
        )

    def _endpoint_of(self, node: str) -> str | None:
        return self._peers.endpoint_of(node) if self._peers is not None else self.endpoint

    def _heard_ms(self, node: str, member: dict[str, Any]) -> int | None:
        heard = member["heard_ticks"]
        return None if node == self._node_id or heard is None else heard * TICK_MS

    def _status_of(self, node: str, member: dict[str, Any], known: dict[str, Any]) -> str:
        if node == self._node_id:
            return "recovering" if known["status"] == "recovering" else "normal"
        if not self._is_linked(node):
            return "unreachable"
        if member["recovering"]:
            return "recovering"
        if member["state"] == "snapshot":
            return "receiving a snapshot"
        if member["match_index"] is not None and known["commit_index"] - member["match_index"] > _LAG_SHOWN:
            return "catching up"
        return "normal"

    def _is_linked(self, node: str) -> bool:
        return self._peers is not None and self._peers.is_linked(node)

    # --- changes ------------------------------------------------------------------------------------------
    async def _add(self, port: Port, request: api.AddNode) -> None:
        peers = self._need_peers()
        node = request.node
        configuration = self._replica.configuration
        known = configuration.voters.get(node) or configuration.learners.get(node)
        if known is None:
            if request.address is None:
                raise InvalidArgument(
                    f"node {node!r} is no member and has not asked to become one: start it on an empty"
                    f" directory with --join {peers.address}, or give its address",
                    field="address",
                )
            await self._take_in(await self._probe(peers, node, request.address), request.address)
        if node in self._replica.configuration.voters or request.learner:
            return
        await self._promote(node, port)

    def _need_peers(self) -> Peers:
        if self._peers is None:
            raise InvalidArgument(
                f"node {self._node_id!r} cannot be reached by other nodes: start it with --peer-listen HOST:PORT"
                " and --cluster-secret-file FILE first",
                field="node",
            )
        return self._peers

    async def _probe(self, peers: Peers, node: str, address: str) -> PeerHello:
        if node == self._node_id:
            raise InvalidArgument(f"node {node!r} is this very node", field="node")
        try:
            hello = await peers.mesh.probe(address)
        except NotReady as error:
            raise NotReady(
                f"no node answers there ({error.text}): start it with --join {peers.address}", field="address"
            ) from None
        if hello.node != node:
            raise WrongNode(f"node {hello.node!r} answers at {address}, not {node!r}", field="node")
        if hello.cluster not in ("", self._replica.cluster_id):
            raise WrongCluster(
                f"node {node!r} belongs to cluster {hello.cluster}, not to {self._replica.cluster_id}: a node that has"
                " a cluster of its own cannot join another; start it with an empty directory and --join",
                field="cluster",
            )
        return hello

    async def _take_in(self, hello: PeerHello, address: str) -> None:
        """Make a newcomer a learner."""
        replica = self._replica

        def add() -> int:
            if hello.node in replica.configuration.nodes:
                return replica.configuration_index
            return replica.add_learner(Member(hello.node, address, hello.disk_uuid))

        index = await self._change(add)
        log.info("member_added node=%s address=%s index=%d", hello.node, address, index)

    async def _promote(self, node: str, port: Port) -> None:
        """Wait until a learner has caught up, however long that takes, and let it vote."""
        while port.open:
            try:
                index = await self._change(lambda: self._replica.promote(node), seconds=0)
            except NotReady:
                self._check_office()
                # Once a tick is enough: how much it lacks changes with every answer of every follower.
                await trio.sleep(TICK_MS / 1000)
                continue
            log.info("member_promoted node=%s index=%d", node, index)
            return
        log.info("promotion_given_up node=%s: whoever asked for it is gone", node)

    async def _remove(self, node: str) -> None:
        configuration = self._replica.configuration
        left = configuration.without(node)
        there = [each for each in left.voters if each == self._node_id or self._is_heard(each)]
        if node in configuration.voters and len(there) < majority(len(left.voters)):
            missing = sorted(set(left.voters) - set(there))
            raise NotReady(
                f"without {node!r} the cluster would have the voters {', '.join(left.voters)}, of which"
                f" {', '.join(missing)} cannot be reached: it could not decide anything; remove those first",
                field="node",
            )
        index = await self._change(lambda: self._replica.remove(node))
        log.info("member_removed node=%s index=%d", node, index)

    def _is_heard(self, node: str) -> bool:
        heard = self._replica.cluster_state()["members"][node]["heard_ticks"]
        return heard is not None and heard <= _SILENT_TICKS

    async def _transfer(self, target: str | None) -> None:
        if target == self._node_id:
            return
        await self.hand_over(target, _TRANSFER_S)

    def _is_anybody_there(self) -> bool:
        return any(self._is_linked(node) for node in self._replica.configuration.voters if node != self._node_id)

    async def hand_over(self, target: str | None, seconds: float) -> str:
        """Let another node lead; its name.

        Raises:
            NotLeader: this node does not lead. InvalidArgument: there is nobody.
            NotReady: the other did not take office within `seconds`, or there is nobody left who could; this one
            goes on.
        """
        replica = self._replica
        chosen = replica.transfer(target)
        self._driver.pump()
        with trio.move_on_after(seconds):
            while replica.is_leader or replica.leader is None:
                # A link that is lost is no change; when all nodes are stopped together, nobody needs to wait.
                if not self._is_anybody_there():
                    raise NotReady("no other voter can be reached", field="target")
                await self._something_changed()
                if replica.accepts:
                    break
        if replica.is_leader or replica.leader is None:
            raise NotReady(f"node {chosen!r} did not take over within {seconds:g} s", field="target")
        log.info("handed_over to=%s term=%d", replica.leader, replica.term)
        return replica.leader

    async def _change(self, change: Callable[[], int], *, seconds: float = _COMMIT_S_MAX) -> int:
        """Make a change and return its index when it is committed; begun within `seconds`: one at a time.

        Raises:
            NotReady: not begun. LeadershipLost: begun, and this node cannot tell what becomes of it.
            What `change` raises.
        """
        async with self._changing:
            index = await self._begin(change, seconds)
            await self._committed(index)
            return index

    async def _begin(self, change: Callable[[], int], seconds: float) -> int:
        with trio.move_on_after(seconds):
            while True:
                try:
                    index = change()
                except NotReady as error:
                    # The last change, or the first entry of this office, is on its way.
                    refused = error
                else:
                    self._driver.pump()
                    return index
                await self._something_changed()
                self._check_office()
        raise refused

    async def _something_changed(self) -> None:
        """Return when something may have changed; a tick is the longest that it stays unnoticed."""
        with trio.move_on_after(TICK_MS / 1000):
            await self._driver.wait_change()

    def _check_office(self) -> None:
        if self._broker.draining or not self._replica.is_leader:
            raise self._broker.not_leader()

    async def _committed(self, index: int) -> None:
        """Return when the entry at `index`, of this office, is committed.

        Raises:
            LeadershipLost: the office ended before.
        """
        replica = self._replica
        term = replica.term
        with trio.move_on_after(_COMMIT_S_MAX):
            while replica.commit_index < index:
                if replica.term != term or not replica.is_leader:
                    break
                await self._driver.wait_change()
        if replica.commit_index < index or replica.term != term:
            raise LeadershipLost(
                "the change of the cluster is on its way, and this node cannot tell what becomes of it"
            )

    # --- nodes that ask to be taken in --------------------------------------------------------------------
    async def admit(self, hello: PeerHello) -> Admission:
        """A new node asks to become a member: as a learner it is.

        Raises:
            NotLeader: ask the leader; its peer address is in the details.
            WrongNode: another node has that name. Overloaded, NotReady: later.
        """
        replica = self._replica
        if not replica.is_leader:
            configuration = replica.configuration
            leader = replica.leader
            known = configuration.voters.get(leader or "")
            raise NotLeader(
                f"node {leader!r} leads" if known is not None else "no leader is known yet",
                leader=known.address if known is not None else None,
                leader_node=leader,
            )
        configuration = replica.configuration
        known = configuration.voters.get(hello.node) or configuration.learners.get(hello.node)
        if known is not None and known.disk_uuid and known.disk_uuid != hello.disk_uuid:
            raise WrongNode(
                f"node {hello.node!r} is a member already, with another data directory; choose another node id, or"
                " remove that member first",
                field="node",
            )
        if known is None:
            if not hello.address:
                raise InvalidArgument("a node that joins must say where its peers reach it", field="address")
            await self._take_in(hello, hello.address)
        return Admission(replica.cluster_id, replica.configuration)


# Entries that a follower may lack and still be called well.
_LAG_SHOWN: Final = 10_000


def _nothing(port: Port) -> None:
    """A change goes on when whoever asked for it went away: it is as good as asked for."""
