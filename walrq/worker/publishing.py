"""The client behind `task.enqueue`: made on first use, shared by all threads, started anew in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

from walrq.client.blocking import Client, connect
from walrq.client.config import ClientConfig


class Publisher:
    """One blocking client of one worker's tasks.

    The client itself starts over after a fork; what has to be looked after here is the lock, which another thread may
    have held at that moment.
    """

    def __init__(self, url: str | Sequence[str] | None, config: ClientConfig | None) -> None:
        self._url = url
        self._config = config
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._goodbye: weakref.finalize[..., Publisher] | None = None
        _publishers.add(self)

    def client(self) -> Client:
        """The connected client.

        Raises:
            ServerUnreachable: nobody answered; the next call tries again.
            ConfigError: the address cannot be used.
        """
        client = self._client
        if client is not None:
            return client
        with self._lock:
            if self._client is None:
                client = connect(self._url, self._config)
                # Said when the worker is dropped, or when the interpreter ends.
                self._goodbye = weakref.finalize(self, client.close)
                self._client = client
            return self._client

    def close(self) -> None:
        """Close the connection, if there is one; the next use makes another."""
        with self._lock:
            goodbye, self._goodbye, self._client = self._goodbye, None, None
        if goodbye is not None:
            goodbye()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def close_all() -> None:
    """Close every publisher's connection; the next use makes another. For whoever ends the server: tests."""
    for publisher in list(_publishers):
        publisher.close()


def _after_fork() -> None:
    for publisher in list(_publishers):
        publisher._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
