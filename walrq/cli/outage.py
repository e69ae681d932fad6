"""Says at a terminal that a command waits for its server, and that the server is back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from walrq.cli import output

if TYPE_CHECKING:
    from walrq.client.blocking import Client

PATIENCE_S: Final = 1.0


class Outage:
    """Looks at a client now and then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._away_since: float | None = None
        self._server = ""

    def look(self) -> None:
        """Say so when the server has been away for more than a second, and when it is back after that."""
        if self._client.connected:
            if self._server:
                output.note(f"walrq: {self._server} is back")
            self._away_since, self._server = None, ""
            return
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        elif not self._server and now - self._away_since > PATIENCE_S:
            self._server = str(self._client.endpoint)
            output.note(f"walrq: waiting for {self._server} ...")
