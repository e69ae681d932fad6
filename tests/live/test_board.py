"""What `walrq top` shows, and what keys do to it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.live.test_rates import info, look
from walrq import api
from walrq.api import QueueInfo
from walrq.live.board import SORTS, Board
from walrq.live.rates import Rates


def board(*queues: QueueInfo, **changes: Any) -> Board:
    """A board that looked twice at these queues."""
    rates = Rates()
    rates.feed(look(1, *[info(queue.name, queue.uid) for queue in queues]))
    made = Board("127.0.0.1:50051", **changes)
    made.take(rates.feed(look(2, *queues, fsync="always", connections=3, disk_bytes=1 << 20)))
    return made


def lines(made: Board, width: int = 80, height: int = 24) -> list[str]:
    """The picture."""
    return made.draw(width, height).plain.split("\n")


def names(made: Board) -> list[str]:
    """The queues as they are listed."""
    return [flow.info.name for flow in made.rows()]


MANY = [info(f"queue-{number:03}", number + 1, ready=number) for number in range(100)]


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (20, 8), (300, 100)])
@pytest.mark.parametrize(
    "queues", [[], MANY, [info("ein langer Name 名前" * 12, ready=10**15)]], ids=["0", "100", "wide"]
)
def test_a_picture_fits_its_terminal_exactly(size: tuple[int, int], queues: list[QueueInfo]) -> None:
    """One line too many would scroll; one cell too many would wrap."""
    for made in (
        Board("h:1"),
        board(*queues),
        board(*queues, paused=True),
        board(*queues, typing=True, filter="x" * 99),
    ):
        drawn = lines(made, *size)
        assert size[1] == len(drawn)
        assert max(map(cell_len, drawn)) <= size[0]


def test_it_shows_node_queues_and_totals() -> None:
    """What somebody who is woken at night looks for."""
    made = board(
        info("mail", 1, ready=5, delayed=1, leased=2, dead=4, pushed=10, delivered=8, acked=6, bytes=99),
        info("orders", 2, ready=1, pushed=2),
    )
    drawn = lines(made)

    assert "walrq top  n  127.0.0.1:50051  up 2.0s  fsync always" == drawn[0].rstrip()
    assert "2 queues  3 connections" in drawn[1]
    assert "disk 1.0M" in drawn[1]
    assert "6 ready  1 delayed  2 leased  4 dead  12 push/s  8 out/s  6 ack/s" == drawn[2].rstrip()
    assert ["mail", "5", "1", "2", "4", "10", "8", "6", "-"] == drawn[5].split()[:9]
    assert drawn[-2].startswith("mail  99B")
    assert "q quit" in drawn[-1]


def with_cluster(leader: str | None) -> Board:
    """A board whose node is n1 of three."""
    state = api.ClusterState(
        "n1",
        "c",
        leader,
        3,
        100,
        100,
        (
            api.MemberState("n1", "leader", "h:1", match_index=100, status="normal"),
            api.MemberState("n2", "voter", "h:2", match_index=93, status="normal"),
            api.MemberState("n3", "voter", "h:3", match_index=20, status="unreachable"),
        ),
    )
    rates = Rates()
    rates.feed(look(1))
    made = Board("127.0.0.1:50051")
    made.take(rates.feed(attrs.evolve(look(2, *MANY), cluster=state)))
    return made


@pytest.mark.parametrize("size", [(80, 24), (20, 8)])
def test_a_cluster_has_one_line_more(size: tuple[int, int]) -> None:
    """Who leads, who is behind, who is away; and the picture still fits its terminal."""
    drawn = lines(with_cluster("n1"), 80)
    leaderless = lines(with_cluster(None), 80)
    small = with_cluster("n1").draw(*size).plain.split("\n")

    assert "n1 leads  n2 7 behind  n3 unreachable" == drawn[3].rstrip()
    assert leaderless[3].startswith("no leader  n1 ")
    assert "queue" in drawn[5]
    assert (24, 24) == (len(drawn), len(leaderless))
    assert max(9, size[1]) >= len(small)
    assert max(map(cell_len, small)) <= size[0]


def test_wide_terminals_see_more() -> None:
    """Columns that fit are not kept back."""
    queue = info("mail", parked=3, bytes=2_048)

    assert "parked" not in lines(board(queue), 80)[4]
    assert "parked" in lines(board(queue), 140)[4]


def test_an_outage_is_said_and_the_numbers_stay() -> None:
    """Also where the first line has no room: whether numbers are of now matters more."""
    made = board(info("mail", ready=5))
    made.away = True

    assert lines(made)[0].endswith("reconnecting ...")
    assert "reconnecting" in lines(made, 40)[0]
    assert "mail" in lines(made)[5]
    assert "connecting to h:1" in lines(Board("h:1"))[0]


def test_every_column_can_be_sorted_by() -> None:
    """s goes round through all of them, numbers largest first, equal ones by name; S goes back; r turns round."""
    made = board(info("a", 1, ready=1), info("b", 2, ready=3), info("c", 3, ready=3))
    assert ["a", "b", "c"] == names(made)
    made.press("s")
    assert ("ready", ["b", "c", "a"]) == (made.sort, names(made))
    assert "↓ready" in lines(made)[4]
    made.press("r")
    assert ["a", "b", "c"] == names(made)
    made.press("S")
    made.press("r")
    assert "queue" == made.sort
    for name in (*SORTS[1:], "queue"):
        made.press("s")
        assert name == made.sort
        assert 3 == len(names(made))


def test_the_filter_is_typed_kept_and_cleared() -> None:
    """While it is typed, q is a letter."""
    made = board(info("mail", 1), info("quick", 2))
    for key in ("/", "q", "u", "x", "backspace"):
        assert made.press(key)
    assert ["quick"] == names(made)
    assert "filter: qu" in lines(made)[-1]
    made.press("enter")
    assert (False, "qu") == (made.typing, made.filter)
    assert "filter 'qu'" in lines(made)[-1]
    made.press("escape")

    assert ["mail", "quick"] == names(made)
    assert not made.press("q")


def test_the_selected_queue_stays_selected_and_in_sight() -> None:
    """By name, not by place: what moves down the list takes the cursor along."""
    made = board(*MANY)
    for key in ("end", "up", "page_up"):
        made.press(key)
    assert "queue-088" == made.selected
    assert any("queue-088" in line for line in lines(made)[5:-2])
    made.press("s")
    assert any("queue-088" in line for line in lines(made)[5:-2])
    assert lines(made)[-2].startswith("queue-088")
    for key in ("home", "k", "k"):
        made.press(key)
    assert "queue-099" == made.selected
    made.press("/")
    made.press("0")
    made.press("0")

    assert lines(made)[-2].startswith("queue-009"), "the first when the selected one is filtered away"


def test_paused_means_that_numbers_stand_still() -> None:
    """To be read, and copied."""
    rates = Rates()
    made = Board("h:1")
    made.take(rates.feed(look(1, info("mail", ready=1))))
    made.press("p")
    made.take(rates.feed(look(2, info("mail", ready=2))))
    assert "paused" in lines(made)[0]
    assert 1 == made.rows()[0].info.ready
    made.press("p")
    made.take(rates.feed(look(3, info("mail", ready=3))))

    assert 3 == made.rows()[0].info.ready


KEYS = [
    *"qsSrpjkgG /xyé",
    "up",
    "down",
    "page_up",
    "page_down",
    "home",
    "end",
    "enter",
    "escape",
    "backspace",
    "\x1b[Z",
]


@given(st.lists(st.sampled_from(KEYS), max_size=30), st.integers(1, 200), st.integers(1, 60))
def test_no_key_breaks_the_picture(pressed: list[str], width: int, height: int) -> None:
    """Whatever is pressed, in whatever size."""
    made = board(*MANY[:20])
    for key in pressed:
        made.press(key)
        drawn = lines(made, width, height)
        assert max(height, 8) == len(drawn)
        assert max(map(cell_len, drawn)) <= max(width, 20)


def test_on_paper_every_queue_is_listed_and_nothing_is_selected() -> None:
    """`--once` has no keys, and no end of the screen."""
    made = board(*MANY)
    drawn = made.listing(80)

    assert 5 + len(MANY) == len(drawn.plain.split("\n"))
    assert "q quit" not in drawn.plain
    assert not any("reverse" in str(span.style) for span in drawn.spans)


def test_the_disk_is_shown_beside_what_it_may_take() -> None:
    """A disk that fills is only news if it does more than it may."""
    rates = Rates()
    made = Board("127.0.0.1:50051")
    for uptime_s in (1, 2):
        made.take(rates.feed(look(uptime_s, disk_bytes=1, disk_used_bytes=3 << 20, disk_bound_bytes=40 << 20)))
    assert "disk 3.0M of 40.0M" in lines(made)[1]
