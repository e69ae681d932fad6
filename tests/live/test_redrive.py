"""Dead messages go back in small units, at the rate that was asked for, and can be stopped in between."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import walrq
from walrq import api
from walrq.errors import QueueNotFound
from walrq.limits import PEEK_MESSAGES_MAX, REDRIVE_PER_ENTRY
from walrq.live.redrive import SURVEY_MAX, Redrive, survey


@attrs.define
class Dead:
    """A server with so many dead messages, and a clock that only pauses move."""

    left: int
    sizes: list[int] = attrs.field(factory=list)
    at_s: float = 100.0
    pauses: list[float] = attrs.field(factory=list)

    def begin(self, request: api.Request) -> Any:
        return request

    def end(self, call: Any, kind: type[Any]) -> Any:
        assert isinstance(call, api.Redrive)
        count = min(call.limit, self.left)
        self.left -= count
        self.sizes.append(count)
        return api.Moved(count, self.left > 0)

    def now(self) -> float:
        return self.at_s

    def pause(self, for_s: float) -> None:
        assert for_s > 0
        self.pauses.append(for_s)
        self.at_s += for_s


def moved(work: Redrive, server: Dead) -> list[int]:
    """All steps of a redrive."""
    return list(work.run(server.now, server.pause))


@pytest.mark.parametrize(("rate", "unit"), [(0.5, 1), (3, 1), (50, 5), (1_000, 100), (1_000_000, REDRIVE_PER_ENTRY)])
def test_a_rate_is_kept_in_units_of_a_tenth_of_a_second(rate: float, unit: int) -> None:
    """Never faster: after t seconds at most rate * t and one unit have moved."""
    server = Dead(unit * 20)
    work = Redrive(server, "q", rate=rate)
    for done in work.run(server.now, server.pause):
        assert done <= rate * (server.at_s - 100) + unit + 1e-6

    assert (unit * 20, False) == (work.moved, work.more)
    assert {unit} == set(server.sizes)
    assert pytest.approx(unit * 19 / rate) == sum(server.pauses)


def test_time_that_a_slow_server_took_is_not_waited_for_again() -> None:
    """The rate is of the whole, not a pause between units."""
    server = Dead(30)
    work = Redrive(server, "q", rate=10)
    for _ in work.run(server.now, server.pause):
        server.at_s += 5

    assert [] == server.pauses


def test_without_a_rate_units_are_as_large_as_an_entry_and_nothing_waits() -> None:
    """As fast as it goes."""
    server = Dead(2 * REDRIVE_PER_ENTRY + 1)
    assert [REDRIVE_PER_ENTRY, 2 * REDRIVE_PER_ENTRY, 2 * REDRIVE_PER_ENTRY + 1] == moved(Redrive(server, "q"), server)
    assert [] == server.pauses


def test_a_limit_is_exact() -> None:
    """The last unit is cut, and what is left is said."""
    server = Dead(100)
    work = Redrive(server, "q", limit=12, rate=50)
    assert [5, 10, 12] == moved(work, server)
    assert work.more


def test_nothing_dead_is_one_question() -> None:
    """An answer of none ends it, whatever else it says."""
    server = Dead(0)
    assert [0] == moved(Redrive(server, "q"), server)


def test_who_stops_in_a_pause_has_moved_whole_units() -> None:
    """What is said to be moved is moved, the rest is not."""
    server = Dead(100)
    work = Redrive(server, "q", rate=10)

    def stop(for_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(work.run(server.now, stop))

    assert (1, 0, 99) == (work.moved, work.under_way, server.left)


def test_a_unit_that_was_not_answered_is_known_as_such() -> None:
    """It may have moved or not: neither is claimed."""

    class Silent(Dead):
        def end(self, call: Any, kind: type[Any]) -> Any:
            if self.sizes:
                raise KeyboardInterrupt
            return super().end(call, kind)

    server = Silent(100)
    work = Redrive(server, "q", rate=100)
    with pytest.raises(KeyboardInterrupt):
        list(work.run(server.now, server.pause))

    assert (10, 10) == (work.moved, work.under_way)


def kill(client: walrq.Client, queue: str, number: int, error: Exception | str, mode: Any = "reject") -> None:
    """So many messages of a queue die of this."""
    for start in range(0, number, 1_000):
        size = min(1_000, number - start)
        client.push_batch(queue, [b"x"] * size)
        for batch in client.poll_batch(queue, 600, size):
            client.nack(batch, mode, error=error)


def test_what_died_of_what_is_counted_by_reason_and_error(client: walrq.Client) -> None:
    """The table of a dry run: what a person decides by."""
    client.create_queue("causes", max_deliveries=1)
    kill(client, "causes", 3, ValueError("no"))
    kill(client, "causes", 5, TimeoutError("late"), "fail")
    kill(client, "causes", 2, "text only")
    before = client.stats()["commit_index"]
    causes, more = survey(client, "causes", None, None)
    some, further = survey(client, "causes", None, 4)
    filtered, _ = survey(client, "causes", api.Filter(error_type="TimeoutError"), None)

    assert [("failed", "TimeoutError", 5), ("rejected", "ValueError", 3), ("rejected", None, 2)] == [
        (cause.reason, cause.error_type, cause.count) for cause in causes
    ]
    assert causes[0].first_at <= causes[0].last_at
    assert (False, True) == (more, further)
    assert 4 == sum(cause.count for cause in some)
    assert [5] == [cause.count for cause in filtered]
    assert before == client.stats()["commit_index"], "nothing was written"
    with pytest.raises(QueueNotFound):
        survey(client, "no-such-queue", None, None)


def test_a_survey_of_very_many_stops_and_says_so(client: walrq.Client) -> None:
    """Listing is dear for the server: beyond a bound it is not worth it."""
    kill(client, "crowd", SURVEY_MAX + PEEK_MESSAGES_MAX, ValueError("no"))
    causes, more = survey(client, "crowd", None, None)

    assert [SURVEY_MAX] == [cause.count for cause in causes]
    assert more


def test_order_and_rest_are_as_promised_on_a_real_server(client: walrq.Client) -> None:
    """In order of death, behind what waits; the rest can be sent later."""
    for name in "abcd":
        client.push("real", name)
        client.nack(client.poll("real"), "reject")
    client.push("real", "waits")
    work = Redrive(client, "real", limit=2, rate=1_000_000)
    list(work.run(lambda: 0.0, lambda for_s: None))

    assert (2, True, 2) == (work.moved, work.more, client.show_queue("real").dead)
    assert [b"waits", b"a", b"b"] == [each.payload for each in client.poll("real")]
