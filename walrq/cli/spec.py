"""`walrq spec`: check the specification with TLC, simulate it, and judge recorded runs by it."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from walrq.cli import output
from walrq.cli.arguments import example, json_option

if TYPE_CHECKING:
    from walrq.formal.checking import Outcome
    from walrq.formal.lines import Trace
    from walrq.formal.models import Manifest, Model
    from walrq.formal.output import Progress
    from walrq.formal.tlc import Report

# The specification and the code disagree with what is recorded.
FAILED: Final = 1
# What a shell reports for a process that SIGTERM ended.
TERMINATED: Final = 143


@click.group(epilog=example("walrq spec list"))
def spec() -> None:
    """The specification: TLA+ modules, checked by TLC."""


async def _until_stopped(work: Callable[[], Awaitable[int]]) -> int:
    """Do the work; SIGTERM cancels it, so that no search goes on without its command."""
    import signal

    import trio

    status = TERMINATED

    async with trio.open_nursery() as nursery:

        async def listen(receiver: AsyncIterator[int]) -> None:
            async for _ in receiver:
                nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM) as receiver:
            nursery.start_soon(listen, receiver)
            status = await work()
            nursery.cancel_scope.cancel()
    return status


def _manifest() -> Manifest:
    from walrq.formal import models, tools

    return models.load(tools.specification())


def _chosen(manifest: Manifest, names: Sequence[str], size: str) -> list[Model]:
    """The models that are named, as MODULE or MODULE.NAME; without a name all of the set."""
    if not names:
        return [model for model in manifest.models if _in_set(model, size)]
    found: list[Model] = []
    for name in names:
        module, _, own = name.partition(".")
        if own:
            found.append(manifest.model(module, own))
            continue
        of_module = [model for model in manifest.models if model.module == module and _in_set(model, size)]
        # The error names what there is.
        found += of_module or [manifest.model(module, "")]
    return found


def _in_set(model: Model, size: str) -> bool:
    """What is too large to search belongs to no set that is checked."""
    return model.set == size or (size == "all" and model.set != "walk")


@spec.command("list", epilog=example("walrq spec list"))
@click.option("--source", metavar="MODEL", help="Print what TLC is given for MODULE.NAME instead.")
@json_option
def show(source: str | None, as_json: bool) -> None:
    """Every model: its set, what it must show, and the states that were counted."""
    manifest = _manifest()
    if source is not None:
        from walrq.formal.models import RUN, job_of

        job = job_of(*_chosen(manifest, [source], "all"))
        print(job.sources[RUN] + "\n" + job.config, end="")
        return
    if as_json:
        for model in manifest.models:
            output.json_line(
                {
                    "model": model.title,
                    "set": model.set,
                    "what": model.what,
                    "expect": model.expect,
                    "violated": model.violated,
                    "distinct": model.distinct,
                    "depth": model.depth,
                    "properties": [*model.invariants, *model.steps, *model.properties],
                }
            )
        return
    rows = [(model.title, model.set, _expected(model), model.distinct, model.depth) for model in manifest.models]
    output.table(("model", "set", "expected", "states", "depth"), rows)


def _expected(model: Model) -> str:
    return f"{model.expect}{f': {model.violated}' if model.violated else ''}"


@spec.command(epilog=example("walrq spec check Queue.drift"))
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--set",
    "size",
    type=click.Choice(["small", "full", "deep", "all"]),
    default="small",
    help="Which models, when none is named.  [small]",
)
@click.option("--mutants", is_flag=True, help="Try the mutants of the modules, too: each must be noticed.")
@click.option("--workers", metavar="N", type=click.IntRange(1, 64), default=1, help="Threads of a search.  [1]")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 64), default=1, help="Models at a time.  [1]")
@json_option
def check(models: tuple[str, ...], size: str, mutants: bool, workers: int, jobs: int, as_json: bool) -> int:
    """Let TLC check MODELs (MODULE or MODULE.NAME), and compare with what is recorded.

    Each model must end as `walrq spec list` says, with as many states; a witness must be violated. Exit status 1
    when one differs, or when an action of a module is never taken. Java and the TLA+ tools come with
    `pip install 'walrq[spec]'`; WALRQ_JAVA and TLA2TOOLS_JAR name others.
    """
    import trio

    manifest = _manifest()
    chosen = _chosen(manifest, models, size)
    return trio.run(_until_stopped, partial(_check, manifest, chosen, mutants, workers, jobs, as_json, not models))


async def _check(
    manifest: Manifest, chosen: Sequence[Model], mutants: bool, workers: int, jobs: int, as_json: bool, whole: bool
) -> int:

    from walrq.formal import checking, tools

    found = tools.find_tools(os.environ)
    outcomes: list[Outcome] = []

    async def one(model: Model) -> None:
        tell = _teller(model.title) if jobs == 1 else None
        outcomes.append(await checking.check(found, model, tell, workers=workers))
        _tell_outcome(outcomes[-1], as_json)

    await _some_at_a_time(jobs, [partial(one, model) for model in chosen])
    failed = any(outcome.problems for outcome in outcomes)
    if whole:
        for name in checking.never_taken(outcomes):
            failed = True
            _line(as_json, {"never_taken": name}, f"never taken: {name}")
    if mutants:
        modules = {model.module for model in chosen}
        pools = dict.fromkeys((each.module, each.model) for each in manifest.mutants if each.module in modules)
        survived: list[bool] = []

        async def pool(module: str, name: str) -> None:
            survived.append(await _try_mutants(manifest, module, name, as_json))

        await _some_at_a_time(jobs, [partial(pool, *each) for each in pools])
        failed |= any(survived)
    return FAILED if failed else 0


async def _some_at_a_time(jobs: int, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do all of it, in this order, so many at a time."""
    import trio

    places = trio.Semaphore(jobs)

    async def do(each: Callable[[], Awaitable[None]]) -> None:
        await each()
        places.release()

    async with trio.open_nursery() as nursery:
        for each in work:
            await places.acquire()
            nursery.start_soon(do, each)


async def _try_mutants(manifest: Manifest, module: str, name: str, as_json: bool) -> bool:
    """Those of one model, in one run; whether one was not noticed by what must notice it."""
    from walrq.formal import checking, tools

    failed = False
    ours = [mutant for mutant in manifest.mutants if (mutant.module, mutant.model) == (module, name)]
    kills, report = await checking.try_mutants(tools.find_tools(os.environ), manifest.model(module, name), ours)
    if report.trouble:
        print(f"walrq: {module}.{name}: {report.trouble}", file=sys.stderr)
    for kill in kills:
        failed |= kill.by != kill.mutant.breaks
        value = {
            "mutant": f"{module}.{kill.mutant.name}",
            "noticed_by": kill.by,
            "steps": kill.steps,
            "seconds": round(kill.seconds, 1),
            "what": kill.mutant.what,
        }
        text = f"{kill.by} after {kill.steps} steps" if kill.by is not None else "NOT NOTICED"
        if kill.by not in (None, kill.mutant.breaks):
            text += f", not {kill.mutant.breaks} as recorded"
        _line(as_json, value, f"{value['mutant']}\t{text}\t{kill.mutant.what}")
    return failed


def _line(as_json: bool, value: Any, text: str) -> None:
    if as_json:
        output.json_line(value)
    else:
        print(text)
    sys.stdout.flush()


def _teller(title: str) -> Callable[[Progress], None] | None:
    """Shows progress on a terminal."""
    if not sys.stderr.isatty():
        return None

    def tell(progress: Progress) -> None:
        done = f"{progress.generated:,} states, {progress.distinct:,} distinct, {progress.queued:,} to go"
        sys.stderr.write(f"\r\x1b[K{title}: depth {progress.depth}, {done}")
        sys.stderr.flush()

    return tell


def _tell_outcome(outcome: Outcome, as_json: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    said, model = outcome.report.transcript, outcome.model
    value = {
        "model": model.title,
        "verdict": outcome.report.verdict,
        "violated": outcome.verdict.partition(": ")[2] or None,
        "distinct": said.distinct,
        "depth": said.depth,
        "seconds": round(outcome.report.seconds, 1),
        "problems": list(outcome.problems),
    }
    text = f"{model.title}\t{outcome.verdict}\t{said.distinct}\t{said.depth}\t{outcome.report.seconds:.1f} s"
    _line(as_json, value, "\n".join([text, *(f"  {problem}" for problem in outcome.problems)]))
    if outcome.problems and not as_json:
        _tell_story(outcome.report)


def _tell_story(report: Report) -> None:
    from walrq.formal.story import tell

    for line in tell(report.transcript.trace, report.transcript.back_to):
        print(line)


@spec.command(epilog=example("walrq spec simulate Queue.leases --number 2 --depth 5 --seed 1"))
@click.argument("model", metavar="MODULE.NAME")
@click.option("--number", metavar="N", type=click.IntRange(1, 1_000_000), default=100, help="Behaviours.  [100]")
@click.option("--depth", metavar="N", type=click.IntRange(2, 10_000), default=30, help="States of each.  [30]")
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=1, help="Of the random choices.  [1]")
@json_option
def simulate(model: str, number: int, depth: int, seed: int, as_json: bool) -> int:
    """Let TLC walk through MODEL at random, checking every state, and print the behaviours.

    The same seed gives the same behaviours.
    """
    import trio

    (chosen,) = _chosen(_manifest(), [model], "all")
    return trio.run(_until_stopped, partial(_simulate, chosen, number, depth, seed, as_json))


async def _simulate(model: Model, number: int, depth: int, seed: int, as_json: bool) -> int:
    from walrq.formal import checking, graph, tools
    from walrq.formal.output import Step, Verdict
    from walrq.formal.story import tell

    report = await checking.simulate(tools.find_tools(os.environ), model, number, depth, seed)
    for name in sorted(report.files, key=lambda each: int(each.rpartition("_")[2])):
        states = list(graph.read_behaviour(report.files[name]))
        if as_json:
            output.json_line([str(state) for state in states])
            continue
        print(f"behaviour {name.rpartition('_')[2]}")
        for line in tell([Step(None if n == 0 else "step", state) for n, state in enumerate(states)]):
            print(line)
    if report.verdict is Verdict.OK:
        return 0
    print(f"walrq: {model.title}: {report.verdict} {report.trouble}", file=sys.stderr)
    _tell_story(report)
    return FAILED


@spec.command(epilog=example("walrq spec trace --seed 7"))
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=1, help="Of the simulated run.  [1]")
@click.option("--nodes", metavar="N", type=click.IntRange(2, 7), default=3, help="Of the group.  [3]")
@click.option(
    "--load-ms", metavar="MS", type=click.IntRange(10, 60_000), default=200, help="Of load and faults.  [200]"
)
def trace(seed: int, nodes: int, load_ms: int) -> None:
    """Simulate a group under faults and print what consensus did, a line of JSON for each step.

    The same seed gives the same lines; `walrq spec validate` judges them.
    """
    from walrq.simulator.cluster import Cluster
    from walrq.simulator.options import Options

    options = Options(nodes=nodes, load_ms=load_ms, fsync="always", trace_to=output.json_line)
    Cluster(seed=seed, options=options).run()


@spec.command(epilog=example("walrq spec trace --seed 7 | walrq spec validate -"))
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=click.File("r", encoding="utf-8"))
@click.option("--merge", is_flag=True, help="The files are of the nodes of one run, one each.")
@json_option
def validate(traces: tuple[TextIO, ...], merge: bool, as_json: bool) -> int:
    """Let TLC decide whether recorded runs are behaviours of spec/Raft.tla.

    A TRACE has a line of JSON for each step of consensus, from the start of every node on (`-`: standard input). Of
    one that is none, the first line that does not fit is shown, and what would have; the exit status is then 1. What
    the module does not describe (changes of the group, repair after damage) ends what can be judged, and is named.
    """
    import trio

    from walrq.formal import lines

    named = [(file.name, lines.read(file.read())) for file in traces]
    if merge:
        named = [("merged", lines.merged([each for _, each in named]))]
    prepared = [(name, lines.prepared(each)) for name, each in named]
    return trio.run(_until_stopped, partial(_validate, prepared, as_json))


async def _validate(named: Sequence[tuple[str, Trace]], as_json: bool) -> int:
    from walrq.formal import tools, validating

    found, folder = tools.find_tools(os.environ), tools.specification()
    failed = False
    judgements = await validating.validate(found, folder, [each for _, each in named])
    for (name, _), judgement in zip(named, judgements, strict=True):
        failed |= not judgement.is_accepted
        value = {
            "trace": name,
            "accepted": judgement.is_accepted,
            "lines": judgement.lines,
            "refused": judgement.refused,
            "broken": judgement.broken,
            "ends": judgement.ends,
            "story": list(judgement.story),
        }
        said = "accepted" if judgement.is_accepted else "REFUSED"
        more = [f"  judged up to {judgement.ends}"] if judgement.ends is not None else []
        _line(as_json, value, "\n".join([f"{name}\t{said}\t{judgement.lines} lines", *more, *judgement.story]))
    return FAILED if failed else 0


COMMANDS = (spec,)
