"""Settings of a queue: one table of names, defaults and checks. All can be changed on a living queue.

Pure. A change is a command, so every replica uses a new value from the same entry on.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from walrq import limits
from walrq.errors import InvalidQueueName, InvalidSetting, UnknownSetting
from walrq.ids import check_queue_name
from walrq.queues.commands import SETTINGS_SINCE_2

DLQ_NONE: Final = "none"
OVERFLOWS: Final = ("reject", "drop_oldest")


@attrs.frozen
class Settings:
    """Current settings (milliseconds, bytes, messages). None = no bound, for `dlq` the default name.

    Attributes:
        visibility_ms: lease time of a poll that names none.
        max_deliveries: counted attempts before a message is dead.
        dlq: name of the dead-letter queue; None = `<queue>.dlq`; "none" = dead messages are parked in the queue.
        backoff_ms: wait after the first failed attempt; doubles with each.
        backoff_max_ms: its bound.
        delay_ms: delay of a push that names none.
        retention_ms: age at which messages pushed from now on are removed.
        max_length: messages in the queue, in all states but dead.
        max_bytes: their bytes.
        overflow: "reject" or "drop_oldest", at either bound.
        max_message_bytes: largest payload.
        dedup_window_ms: how long a deduplication id is remembered.
        group_limit: messages of one group in flight.
        max_in_flight: leased messages of the queue.
        paused: polls get nothing.
        max_hot_messages: messages of the queue whose metadata is in memory; None = what the node's window has room for.
        max_hot_bytes: their bytes.
    """

    visibility_ms: int = limits.VISIBILITY_MS_DEFAULT
    max_deliveries: int = limits.MAX_DELIVERIES_DEFAULT
    dlq: str | None = None
    backoff_ms: int = limits.BACKOFF_MS_DEFAULT
    backoff_max_ms: int = limits.BACKOFF_MS_MAX_DEFAULT
    delay_ms: int = 0
    retention_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "reject"
    max_message_bytes: int = limits.MESSAGE_BYTES_MAX_DEFAULT
    dedup_window_ms: int = limits.DEDUP_WINDOW_MS_DEFAULT
    group_limit: int = limits.GROUP_LIMIT_DEFAULT
    max_in_flight: int | None = None
    paused: bool = False
    max_hot_messages: int | None = None
    max_hot_bytes: int | None = None


DEFAULTS: Final = Settings()
NAMES: Final = tuple(field.name for field in attrs.fields(Settings))

_Check = Callable[[str, Any], Any]
# A value is shown in an error as it was given, but not all of a long one.
_SHOWN_CHARACTERS: Final = 60


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _integer(low: int, high: int, *, optional: bool = False) -> _Check:
    def check(name: str, given: Any) -> Any:
        if given is None and optional:
            return None
        if isinstance(given, bool) or not isinstance(given, int):
            unit = " of milliseconds" if name.endswith("_ms") else ""
            raise InvalidSetting(f"{name} is {_shown(given)}; it must be a whole number{unit}", setting=name)
        if not low <= given <= high:
            raise InvalidSetting(f"{name} is {given}, allowed are {low} to {high}", setting=name, low=low, high=high)
        return given

    return check


def _flag(name: str, given: Any) -> Any:
    if not isinstance(given, bool):
        raise InvalidSetting(f"{name} is {_shown(given)}; it must be true or false", setting=name)
    return given


def _choice(*allowed: str) -> _Check:
    def check(name: str, given: Any) -> Any:
        if given not in allowed:
            raise InvalidSetting(f"{name} is {_shown(given)}; it must be one of {', '.join(allowed)}", setting=name)
        return given

    return check


def _dlq(name: str, given: Any) -> Any:
    if given is None or given == DLQ_NONE:
        return given
    try:
        return check_queue_name(given)
    except InvalidQueueName as error:
        raise InvalidSetting(f"{name}: {error.text}", setting=name) from None


_UNBOUNDED: Final = (1 << 48) - 1

CHECKS: Final[Mapping[str, _Check]] = {
    "visibility_ms": _integer(limits.VISIBILITY_MS_MIN, limits.VISIBILITY_MS_MAX),
    "max_deliveries": _integer(1, limits.MAX_DELIVERIES_MAX),
    "dlq": _dlq,
    "backoff_ms": _integer(0, limits.DELAY_MS_MAX),
    "backoff_max_ms": _integer(0, limits.DELAY_MS_MAX),
    "delay_ms": _integer(0, limits.DELAY_MS_MAX),
    "retention_ms": _integer(1, limits.RETENTION_MS_MAX, optional=True),
    "max_length": _integer(1, _UNBOUNDED, optional=True),
    "max_bytes": _integer(1, _UNBOUNDED, optional=True),
    "overflow": _choice(*OVERFLOWS),
    "max_message_bytes": _integer(1, limits.MESSAGE_BYTES_LIMIT),
    "dedup_window_ms": _integer(1, limits.DEDUP_WINDOW_MS_MAX),
    "group_limit": _integer(1, limits.IN_FLIGHT_RUNS_MAX),
    "max_in_flight": _integer(1, limits.IN_FLIGHT_RUNS_MAX, optional=True),
    "paused": _flag,
    "max_hot_messages": _integer(1, _UNBOUNDED, optional=True),
    "max_hot_bytes": _integer(1, _UNBOUNDED, optional=True),
}


def check(settings: Mapping[str, Any], queue: str | None = None) -> dict[str, Any]:
    """The same settings, each value checked.

    Raises:
        UnknownSetting: a name that is not in the table, with the nearest one.
        InvalidSetting: a value out of range or of the wrong type; or a queue named as its own dead-letter queue.
    """
    checked: dict[str, Any] = {}
    for name, given in settings.items():
        rule = CHECKS.get(name)
        if rule is None:
            nearest = difflib.get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(NAMES)}"
            raise UnknownSetting(f"there is no queue setting {name!r}{hint}", nearest=nearest[0] if nearest else None)
        checked[name] = rule(name, given)
    if queue is not None and checked.get("dlq") == queue:
        raise InvalidSetting("dlq: a queue cannot be its own dead-letter queue", setting="dlq")
    return checked


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """`settings` with checked `changes` applied."""
    return attrs.evolve(settings, **changes)


def as_dict(settings: Settings) -> dict[str, Any]:
    """Plain values by name."""
    return attrs.asdict(settings)


def known_to_all(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that nodes of version 1 do not know, as long as nobody has set them."""
    return {name: given for name, given in settings.items() if name not in SETTINGS_SINCE_2 or given is not None}
