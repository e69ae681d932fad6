"""Logs on standard error: lines for people on a terminal, JSON lines otherwise.

stdlib logging under `walrq.*`. A message begins with its event name, then `name=value` fields; the JSON form
keeps the text and adds the event by itself, and the fields given as `extra=`.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final, Literal, TextIO

LogFormat = Literal["auto", "human", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")


class _Human(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")


# What every record has; the rest was given with `extra=`: ids of a worker's message, or whatever an application adds.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        line = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": text.split(" ", 1)[0].rstrip(":"),
            "text": text,
        }
        line.update((name, each) for name, each in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(stream: TextIO, level: str, form: LogFormat) -> logging.Handler:
    """Send everything under `walrq` to `stream`; the handler is returned so that it can be removed again."""
    handler = logging.StreamHandler(stream)
    human = form == "human" or (form == "auto" and stream.isatty())
    handler.setFormatter(_Human() if human else _Json())
    logger = logging.getLogger("walrq")
    logger.setLevel(level.upper())
    logger.propagate = False
    logger.addHandler(handler)
    return handler


def take_down(handler: logging.Handler) -> None:
    """Undo `set_up`; whoever read the stream may be gone, as a terminal that was closed.

    Then what is still buffered for it goes nowhere: Python would try once more at the process's end, fail, and replace
    its exit status.
    """
    logging.getLogger("walrq").removeHandler(handler)
    assert isinstance(handler, logging.StreamHandler)
    try:
        handler.stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, handler.stream.fileno())
        os.close(nowhere)
