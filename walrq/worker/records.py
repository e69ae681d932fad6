"""Ids on every line of the log: in the text for people, as fields of the record for programs.

The library adds no handlers; payloads and arguments are never written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from walrq.client.messages import Message


@attrs.frozen
class Ids:
    """Names one delivery of one message; as text `task=... queue=... message=... delivery=...`.

    Attributes:
        fields: the same as values: queue, message_id, delivery, task.
    """

    fields: Mapping[str, Any]

    def __str__(self) -> str:
        given = self.fields
        task = f"task={given['task']} " if given.get("task") else ""
        return f"{task}queue={given['queue']} message={given['message_id']} delivery={given['delivery']}"


def ids(message: Message, task: str | None = None) -> Ids:
    """The ids of a delivery."""
    return Ids({"queue": message.queue, "message_id": message.message_id, "delivery": message.delivery, "task": task})


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """What `context.log` is: the text gets the ids behind it, the record gets them as fields."""

    def __init__(self, logger: logging.Logger, named: Ids) -> None:
        super().__init__(logger, dict(named.fields))
        self._named = str(named)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As of any logger."""
        if self.isEnabledFor(level):
            # Without arguments a text is not formatted, so that a doubled sign would stay doubled.
            named = self._named.replace("%", "%%") if args else self._named
            kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, f"{msg} {named}", *args, **kwargs)
