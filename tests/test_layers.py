"""Who may import what: one table, and an ast walk that holds the tree to it.

A file's path says what it may do. The four pure modules at the top may be imported by all; the folders
raft/, queues/ and protocol/ decide and never act; storage/ blocks and knows neither roles nor verbs;
replica/ composes the three; daemon/ drives; client/ sees bytes and the pure modules; cli/ is thin.
A new folder needs a row here first.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "walrq"

# Anything through which time, chance or the outside world could enter code that must be a function of its
# input. (`io` is not here for BytesIO's sake, `sys` for byteorder's; open() is caught by name below.)
WORLD = frozenset(
    """
    asyncio concurrent ctypes datetime fcntl glob http logging mmap multiprocessing os pathlib platform queue
    random resource sched secrets select selectors shutil signal socket socketserver ssl subprocess tempfile
    threading time urllib uuid warnings
    """.split()
)
EVENT_LOOPS = frozenset({"trio", "anyio", "asyncio", "sniffio", "trio_websocket"})
CLOCKS = frozenset({"time", "datetime", "sched"})
CHANCE = frozenset({"random", "secrets", "uuid"})
TERMINAL = frozenset({"typer", "click", "rich", "rich_click"})
THIRD_PARTY = frozenset({"attr", "attrs", "cbor2", "crc32c"}) | EVENT_LOOPS | TERMINAL
# Calls of built-ins that a deterministic module has no use for. hash() differs with PYTHONHASHSEED.
WORLDLY_BUILTINS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "hash"})

PURE_MODULES = frozenset({"walrq.api", "walrq.errors", "walrq.ids", "walrq.limits"})


@attrs.frozen
class Layer:
    """What the modules of one folder (or one top-level module) may import."""

    walrq: frozenset[str]  # modules or folders of walrq; its own folder is always allowed
    third_party: frozenset[str] = frozenset({"attrs"})
    forbidden: frozenset[str] = frozenset()  # standard-library modules
    deterministic: bool = False  # no built-in that reaches the world, no hash()
    may_await: bool = False


def deciding(*walrq: str, third_party: frozenset[str] = frozenset({"attrs"})) -> Layer:
    """A pure layer: same input, same output, on any machine."""
    return Layer(walrq=PURE_MODULES | frozenset(walrq), third_party=third_party, forbidden=WORLD, deterministic=True)


CODEC = frozenset({"attrs", "cbor2", "crc32c"})
LAYERS: dict[str, Layer] = {
    # pure
    "walrq.api": deciding(),
    "walrq.errors": deciding(),
    "walrq.ids": deciding(),
    "walrq.limits": deciding(),
    "walrq.raft": deciding(third_party=CODEC),
    "walrq.far": deciding(third_party=CODEC),
    # who may do what; it writes the audit log
    "walrq.access": Layer(walrq=PURE_MODULES, third_party=CODEC, forbidden=WORLD - {"logging"}, deterministic=True),
    "walrq.queues": deciding("walrq.access.book", "walrq.far", third_party=CODEC),
    "walrq.protocol": deciding(third_party=CODEC),
    # pure but for the files of web/, which it reads once: HTTP <-> api
    "walrq.resp": deciding(),
    "walrq.http": Layer(
        walrq=PURE_MODULES | {"walrq.protocol"},
        third_party=frozenset({"attrs", "prometheus_client"}),
        forbidden=EVENT_LOOPS | CLOCKS | CHANCE | {"socket", "threading", "subprocess"},
    ),
    # blocking
    "walrq.storage": Layer(
        walrq=PURE_MODULES | {"walrq.sparse"},
        third_party=CODEC,
        forbidden=EVENT_LOOPS | CLOCKS | CHANCE | {"socket"},
    ),
    # segments that are written whole beside the log, which `Storage` makes and puts in place
    "walrq.sparse": Layer(
        walrq=PURE_MODULES | {"walrq.storage"}, third_party=CODEC, forbidden=EVENT_LOOPS | CLOCKS | CHANCE | {"socket"}
    ),
    # what is not in memory, read back
    "walrq.tiers": Layer(
        walrq=PURE_MODULES | {"walrq.far"},
        third_party=CODEC,
        forbidden=EVENT_LOOPS | CLOCKS | CHANCE | {"socket"},
    ),
    # what of the log is written anew: knows pages and entries, neither consensus nor time
    "walrq.compaction": Layer(
        walrq=PURE_MODULES | {"walrq.far", "walrq.queues.commands", "walrq.sparse", "walrq.storage"},
        third_party=CODEC,
        forbidden=WORLD - {"logging"},
        deterministic=True,
    ),
    "walrq.replica": Layer(
        walrq=PURE_MODULES
        | {
            "walrq.far",
            "walrq.raft",
            "walrq.queues",
            "walrq.compaction",
            "walrq.sparse",
            "walrq.storage",
            "walrq.tiers",
        },
        third_party=CODEC,
        forbidden=WORLD,
        deterministic=True,
    ),
    "walrq.backup": Layer(
        walrq=PURE_MODULES | {"walrq.queues.image", "walrq.storage"},
        forbidden=EVENT_LOOPS | CLOCKS | CHANCE | {"socket"},
    ),
    # what processes say on standard error
    "walrq.logs": Layer(walrq=frozenset(), third_party=frozenset(), forbidden=EVENT_LOOPS | CLOCKS | CHANCE),
    # trio
    "walrq.daemon": Layer(
        walrq=PURE_MODULES
        | {
            "walrq",
            "walrq.access",
            "walrq.backup",
            "walrq.compaction",
            "walrq.far",
            "walrq.tiers",
            "walrq.local.notify",
            "walrq.local.tracing",
            "walrq.locks",
            "walrq.logs",
            "walrq.peers",
            "walrq.protocol",
            "walrq.queues",
            "walrq.raft",
            "walrq.replica",
            "walrq.storage",
            "walrq.upkeep",
        },
        third_party=frozenset({"attrs", "trio", "outcome"}),
        forbidden=frozenset({"asyncio", "random"}),
        may_await=True,
    ),
    # trio: tasks that the supervisor starts; what a node does by itself
    "walrq.upkeep": Layer(
        walrq=PURE_MODULES
        | {
            "walrq.compaction",
            "walrq.daemon",
            "walrq.queues",
            "walrq.replica",
            "walrq.storage",
            "walrq.tiers",
        },
        third_party=frozenset({"attrs", "trio"}),
        forbidden=frozenset({"asyncio", "random"}) | CLOCKS,
        may_await=True,
    ),
    # trio: secrets from files, TLS, and who is let in at which door
    "walrq.locks": Layer(
        walrq=PURE_MODULES | {"walrq.access", "walrq.queues"},
        third_party=frozenset({"attrs", "trio"}),
        forbidden=frozenset({"asyncio", "random", "secrets"}),
        may_await=True,
    ),
    # trio: the doors beside the native one; what they translate is in resp/ and http/
    "walrq.doors": Layer(
        walrq=PURE_MODULES
        | {
            "walrq",
            "walrq.access",
            "walrq.client",
            "walrq.daemon",
            "walrq.http",
            "walrq.locks",
            "walrq.protocol",
            "walrq.queues",
            "walrq.resp",
        },
        third_party=frozenset({"attrs", "trio", "wsproto", "hypercorn"}),
        forbidden=frozenset({"asyncio", "random"}),
        may_await=True,
    ),
    # what nodes say to each other on real sockets: knows messages, neither logs nor queues
    "walrq.peers": Layer(
        walrq=PURE_MODULES
        | {"walrq.protocol.peer", "walrq.protocol.framing", "walrq.raft.membership", "walrq.raft.messages"},
        third_party=frozenset({"attrs", "trio"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # anyio
    "walrq.client": Layer(
        walrq=PURE_MODULES | {"walrq.protocol"},
        third_party=frozenset({"attrs", "anyio", "sniffio"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # anyio and threads: handlers of people, leases kept in a thread of its own
    "walrq.worker": Layer(
        walrq=PURE_MODULES | {"walrq.client", "walrq.protocol"},
        third_party=frozenset({"attrs", "anyio", "cbor2"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    "walrq.aio": Layer(walrq=PURE_MODULES | {"walrq.client"}, may_await=True),
    "walrq": Layer(walrq=PURE_MODULES | {"walrq.aio", "walrq.client", "walrq.worker"}),
    "walrq.__main__": Layer(walrq=frozenset({"walrq.cli"})),
    # the command line's moving parts: clients and terminals, no arguments
    "walrq.live": Layer(
        walrq=PURE_MODULES | {"walrq", "walrq.aio", "walrq.client"},
        third_party=frozenset({"attrs", "trio", "anyio", "rich"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # the model checker's driver: nothing that ships to users at run time sees it
    "walrq.formal": Layer(
        walrq=PURE_MODULES, third_party=frozenset({"attrs", "trio"}), forbidden=frozenset({"asyncio"}), may_await=True
    ),
    # thin
    "walrq.cli": Layer(
        walrq=PURE_MODULES
        | {
            "walrq",
            "walrq.aio",
            "walrq.backup",
            "walrq.client",
            "walrq.daemon",
            "walrq.formal",
            "walrq.live",
            "walrq.local",
            "walrq.logs",
            "walrq.simulator",
            "walrq.compaction.verifying",
            "walrq.storage.inspect",
            "walrq.worker",
        },
        third_party=frozenset({"attrs", "trio", "anyio"}) | TERMINAL,
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # several nodes as processes of this machine; the word to a service manager
    "walrq.local": Layer(
        walrq=PURE_MODULES | {"walrq.storage.disk"},
        third_party=frozenset({"attrs", "trio"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # leaf: sees everything but the command line, and nothing but tests sees it
    "walrq.testing": Layer(
        walrq=PURE_MODULES
        | {
            "walrq",
            "walrq.aio",
            "walrq.backup",
            "walrq.client",
            "walrq.daemon",
            "walrq.local",
            "walrq.protocol",
            "walrq.queues",
            "walrq.raft",
            "walrq.replica",
            "walrq.simulator",
            "walrq.storage",
            "walrq.worker",
        },
        third_party=frozenset({"attrs", "trio", "anyio", "cbor2", "crc32c", "pytest", "hypothesis"}),
        forbidden=frozenset({"asyncio"}),
        may_await=True,
    ),
    # the world of many replicas: what it does follows from one integer
    "walrq.simulator": Layer(
        walrq=PURE_MODULES
        | {
            "walrq.compaction",
            "walrq.far",
            "walrq.queues",
            "walrq.raft",
            "walrq.replica",
            "walrq.storage",
            "walrq.testing.disk",
            "walrq.tiers",
        },
        forbidden=WORLD - {"random"},
        deterministic=True,
    ),
}

# Exceptions, each a single module: what it may import beyond its layer.
EXTRA: dict[str, frozenset[str]] = {
    # Peers speak in Raft's messages; there is no second vocabulary for the same thing.
    "walrq.protocol.peer": frozenset({"walrq.raft.membership", "walrq.raft.messages"}),
}
EXTRA_LIBRARIES: dict[str, frozenset[str]] = {
    # The real disk draws the identity of a new data directory; the simulated disk, in its place, computes it.
    "walrq.storage.disk": frozenset({"uuid"}),
    # Bodies are read in threads beside the driver; a lock around their cache changes no outcome.
    "walrq.replica.bodies": frozenset({"threading"}),
    # A call waits in the way that costs its event loop least.
    "walrq.client.parking": frozenset({"asyncio", "trio"}),
}
# The oracle is a second opinion: it may know the words, never the machine.
ORACLE_MAY_SEE_OF_QUEUES = frozenset({"walrq.queues.commands", "walrq.queues.effects"})

SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range", "syncfs", "F_FULLFSYNC", "sync"})
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "misc", "common"})
FILES_PER_FOLDER_MAX = 18
LINES_PER_FILE_MAX = 900
FOLDERS_DEEP_MAX = 2
FACADES = frozenset({"walrq", "walrq.aio", "walrq.replica"})


@attrs.frozen
class Module:
    """One parsed source file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def layer(self) -> str:
        """The row of LAYERS that rules this module."""
        return ".".join(self.name.split(".")[:2])

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, absolute dotted name) of each import; `from a import b` gives a.b where that is a module."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*parents, base] if base else parents)
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    yield node.lineno, full if is_module(full) else base


def is_module(dotted: str) -> bool:
    """Whether the dotted name is a file or folder of this repository."""
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path.is_dir() and any(path.glob("*.py")))


def parse(folder: Path) -> list[Module]:
    """Every source file below `folder`, parsed, in a stable order."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module(name=name, path=path, tree=ast.parse(path.read_text(), filename=str(path))))
    return modules


def within(name: str, allowed: frozenset[str]) -> bool:
    """Whether module `name` is in `allowed` or inside one of its folders; `walrq` means only itself."""
    return name in allowed or any(name.startswith(f"{row}.") for row in allowed - {"walrq"})


MODULES = parse(PACKAGE)
by_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def violations(module: Module) -> list[str]:
    """Each import of `module` that its row does not allow, as one line of text."""
    layer = LAYERS[module.layer]
    own = frozenset({module.layer} if module.layer != "walrq" else ())
    found = []
    for line, name in module.imports():
        top = name.partition(".")[0]
        where = f"{module.path.relative_to(ROOT)}:{line}"
        if top == "walrq":
            if not within(name, layer.walrq | own | EXTRA.get(module.name, frozenset())):
                found.append(f"{where}: {module.layer} may not import {name}")
        elif top in sys.stdlib_module_names:
            if top in layer.forbidden - EXTRA_LIBRARIES.get(module.name, frozenset()):
                found.append(f"{where}: {module.layer} may not import {name}")
        elif top not in layer.third_party | EXTRA_LIBRARIES.get(module.name, frozenset()):
            found.append(f"{where}: {module.layer} may not import the library {name}")
    return found


@by_module
def test_module_imports_only_what_its_layer_may(module: Module) -> None:
    """The folder a file lies in is a promise about what can happen when its functions are called."""
    assert module.layer in LAYERS, f"{module.layer} has no row in LAYERS: say first what it may import"
    assert [] == violations(module)


def test_the_table_has_no_row_for_what_does_not_exist() -> None:
    """A row without its folder would be a permission that nobody reviews."""
    assert set() == {row for row in LAYERS if not is_module(row)}


@pytest.mark.parametrize(
    ("name", "source", "forbidden"),
    [
        ("walrq.queues.machine", "import time", "time"),
        ("walrq.queues.machine", "from walrq.storage import wal", "walrq.storage"),
        ("walrq.raft.raft", "from ..queues import machine", "walrq.queues"),
        ("walrq.raft.raft", "def f():\n    import trio", "trio"),
        ("walrq.protocol.frames", "from walrq.raft.messages import Vote", "walrq.raft"),
        ("walrq.storage.wal", "import walrq.queues.machine", "walrq.queues"),
        ("walrq.client.connection", "from walrq.daemon import broker", "walrq.daemon"),
        ("walrq.client.connection", "import trio", "trio"),
        ("walrq.cli.wal", "from walrq.storage import wal", "walrq.storage"),
        ("walrq.daemon.driver", "from walrq.testing import disk", "walrq.testing"),
        ("walrq.api", "import rich", "rich"),
    ],
)
def test_the_walk_notices_a_forbidden_import(name: str, source: str, forbidden: str) -> None:
    """A check that cannot fail guards nothing: each kind of breach is tried once."""
    module = Module(name=name, path=ROOT / (name.replace(".", "/") + ".py"), tree=ast.parse(source))

    found = violations(module)

    assert 1 == len(found)
    assert forbidden in found[0]


def test_the_oracle_does_not_look_at_the_machine() -> None:
    """A model that shared code with the machine would share its mistakes."""
    seen = [
        name
        for module in MODULES
        if module.name in {"walrq.testing.model", "walrq.testing.model_queue"}
        for _, name in module.imports()
        if name.startswith("walrq.queues") and not within(name, ORACLE_MAY_SEE_OF_QUEUES)
    ]

    assert [] == seen


@by_module
def test_deciding_code_does_not_reach_for_the_world(module: Module) -> None:
    """Consensus, state machine and protocols are functions of their input: no files, no output, no hash()."""
    if not LAYERS[module.layer].deterministic:
        return
    found = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}: {node.func.id}()"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLDLY_BUILTINS
    ]

    assert [] == found


@by_module
def test_only_drivers_await(module: Module) -> None:
    """Code without await has no checkpoints: nothing can interleave with it and nothing can cancel it."""
    if LAYERS[module.layer].may_await:
        return
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}" for node in ast.walk(module.tree) if isinstance(node, kinds)
    ]

    assert [] == found


@by_module
def test_disks_are_synced_in_one_place(module: Module) -> None:
    """Whoever asks when bytes become durable reads one file; the simulated disk replaces one file."""
    if module.name == "walrq.storage.disk":
        return
    found = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}: {node.value.id}.{node.attr}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"os", "fcntl"}
        and node.attr in SYNCS
    ]

    assert [] == found


@by_module
def test_time_enters_the_daemon_in_one_place(module: Module) -> None:
    """Leases and delays are measured by the log's clocks; a second source of time would disagree."""
    if module.layer not in {"walrq.daemon", "walrq.upkeep"} or module.name == "walrq.daemon.clock":
        return
    imported = [
        f"{module.path.relative_to(ROOT)}:{line}: {name}"
        for line, name in module.imports()
        if name.partition(".")[0] in CLOCKS
    ]
    read = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}: trio.{node.attr}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "trio"
        and node.attr == "current_time"
    ]

    assert [] == imported + read


def test_the_map_shows_every_folder() -> None:
    """A folder that the architecture page passes over is one in which a newcomer will not look."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    folders = {path.parent.name for path in ROOT.glob("walrq/*/__init__.py")}

    assert "daemon" in folders
    assert set() == {name for name in folders if not re.search(rf"^\| `{name}/` \|", page, re.MULTILINE)}


@by_module
def test_only_the_facades_re_export(module: Module) -> None:
    """One name, one place: whoever looks for a definition finds it where the import says."""
    if module.name in FACADES:
        return
    imported = {
        alias.asname or alias.name
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    listed = {
        element.value
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
        and isinstance(node.value, ast.List | ast.Tuple)
        for element in node.value.elts
        if isinstance(element, ast.Constant)
    }
    unused = imported - used if module.path.name == "__init__.py" else set()

    assert set() == (listed & imported) | unused


def source_files() -> list[Path]:
    """Every Python file that a reader of the repository meets."""
    folders = [PACKAGE, ROOT / "chaos", ROOT / "bench", ROOT / "spec", ROOT / "tests"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_folders_stay_small_and_flat() -> None:
    """A folder is read as a list of names: eighteen at most, two levels deep at most."""
    folders: dict[Path, int] = {}
    for path in PACKAGE.rglob("*.py"):
        folders[path.parent] = folders.get(path.parent, 0) + 1
    too_full = {str(folder.relative_to(ROOT)): n for folder, n in folders.items() if n > FILES_PER_FOLDER_MAX}
    too_deep = [
        str(folder.relative_to(ROOT)) for folder in folders if len(folder.relative_to(ROOT).parts) > FOLDERS_DEEP_MAX
    ]

    assert {} == too_full
    assert [] == too_deep


def test_files_stay_readable() -> None:
    """A file that no longer fits in a head has lost its one job."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}

    assert {} == {name: lines for name, lines in lengths.items() if lines > LINES_PER_FILE_MAX}


def test_no_module_is_named_after_nothing() -> None:
    """A name like `utils` says where code was put, not what it does."""
    assert [] == [str(path.relative_to(ROOT)) for path in source_files() if path.stem in VAGUE_NAMES]


@pytest.mark.parametrize("folder", ["chaos", "bench", "spec"])
def test_folders_mapped_into_the_wheel_import_themselves_relatively(folder: str) -> None:
    """`chaos` is walrq._chaos once installed, so an absolute import of itself works in a checkout only."""
    names = {"chaos", "bench", "spec", "tests"}
    found = [
        f"{module.path.relative_to(ROOT)}:{line}: {name}"
        for module in parse(ROOT / folder)
        for line, name in absolute_imports(module)
        if name.partition(".")[0] in names
    ]

    assert [] == found


def absolute_imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each import that does not start with a dot."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
