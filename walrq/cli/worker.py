"""`walrq worker`: run the tasks of an application."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import click

from walrq.cli.arguments import example, server_option, target

if TYPE_CHECKING:
    from walrq.worker.application import Worker


@click.command(epilog=example("walrq worker app:worker --concurrency 8"))
@click.argument("application", metavar="MODULE:WORKER")
@click.option(
    "--concurrency", "-c", metavar="N", type=click.IntRange(min=1), help="Handlers at a time.  [the worker's]"
)
@click.option("--queue", "-q", "queues", metavar="QUEUE", multiple=True, help="Only these; may be repeated.  [all]")
@click.option(
    "--backend",
    type=click.Choice(["trio", "asyncio"]),
    help="The event loop of async handlers.  [the worker's]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The least important lines to write.  [info]",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "human", "json"]),
    default="auto",
    help="Lines for people, or one JSON object each; auto: by whether a terminal reads.  [auto]",
)
@server_option
def worker(
    application: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    backend: Literal["trio", "asyncio"] | None,
    log_level: str,
    log_format: Literal["auto", "human", "json"],
    server: str,
) -> int:
    """Run the tasks of WORKER, a `walrq.Worker` in MODULE, until SIGTERM or Ctrl-C.

    MODULE is looked for in the current directory first. A stop takes no more messages, gives back what was not started,
    and lets running handlers end; a second signal does not wait for them. Exit status: 0 when all of them could end, 8
    when some had to be cancelled.
    """
    import anyio

    from walrq.logs import set_up

    # Whatever the application connects to without naming a server is the one that its worker serves: `enqueue` of
    # other workers, walrq.connect(). Outside this command contexts are not read.
    os.environ["WALRQ_SERVER"] = server
    found = load(application)
    if found.url is None or target().origin.startswith("--"):
        found.connect_to(server)
    plan = found.plan(queues=queues or None, concurrency=concurrency, signals=True, process_ends=True)
    # What the application logs goes the same way as what the worker says.
    root = logging.getLogger()
    root.addHandler(set_up(sys.stderr, log_level, log_format))
    root.setLevel(log_level.upper())
    status = anyio.run(found.serve, plan, backend=backend or found.backend)
    found.close()
    if status:
        # A handler may still run in a thread; its message was given back because the process ends here.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    return status


def load(application: str) -> Worker:
    """The worker that `module:name` means; `module` is enough when it has only one.

    Raises:
        UsageError: there is no such module, or no such worker in it.
    """
    name, colon, attribute = application.partition(":")
    if not name or (colon and not attribute):
        raise click.UsageError(f"{application!r} is not of the form module:worker, such as app:worker")
    module = _module(name)
    if attribute:
        return _worker(module, attribute)
    workers = _workers(module)
    if len(workers) == 1:
        return _worker(module, workers[0])
    if not workers:
        raise click.UsageError(f"module {name!r} has no worker; write worker = walrq.Worker() at its top level")
    raise click.UsageError(f"module {name!r} has several workers: {_written(name, workers)}")


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise click.UsageError(f"{name!r} is a file; name the module: {dotted}:worker")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise click.UsageError(
                f"module {name!r} imports {missing!r}, which is not installed for {sys.executable}"
            ) from None
        near = difflib.get_close_matches(name, _modules_here(here), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        parent, _, attribute = missing.rpartition(".")
        if parent in sys.modules and attribute in _workers(sys.modules[parent]):
            hint = f"; did you mean {parent}:{attribute}?"
        raise click.UsageError(
            f"there is no module {missing!r} in {here}, nor among what is installed for {sys.executable}{hint}"
        ) from None
    except Exception as error:  # noqa: BLE001 - said below, as what it is
        # The application's own mistake: its traceback is the help, ours would only stand in front of it.
        frames = error.__traceback__
        while frames is not None and frames.tb_next is not None and _is_machinery(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise click.ClickException(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from None


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen ") or file == importlib.__file__


def _modules_here(folder: str) -> list[str]:
    return [name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py") or "." not in name]


def _workers(module: ModuleType) -> list[str]:
    """Names of the workers in a module."""
    from walrq.worker.application import Worker

    return [name for name, each in vars(module).items() if isinstance(each, Worker)]


def _written(module: str, names: Sequence[str]) -> str:
    return ", ".join(f"{module}:{name}" for name in names)


def _worker(module: ModuleType, attribute: str) -> Worker:
    from walrq.worker.application import Worker

    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {module.__name__!r} has no {attribute!r}; {_there(module)}")
        found = getattr(found, part)
    if not isinstance(found, Worker):
        kind = type(found).__name__
        raise click.UsageError(f"{module.__name__}:{attribute} is a {kind}, not a walrq.Worker; {_there(module)}")
    return found


def _there(module: ModuleType) -> str:
    workers = _workers(module)
    return (
        f"there is {_written(module.__name__, workers)}"
        if workers
        else "write worker = walrq.Worker() at its top level"
    )


COMMANDS = (worker,)
