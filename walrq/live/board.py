"""What `walrq top` shows, and what a key does to it.

A board is fed readings and keys and draws itself for any size of terminal: the node in three lines, the cluster in one
more when it has one, the queues as a table of which a window around the selected one is seen, the selected queue's
settings, the keys.

Never: asks a server, reads a key, writes to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from walrq.live import members
from walrq.live.rates import Flow, Reading, age, count, size, sparkline


@attrs.frozen
class Column:
    """One column of the table.

    Attributes:
        name: what `--sort` calls it, and its title.
        width: cells, without the gap before it.
        shown_from: narrower terminals do without it.
        sort: what rows are ordered by; None counts as less than everything.
        text: what a cell shows.
        style: of a cell.
    """

    name: str
    width: int
    shown_from: int
    sort: Callable[[Flow], Any]
    text: Callable[[Flow], str]
    style: Callable[[Flow], str] = lambda flow: ""


def _number(name: str, width: int, shown_from: int, style: str = "") -> Column:
    return Column(
        name,
        width,
        shown_from,
        lambda flow: getattr(flow.info, name),
        lambda flow: count(getattr(flow.info, name)),
        lambda flow: style if getattr(flow.info, name) else "dim",
    )


def _rate(title: str, field: str) -> Column:
    return Column(
        title,
        6,
        0,
        lambda flow: getattr(flow, field),
        lambda flow: count(getattr(flow, field)),
        lambda flow: "" if getattr(flow, field) else "dim",
    )


COLUMNS: Final = (
    _number("ready", 6, 0, "green"),
    _number("delayed", 7, 0, "cyan"),
    _number("leased", 6, 0, "yellow"),
    _number("dead", 5, 0, "bold red"),
    _number("parked", 6, 110, "bold red"),
    _rate("push/s", "push_s"),
    _rate("out/s", "deliver_s"),
    _rate("ack/s", "ack_s"),
    Column("oldest", 6, 0, lambda flow: flow.oldest_s, lambda flow: age(flow.oldest_s)),
    Column("bytes", 6, 110, lambda flow: flow.info.bytes, lambda flow: size(flow.info.bytes)),
)
SORTS: Final = ("queue", *(column.name for column in COLUMNS))
_BY_NAME: Final = {column.name: column for column in COLUMNS}

NAME_WIDTH_MIN: Final = 10
SPARK_WIDTH_MIN: Final = 6
SPARK_WIDTH_MAX: Final = 40
DETAIL_SPARK_WIDTH: Final = 20
# Lines that are no queue: three of the node, one empty, the titles, the selected queue, the keys.
FRAME_LINES: Final = 7
PAGE_ROWS: Final = 10

HELP: Final = "q quit  s sort  r reverse  j/k select  / filter  p pause"


def ordered(flows: tuple[Flow, ...], sort: str, reverse: bool, text: str = "") -> list[Flow]:
    """The queues whose name contains `text`: by name, or by a number, the largest first."""
    found = [flow for flow in flows if text in flow.info.name]
    column = _BY_NAME.get(sort)
    if column is None:
        return sorted(found, key=lambda flow: flow.info.name, reverse=reverse)
    sort_key = column.sort

    def rank(flow: Flow) -> tuple[bool, Any]:
        number = sort_key(flow)
        return (number is not None, number or 0)

    # Equal numbers stay in order of name, whichever way round.
    found.sort(key=lambda flow: flow.info.name)
    return sorted(found, key=rank, reverse=not reverse)


@attrs.define
class Board:
    """See the module.

    Attributes:
        server: the address that was asked for.
        sort: a name of SORTS.
        reverse: the other way round.
        filter: shown are queues whose name contains this.
        typing: keys go into the filter.
        paused: readings are not taken over.
        away: the server does not answer.
        selected: name of the queue under the cursor.
        reading: the latest that was taken over.
    """

    server: str
    sort: str = "queue"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    paused: bool = False
    away: bool = False
    selected: str | None = None
    reading: Reading | None = None
    _first_row: int = 0

    # --- what happens ---------------------------------------------------------------------------------------
    def take(self, reading: Reading) -> None:
        """The node answered."""
        self.away = False
        if not self.paused:
            self.reading = reading

    def press(self, key: str) -> bool:
        """A key, by name (`up`, `enter`, ...) or as the character it makes; False when it ends the program."""
        if self.typing:
            self._type(key)
            return True
        match key:
            case "q":
                return False
            case "s" | "S":
                step = 1 if key == "s" else -1
                self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]
            case "r":
                self.reverse = not self.reverse
            case "p" | " ":
                self.paused = not self.paused
            case "/":
                self.typing = True
            case "escape":
                self.filter = ""
            case "j" | "down":
                self._move(1)
            case "k" | "up":
                self._move(-1)
            case "page_down":
                self._move(PAGE_ROWS)
            case "page_up":
                self._move(-PAGE_ROWS)
            case "home" | "g":
                self._move(-len(self.rows()))
            case "end" | "G":
                self._move(len(self.rows()))
            case _:
                pass  # a key without a meaning
        return True

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move(self, step: int) -> None:
        rows = self.rows()
        if rows:
            at = self._selected_row(rows)
            self.selected = rows[min(max(0, at + step), len(rows) - 1)].info.name

    # --- what is seen ---------------------------------------------------------------------------------------
    def rows(self) -> list[Flow]:
        """The queues as they are listed."""
        return [] if self.reading is None else ordered(self.reading.flows, self.sort, self.reverse, self.filter)

    def _selected_row(self, rows: list[Flow]) -> int:
        """The place of the selected queue; the first when it is none of these."""
        return next((at for at, flow in enumerate(rows) if flow.info.name == self.selected), 0)

    def draw(self, width: int, height: int) -> Text:
        """The whole picture: exactly `height` lines of at most `width` cells (at least 20 by 8)."""
        rows = self.rows()
        frame = FRAME_LINES + len(self._cluster())
        width, height = max(width, 20), max(height, frame + 1)
        room = height - frame
        at = self._selected_row(rows)
        self._first_row = max(min(self._first_row, at, max(0, len(rows) - room)), at - room + 1, 0)
        window = rows[self._first_row : self._first_row + room]
        lines = [*self._head(width, rows), Text("")]
        columns = [column for column in COLUMNS if width >= column.shown_from]
        name_width, spark_width = self._widths(width, columns, rows)
        lines.append(self._titles(columns, name_width, spark_width))
        for flow in window:
            line = self._row(flow, columns, name_width, spark_width)
            if flow is rows[at]:
                line.stylize("reverse")
            lines.append(line)
        lines += [Text("")] * (room - len(window))
        lines.append(self._detail(rows[at], spark_width == 0) if rows else Text(""))
        lines.append(self._foot(len(rows)))
        return _joined(lines, width)

    def listing(self, width: int) -> Text:
        """Node and queues on paper: every queue, nothing selected, no keys."""
        rows = self.rows()
        columns = [column for column in COLUMNS if width >= column.shown_from]
        widths = self._widths(width, columns, rows)
        lines = [*self._head(width, rows), Text("")]
        lines.append(self._titles(columns, *widths))
        lines += [self._row(flow, columns, *widths) for flow in rows]
        return _joined(lines, width)

    def _head(self, width: int, rows: list[Flow]) -> list[Text]:
        if self.reading is None:
            waiting = "reconnecting" if self.away else "connecting"
            return [Text.assemble(("walrq top", "bold"), f"  {waiting} to {self.server} ..."), Text(""), Text("")]
        stats = self.reading.look.stats
        state = ("  reconnecting ...", "bold red") if self.away else ("  paused", "bold yellow") if self.paused else ""
        node = Text.assemble(
            ("walrq top", "bold"),
            f"  {stats.get('node', '?')}  {self.server}  up {age(self.reading.look.uptime_s)}"
            f"  fsync {stats.get('fsync', '?')}",
        )
        first = Text.assemble(node, state)
        # Whether the numbers are of now matters more than the rest of the line.
        if cell_len(first.plain) > width and state:
            node.truncate(max(0, width - cell_len(state[0])), overflow="ellipsis")
            first = Text.assemble(node, state)
        return [
            first,
            Text(
                f"{_many(len(rows), 'queue')}  {_many(stats.get('connections'), 'connection')}"
                f"  {_many(stats.get('parked_polls'), 'waiting poll')}  {count(self.reading.turns_s)} turns/s"
                f"  disk {_disk(stats)}"
            ),
            self._totals(rows),
            *self._cluster(),
        ]

    def _cluster(self) -> list[Text]:
        """One line about the nodes beside this one; none when it is alone."""
        state = None if self.reading is None else self.reading.look.cluster
        if state is None:
            return []
        line = Text()
        if state.leader is None:
            line.append("no leader", "bold red")
        for member in state.members:
            well = member.status in (members.NORMAL, "")
            line.append("  " if line.plain else "")
            line.append(members.words(state, member), "" if well else "bold red")
        return [line]

    def _totals(self, rows: list[Flow]) -> Text:
        def add(field: str) -> str:
            return count(sum(getattr(flow.info, field) for flow in rows))

        def rate(field: str) -> str:
            known = [found for flow in rows if (found := getattr(flow, field)) is not None]
            return count(sum(known)) if known else "-"

        return Text(
            f"{add('ready')} ready  {add('delayed')} delayed  {add('leased')} leased  {add('dead')} dead"
            f"  {rate('push_s')} push/s  {rate('deliver_s')} out/s  {rate('ack_s')} ack/s"
        )

    def _widths(self, width: int, columns: list[Column], rows: list[Flow]) -> tuple[int, int]:
        """Cells for the queue's name and for the sparkline (0: no room for one)."""
        left = width - sum(column.width + 1 for column in columns)
        longest = max((cell_len(_label(flow)) for flow in rows), default=0)
        name_width = max(NAME_WIDTH_MIN, min(max(longest, NAME_WIDTH_MIN), left))
        spark_width = left - name_width - 2
        return name_width, min(spark_width, SPARK_WIDTH_MAX) if spark_width >= SPARK_WIDTH_MIN else 0

    def _titles(self, columns: list[Column], name_width: int, spark_width: int) -> Text:
        line = Text()
        line.append(set_cell_size(self._title("queue"), name_width), "bold underline")
        for column in columns:
            # The mark of the sorted column may stand in the gap.
            title = self._title(column.name)
            line.append(" " * (column.width + 1 - len(title)))
            line.append(title, "bold underline")
        if spark_width:
            line.append("  ")
            line.append(set_cell_size("pushes", spark_width), "bold underline")
        return line

    def _title(self, name: str) -> str:
        if name != self.sort:
            return name
        down = (name != "queue") != self.reverse
        return f"{'↓' if down else '↑'}{name}"

    def _row(self, flow: Flow, columns: list[Column], name_width: int, spark_width: int) -> Text:
        line = Text()
        name = _label(flow)
        if cell_len(name) > name_width:
            name = set_cell_size(name, name_width - 1).rstrip() + "…"
        line.append(set_cell_size(name, name_width), "dim" if flow.info.settings.get("paused") else "")
        for column in columns:
            line.append(" ")
            line.append(column.text(flow).rjust(column.width), column.style(flow))
        if spark_width:
            line.append("  ")
            line.append(sparkline(flow.pushes, spark_width), "blue")
        return line

    def _detail(self, flow: Flow, spark: bool) -> Text:
        info = flow.info
        settings = info.settings
        parts = [
            f"lease {age((settings.get('visibility_ms') or 0) / 1000)}",
            _many(settings.get("max_deliveries"), "attempt"),
        ]
        dlq = settings.get("dlq")
        parts.append(f"dead to {info.name + '.dlq' if dlq is None else dlq}")
        parts += [f"{info.parked} parked"] if info.parked else []
        parts += [f"at most {settings['max_length']}"] if settings.get("max_length") is not None else []
        parts += ["paused"] if settings.get("paused") else []
        line = Text.assemble((info.name, "bold"), f"  {size(info.bytes)}  " + "  ".join(parts))
        if spark:
            # The table had no room for it.
            line.append("  ")
            line.append(sparkline(flow.pushes, DETAIL_SPARK_WIDTH), "blue")
        return line

    def _foot(self, shown: int) -> Text:
        if self.typing:
            return Text.assemble(
                ("filter: ", "bold"), self.filter, ("▏", "bold"), ("  enter keeps it, esc clears it", "dim")
            )
        line = Text(HELP, "dim")
        if self.filter:
            line = Text.assemble((f"filter {self.filter!r} (esc clears it)  ", "bold yellow"), line)
        return line


def _label(flow: Flow) -> str:
    return f"{flow.info.name} (paused)" if flow.info.settings.get("paused") else flow.info.name


def _joined(lines: list[Text], width: int) -> Text:
    """The lines, none wider than `width`."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(lines)


def _many(number: float | None, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _disk(stats: Mapping[str, Any]) -> str:
    """What is used, and of how much at most if the node tells."""
    bound = stats.get("disk_bound_bytes")
    if bound is None:
        return size(stats.get("disk_bytes"))
    return f"{size(stats.get('disk_used_bytes'))} of {size(bound)}"
