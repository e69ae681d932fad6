"""Which modules of the specification are bound to the code, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.spec.queue_twin import QueueBinding
from tests.spec.raft_twin import RaftBinding
from tests.spec.session_twin import SessionBinding
from tests.spec.wal_twin import WalBinding
from tests.spec.walking import Binding

BINDINGS: Mapping[str, Callable[[Mapping[str, Any]], Binding]] = {
    "Queue": QueueBinding,
    "Raft": RaftBinding,
    "Session": SessionBinding,
    "Wal": WalBinding,
}
