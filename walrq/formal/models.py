"""`spec/models.toml`: which module, with which constants, must give which verdict.

    [Queue]                       a module: what is common to its models
    invariants = ["TypeOK"]       state predicates
    steps = ["Exclusive"]         predicates of a step, checked as [][...]_vars
    view = "View"
    [Queue.constants]             defaults
    [Queue.models.leases]         a model: constants and expectations of its own
    [Queue.mutants.any_receipt]   a value of `bug` that breaks what it names, in the model it names

From a model comes a module `Run` that extends the one of the file, and its configuration: so a model is written once,
and what TLC is given can be looked at with `walrq spec list --source`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from walrq.errors import ConfigError
from walrq.formal.output import Verdict
from walrq.formal.tlc import Job
from walrq.formal.values import render

MANIFEST: Final = "models.toml"
RUN: Final = "Run"
_SETS: Final = ("small", "full", "deep", "walk")


@attrs.frozen
class Model:
    """One configuration of one module.

    Attributes:
        set: "small" (every test run), "full" (minutes), "deep" (more), or "walk" (too large to search: only simulated).
        expect: how the run must end.
        violated: what must be violated then; a witness that is not violated hides something.
        reaches: predicates that must be false in some state, noted on the way.
        distinct, depth: what the search must count; None: not recorded yet.
        sources: text of all modules of the folder, by name.
        timeout_s: of the run.
    """

    module: str
    name: str
    set: str
    what: str
    constants: Mapping[str, Any]
    invariants: tuple[str, ...]
    steps: tuple[str, ...]
    properties: tuple[str, ...]
    specification: str
    view: str | None
    reaches: tuple[str, ...]
    expect: Verdict
    violated: str | None
    distinct: int | None
    depth: int | None
    timeout_s: float
    sources: Mapping[str, str] = attrs.field(repr=False, eq=False)

    @property
    def title(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the module's actions."""
        return actions_of(self.sources[self.module])


@attrs.frozen
class Mutant:
    """A fault that a module knows as a value of `bug`; `twin` is the code's mutant of the same kind."""

    module: str
    name: str
    model: str
    breaks: str
    what: str
    twin: str | None


@attrs.frozen
class Manifest:
    """All models and mutants."""

    models: tuple[Model, ...]
    mutants: tuple[Mutant, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that have models, in the order of the file."""
        return tuple(dict.fromkeys(model.module for model in self.models))

    def model(self, module: str, name: str) -> Model:
        """One model.

        Raises:
            ConfigError: there is none of that name.
        """
        for model in self.models:
            if (model.module, model.name) == (module, name):
                return model
        known = ", ".join(model.title for model in self.models if model.module == module) or ", ".join(self.modules)
        raise ConfigError(f"there is no model {module}.{name}; known are {known}")


def load(folder: Path) -> Manifest:
    """The manifest in `folder`.

    Raises:
        ConfigError: it cannot be read or has a mistake.
    """
    path = folder / MANIFEST
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    sources = {each.stem: each.read_text("utf-8") for each in sorted(folder.glob("*.tla"))}
    models: list[Model] = []
    mutants: list[Mutant] = []
    for module, common in table.items():
        if module not in sources:
            raise ConfigError(f"{path}: there is no module {module}.tla")
        models += [_model(path, module, name, common, own, sources) for name, own in common["models"].items()]
        for name, row in common.get("mutants", {}).items():
            mutants.append(Mutant(module, name, row["model"], row["breaks"], row["what"], row.get("twin")))
    return Manifest(tuple(models), tuple(mutants))


_KEYS: Final = frozenset(
    "set what constants invariants steps properties specification view reaches expect violated distinct depth"
    " timeout_s".split()
)


def _model(
    path: Path, module: str, name: str, common: Mapping[str, Any], own: Mapping[str, Any], sources: Mapping[str, str]
) -> Model:
    unknown = sorted(own.keys() - _KEYS)
    if unknown:
        raise ConfigError(f"{path}: {module}.{name}: there is no key {unknown[0]!r}")
    if own.get("set", "small") not in _SETS:
        raise ConfigError(f"{path}: {module}.{name}: set is one of {', '.join(_SETS)}")

    def either(key: str, default: Any) -> Any:
        return own.get(key, common.get(key, default))

    return Model(
        module=module,
        name=name,
        set=own.get("set", "small"),
        what=own["what"],
        constants={**common.get("constants", {}), **own.get("constants", {})},
        invariants=tuple(either("invariants", ())),
        steps=tuple(either("steps", ())),
        properties=tuple(own.get("properties", ())),
        specification=own.get("specification", "Spec"),
        view=either("view", None) or None,
        reaches=tuple(own.get("reaches", ())),
        expect=Verdict(own.get("expect", "ok")),
        violated=own.get("violated"),
        distinct=own.get("distinct"),
        depth=own.get("depth"),
        timeout_s=float(own.get("timeout_s", 600)),
        sources=sources,
    )


def constant(value: Any) -> str:
    """A constant of the manifest as TLC's configuration has it; a list is a set."""
    if isinstance(value, list):
        return "{" + ", ".join(constant(each) for each in value) + "}"
    return render(value)


def _lines(head: str, names: Sequence[str]) -> list[str]:
    return [f"{head} {' '.join(names)}"] if names else []


def _module(model: Model, body: Sequence[str]) -> str:
    return "\n".join([f"---- MODULE {RUN} ----", f"EXTENDS {model.module}, TLC", *body, "====", ""])


def _config(
    model: Model, *, constants: Mapping[str, Any], checks: Sequence[str], specification: str | None = None
) -> str:
    return "\n".join(
        [
            f"SPECIFICATION {specification or model.specification}",
            "CONSTANTS",
            *(f"  {name} = {constant(value)}" for name, value in constants.items()),
            *_lines("VIEW", [model.view] if model.view is not None else []),
            *checks,
            "",
        ]
    )


def _noted(register: int, name: str, word: str) -> str:
    """Prints once that the predicate was false; always TRUE."""
    return f'TLCGet({register}) = 1 \\/ {name} \\/ (TLCSet({register}, 1) /\\ PrintT(<<"{word}", "{name}">>))'


def actions_of(source: str) -> tuple[str, ...]:
    """The names of a module's actions: what stands in the disjuncts of its Next, each of which is one action."""
    found = re.search(r"^Next ==\n((?:    .*\n)+)", source, flags=re.MULTILINE)
    lines = found[1].splitlines() if found is not None else []
    # A quantifier in front ends with a colon; the action is what follows.
    return tuple(re.findall(r"(?:\\/|:) (\w+)\b(?!.*: )", "\n".join(lines)))


def job_of(model: Model, *, notes: bool = True, options: Sequence[str] = (), keep: Sequence[str] = ()) -> Job:
    """The run that checks a model; with `notes` it prints which actions were taken, and what was reached.

    TLC's own coverage counts every expression on every path, which takes a hundred times as long.
    """
    body = [f"Step{name} == [][{name}]_vars" for name in model.steps]
    # With liveness every state counts, and notes are no part of a state.
    noting = notes and not model.properties
    if noting:
        registers = range(len(model.reaches) + 1)
        body += [f"ASSUME TLCSet({number}, {'0' if number else '{}'})" for number in registers]
        body += ["Reached ==", "  /\\ TRUE"]
        body += [f"  /\\ {_noted(number, each, 'reached')}" for number, each in enumerate(model.reaches, 1)]
        body += [
            "Taken ==",
            "  \\/ act'.op \\in TLCGet(0)",
            "  \\/ TLCSet(0, TLCGet(0) \\cup {act'.op}) /\\ PrintT(<<\"taken\", act'.op>>)",
        ]
    properties = [*(f"Step{name}" for name in model.steps), *model.properties]
    checks = [
        *_lines("INVARIANTS", model.invariants),
        *_lines("PROPERTIES", properties),
        *(["CONSTRAINT Reached", "ACTION_CONSTRAINT Taken"] if noting else []),
    ]
    return Job(
        module=RUN,
        sources={**model.sources, RUN: _module(model, body)},
        config=_config(model, constants=model.constants, checks=checks),
        # Behaviours may end: a bound was reached. That nothing gets stuck is what liveness says.
        options=("-deadlock", "-nowarning", *options),
        timeout_s=model.timeout_s,
        brief=model.set not in ("full", "deep"),
        keep=tuple(keep),
    )


def name_of_step(violated: str | None) -> str | None:
    """The predicate's own name for what TLC calls the property."""
    return violated.removeprefix("Step") if violated is not None else None


def pool_of(model: Model, mutants: Sequence[str]) -> Job:
    """One run that tries many mutants: each is printed with what noticed it, and is not followed any further.

    TLC needs longer to start than to kill a mutant.
    """

    def killed(name: str) -> str:
        return (
            f'  /\\ {name} \\/ (TLCSet(Number, 1) /\\ PrintT(<<"killed", bug, "{name}", TLCGet("level")>>) /\\ FALSE)'
        )

    cases = " [] ".join(f'bug = "{name}" -> {number}' for number, name in enumerate(mutants, 1))
    body = [
        *(f"ASSUME TLCSet({number}, 0)" for number in range(1, len(mutants) + 1)),
        f"Number == CASE {cases}",
        "Pool ==",
        "  /\\ TLCGet(Number) = 0",
        *map(killed, model.invariants),
        "PoolStep ==",
        "  /\\ TLCGet(Number) = 0",
        *map(killed, model.steps),
    ]
    constants = {**model.constants, "Bugs": list(mutants)}
    return Job(
        module=RUN,
        sources={**model.sources, RUN: _module(model, body)},
        config=_config(model, constants=constants, checks=["CONSTRAINT Pool", "ACTION_CONSTRAINT PoolStep"]),
        options=("-deadlock", "-nowarning"),
        timeout_s=model.timeout_s,
    )
