"""Numbers of a node as HTTP shows them: metrics, probes, the ancestor's statistics, the dashboard's overview."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio

from walrq import __version__, api
from walrq.access.principals import Principal
from walrq.doors.census import SORTS, Census, Totals, Wanted
from walrq.doors.opening import Entrance
from walrq.errors import InvalidArgument, QueueNotFound, WalrqError
from walrq.http import dtq
from walrq.http.metrics import MEDIA, Metrics, Snapshot
from walrq.http.replies import TEXT, Response, of_json
from walrq.http.routes import texts
from walrq.limits import LIST_QUEUES_MAX, QUEUES_MAX, REDRIVE_PER_ENTRY
from walrq.locks.doorman import Guard
from walrq.protocol.json_replies import reply_to_json
from walrq.protocol.json_requests import BY_NAME, request_from_json

_CLUSTER_S: Final = 0.9
# An overview is shown again for so long, or for this many times the time that it took.
_KEPT_S: Final = 0.02
_SHARE: Final = 50
_SEARCH_MAX: Final = 255
# Of a body in a preview.
_PREVIEW_BYTES: Final = 2_048


class Views:
    """See the module. One per door.

    Attributes:
        measured: the histograms.
    """

    def __init__(self, entrance: Entrance, connections: Callable[[], int]) -> None:
        """`connections`: how many this door has."""
        self._connections = connections
        self._entrance = entrance
        self._gate = entrance.gate
        self._node = entrance.node
        self._census = Census(entrance.node.broker)
        self.measured = Metrics()
        # Overviews and until when they are good enough.
        self._kept: dict[Wanted, tuple[float, dict[str, Any]]] = {}
        self._cluster: dict[str, Any] = {}
        self._cluster_until_s = 0.0

    # --- probes and metrics ---------------------------------------------------------------------------------
    async def livez(self) -> Response:
        """The event loop runs: that is all."""
        return Response(200, b"ok\n", TEXT)

    async def readyz(self) -> Response:
        """Whether this node takes requests now, itself or by its leader."""
        node = self._node
        checks = {
            "not_draining": not node.broker.draining,
            "leader_known": node.broker.is_serving or node.replica.leader not in (None, node.node_id),
            "storage": node.replica.stats()["status"] == "normal",
        }
        ready = all(checks.values())
        return of_json({"ready": ready, "node": node.node_id, "checks": checks}, 200 if ready else 503)

    async def metrics(self) -> Response:
        """One scrape."""
        totals = await self._census.totals()
        stats = await self._gate.call(api.Stats())
        assert isinstance(stats, api.StatsReply)
        machine = self._node.broker.machine
        values = dict(stats.values)
        # Desks are ports too, one of them this request's.
        values["connections"] += self._connections() - self._gate.desks
        values["in_flight"] -= 1
        snapshot = Snapshot(
            stats=values,
            queues=self._census.rows(),
            others=totals.others,
            totals=(totals.ready, totals.leased, totals.delayed, totals.dead),
            pushed=totals.pushed,
            delivered=totals.delivered,
            acked=totals.acked,
            hot_messages=machine.tally.messages,
        )
        return Response(200, self.measured.text(snapshot), MEDIA)

    # --- the ancestor's -------------------------------------------------------------------------------------
    async def dtq_stats(self) -> Response:
        """GET /api/stats."""
        consistency = await self._consistency()
        totals = await self._census.totals()
        rows = await self._census.for_dtq(totals.letters)
        return of_json(dtq.stats(totals.delayed, rows), headers={"walrq-consistency": consistency})

    async def dtq_action(self, action: str, queue: str | None, guard: Guard | None = None) -> Response:
        """POST /api/dlq/requeue and /api/dlq/purge; a queue that is not there has nothing dead."""
        if not queue:
            return dtq.refused(400, "the parameter queue is missing")
        count = 0
        try:
            if action == "purge":
                done = await self._ask(api.PurgeDead(queue), guard)
                assert isinstance(done, api.Done)
                count = done.count
            else:
                more = True
                while more:
                    moved = await self._ask(api.Redrive(queue, REDRIVE_PER_ENTRY), guard)
                    assert isinstance(moved, api.Moved)
                    count += moved.count
                    more = moved.more
        except QueueNotFound:
            pass
        return dtq.done(action, queue, count)

    # --- the dashboard's ------------------------------------------------------------------------------------
    async def _ask(self, request: api.Request, guard: Guard | None) -> api.Reply:
        """The reply to a request of somebody who may not ask everything."""
        if guard is None:
            return await self._gate.call(request)
        guard.admit(request)
        try:
            return await self._gate.call(request, guard=guard)
        finally:
            guard.leave()

    def wanted(self, query: Mapping[str, str], viewer: Principal | None = None) -> Wanted:
        """Which queues a page or stream shows.

        Args:
            viewer: who is shown the queues that he may look at; None = who may look at all.

        Raises:
            InvalidArgument: a parameter that is not known, or out of range.
        """
        known = {"search", "sort", "offset", "limit"}
        for name in query:
            if name not in known:
                raise InvalidArgument(
                    f"there is no parameter {name[:80]!r}; known are {', '.join(sorted(known))}", field=name[:80]
                )
        sort = query.get("sort", "name")
        if sort != "name" and sort not in SORTS:
            raise InvalidArgument(f"sort is {sort[:80]!r}, allowed are name, {', '.join(SORTS)}", field="sort")
        search = query.get("search", "")
        if len(search) > _SEARCH_MAX:
            raise InvalidArgument(f"search has more than {_SEARCH_MAX} characters", field="search", limit=_SEARCH_MAX)
        return Wanted(
            search=search,
            sort=sort,
            offset=_number(query, "offset", 0, 0, QUEUES_MAX),
            limit=_number(query, "limit", 50, 0, LIST_QUEUES_MAX),
            viewer=viewer,
        )

    async def overview(self, query: Mapping[str, str], viewer: Principal | None = None) -> Response:
        """GET /v1/overview."""
        return of_json(await self.overview_of(self.wanted(query, viewer)))

    async def overview_of(self, wanted: Wanted) -> dict[str, Any]:
        """Totals, the cluster, and a page of queues, as of now or a moment ago: who wants the same is told the same."""
        clock = self._node.clock
        kept = self._kept.get(wanted)
        if kept is not None and clock.monotonic_s() < kept[0]:
            return kept[1]
        consistency = await self._consistency()
        totals = await self._census.totals()
        cluster = await self._cluster_picture()
        now_s = clock.monotonic_s()
        matches, queues = self._census.page(wanted)
        wall_ms = clock.read().wall_ms
        found = {
            "node": self._node.node_id,
            "version": __version__,
            "consistency": consistency,
            "at_s": now_s,
            "wall_ms": wall_ms,
            "totals": _shown(totals if wanted.viewer is None else self._census.totals_of(wanted.viewer, totals)),
            "cluster": cluster,
            "matches": matches,
            "offset": wanted.offset,
            "queues": [self._census.row(queue, totals.letters, wall_ms) for queue in queues],
        }
        until_s = now_s + max(_KEPT_S, (clock.monotonic_s() - now_s) * _SHARE)
        self._kept = {key: each for key, each in self._kept.items() if each[0] > now_s}
        self._kept[wanted] = (until_s, found)
        return found

    async def preview(self, query: Mapping[str, str], guard: Guard | None = None) -> Response:
        """GET /v1/preview: a page of messages, or of dead ones, with the beginnings of their bodies."""
        state = query.get("state", "ready")
        op = "list_dead" if state == "dead" else "peek"
        given = {name: text for name, text in query.items() if op == "peek" or name != "state"}
        request = request_from_json(texts(BY_NAME[op], given), op)
        page = await self._ask(request, guard)
        assert isinstance(page, api.Page)
        messages = []
        for seen in page.messages:
            shown = seen.payload
            if shown is not None and len(shown) > _PREVIEW_BYTES:
                shown = _beginning(shown)
            reply = reply_to_json(api.Page((attrs.evolve(seen, payload=shown),)))  # type: ignore[misc]
            message = reply["messages"][0]
            message["bytes"] = None if seen.payload is None else len(seen.payload)
            message["cut"] = 0 if shown is None or len(shown) == len(seen.payload or b"") else len(shown)
            messages.append(message)
        return of_json({"messages": messages, "next": page.next}, headers={"walrq-consistency": "consistent"})

    async def _consistency(self) -> str:
        return "consistent" if await self._gate.confirm() else "local"

    async def _cluster_picture(self) -> dict[str, Any]:
        """Who is there, as the leader knows it; as this node does while none can be asked."""
        now_s = self._node.clock.monotonic_s()
        if now_s >= self._cluster_until_s:
            # Whoever comes meanwhile is shown what was known a moment ago.
            self._cluster_until_s = now_s + _CLUSTER_S
            found: api.Reply = self._node.members.state()
            if not self._gate.leads and self._node.replica.leader is not None:
                with trio.move_on_after(_CLUSTER_S):
                    try:
                        found = await self._gate.call_leader(api.ClusterStatus())
                    except WalrqError:
                        pass  # its own view is shown
            self._cluster = reply_to_json(found)
        return self._cluster


def _beginning(payload: bytes) -> bytes:
    """The first bytes, no character cut in two if they are text."""
    cut = payload[:_PREVIEW_BYTES]
    for spare in range(1, 4):
        if cut[-spare] & 0xC0 != 0x80:
            # The last character begins here; it is whole if the next byte begins another.
            return cut if payload[_PREVIEW_BYTES] & 0xC0 != 0x80 else cut[:-spare]
    return cut


def _shown(totals: Totals) -> dict[str, Any]:
    return {
        "at_s": totals.at_s,
        "queues": totals.queues - totals.dead_queues,
        "ready": totals.ready,
        "leased": totals.leased,
        "delayed": totals.delayed,
        "dead": totals.dead,
        "counters": [totals.pushed, totals.delivered, totals.acked],
    }


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and least <= int(text) <= most):
        raise InvalidArgument(f"{name} is {text[:80]!r}, allowed are {least} to {most}", field=name, limit=most)
    return int(text)
