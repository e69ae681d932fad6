"""Which server a command speaks to, and `walrq context`: names for servers.

    --server URL, or --context NAME > WALRQ_SERVER > WALRQ_CONTEXT > `walrq context use` > the default

Contexts are kept in one TOML file, `walrq/contexts.toml` in XDG_CONFIG_HOME (else ~/.config), which may be
edited by hand; what this module does not know in it is an error, so nothing in it is ever lost. They are the
command line's: `walrq.connect()` in Python looks at WALRQ_SERVER only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from walrq.cli import output
from walrq.cli.arguments import Group, complete_contexts, example, json_option

if TYPE_CHECKING:
    from walrq.errors import ConfigError

SERVER_VARIABLE: Final = "WALRQ_SERVER"
CONTEXT_VARIABLE: Final = "WALRQ_CONTEXT"
_OURS: Final = (SERVER_VARIABLE, CONTEXT_VARIABLE)
# So alike that it is a slip of the finger; no other variable of walrq is that near.
_MISTYPED: Final = 0.9
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@attrs.frozen
class Target:
    """A server, and who named it: an option, a variable, a context, or nobody ("default").

    Attributes:
        url: what `walrq.connect` takes.
        origin: for people: where to change it.
        context: the context it comes from, if it comes from one.
    """

    url: str
    origin: str
    context: str | None = None


@attrs.frozen
class Contexts:
    """What is in the file: URLs by name, and the name in use."""

    urls: Mapping[str, str]
    current: str | None = None


def path_of(env: Mapping[str, str]) -> Path:
    """Where contexts are kept, whether the file is there or not."""
    # The XDG rules: a relative or empty value counts as not set.
    base = env.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "walrq" / "contexts.toml"
    home = env.get("HOME") or os.path.expanduser("~")
    # A user without a home, as containers have them, has no contexts and cannot make any.
    return Path(home if os.path.isabs(home) else "/") / ".config" / "walrq" / "contexts.toml"


def load(path: Path) -> Contexts:
    """The contexts in the file; none when it is not there.

    Raises:
        ConfigError: it cannot be read, or is not of the form that `save` writes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({})  # HOME=/dev/null has none either
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _wrong(path, f"cannot be read: {why}; name the server with --server or {SERVER_VARIABLE}") from None
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"is not TOML: {error}") from None
    _only(path, table, ("current", "contexts"))
    given = table.get("contexts", {})
    current = table.get("current")
    if not isinstance(given, dict):
        raise _wrong(path, "contexts is no table")
    urls = {}
    for name, value in given.items():
        if not _NAME.fullmatch(name) or not isinstance(value, dict) or not isinstance(value.get("url"), str):
            raise _wrong(path, f'a context is [contexts.NAME] with url = "walrq://HOST:PORT"; {name!r} is none')
        _only(path, value, ("url",))
        urls[name] = value["url"]
    if current is not None and current not in urls:
        raise _wrong(path, f"current names {current!r}, and there is no such context")
    return Contexts(urls, current)


def _only(path: Path, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise _wrong(path, f"there is no key {key!r}{_hint(key, known)}")


def _hint(word: str, known: tuple[str, ...]) -> str:
    import difflib

    nearest = difflib.get_close_matches(word, known, 1)
    if nearest:
        return f"; did you mean {nearest[0]}?"
    return f"; known are {', '.join(known)}" if known else ""


def _wrong(path: Path, text: str) -> ConfigError:
    from walrq.errors import ConfigError

    return ConfigError(f"{path}: {text}")


def save(path: Path, contexts: Contexts) -> None:
    """Write the file so that a reader sees the old one or the new one, whole; only its owner may read it.

    Raises:
        OSError: it cannot be written.
    """
    import tempfile

    lines = [] if contexts.current is None else [f'current = "{contexts.current}"', ""]
    for name, url in sorted(contexts.urls.items()):
        # A JSON string without escapes beyond ASCII is a TOML basic string.
        lines += [f"[contexts.{name}]", f"url = {json.dumps(url, ensure_ascii=False)}", ""]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def resolve(server: str | None, context: str | None, env: Mapping[str, str]) -> Target:
    """Which server is meant; see the top of this file for who wins.

    Raises:
        ConfigError: a context that is not there, a file that cannot be read, a mistyped variable.
    """
    if server is not None:
        return Target(server, "--server")
    if context is not None:
        return _named(context, "--context", env)
    _check_variables(env)
    if env.get(SERVER_VARIABLE):
        return Target(env[SERVER_VARIABLE], SERVER_VARIABLE)
    if env.get(CONTEXT_VARIABLE):
        return _named(env[CONTEXT_VARIABLE], CONTEXT_VARIABLE, env)
    path = path_of(env)
    contexts = load(path)
    if contexts.current is not None:
        return Target(contexts.urls[contexts.current], f"context {contexts.current} of {path}", contexts.current)
    from walrq.limits import DEFAULT_PORT

    return Target(f"walrq://127.0.0.1:{DEFAULT_PORT}", "default")


def _named(name: str, origin: str, env: Mapping[str, str]) -> Target:
    path = path_of(env)
    return Target(_url(load(path), name, path), f"{origin} {name}, in {path}", name)


def _url(contexts: Contexts, name: str, path: Path) -> str:
    if name not in contexts.urls:
        known = tuple(sorted(contexts.urls))
        hint = _hint(name, known) or f"; `walrq context add {name} walrq://HOST:PORT` makes it"
        raise _wrong(path, f"there is no context {name!r}{hint}")
    return contexts.urls[name]


def _check_variables(env: Mapping[str, str]) -> None:
    """A variable that is ours with a slip of the finger would silently mean another server."""
    for name in env:
        # The lengths first: difflib is imported only when there is something to look at.
        if name.startswith("WALRQ_") and name not in _OURS and any(abs(len(name) - len(ours)) <= 2 for ours in _OURS):
            import difflib

            nearest = difflib.get_close_matches(name, _OURS, 1, _MISTYPED)
            if nearest:
                from walrq.errors import ConfigError

                raise ConfigError(f"environment: there is no variable {name}; did you mean {nearest[0]}?")


# --- commands -----------------------------------------------------------------------------------------------
@click.group(cls=Group, epilog=example("walrq context list"))
def context() -> None:
    """Names for servers, so that `--context prod` will do."""


@context.command(epilog=example("walrq context add prod walrq://queue.example.org:50051"))
@click.argument("name")
@click.argument("url")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on where no other server is named.")
def add(name: str, url: str, use_it: bool) -> None:
    """Let NAME stand for the server at URL; a name that is there gets the new URL."""
    from walrq.client.config import parse_url

    if not _NAME.fullmatch(name):
        raise click.BadParameter("a name is 1 to 64 letters, digits, - and _, and begins with a letter or digit")
    parse_url(url)
    path = path_of(os.environ)
    old = load(path)
    save(path, Contexts({**old.urls, name: url}, name if use_it else old.current))
    print(f"{'changed' if name in old.urls else 'added'} {name}{', in use now' if use_it else ''}")


@context.command(epilog=example("walrq context use prod"))
@click.argument("name", required=False, shell_complete=complete_contexts)
@click.option("--none", "nothing", is_flag=True, help="Use no context.")
def use(name: str | None, nothing: bool) -> None:
    """Use NAME where neither an option nor a variable names a server."""
    if (name is None) != nothing:
        raise click.UsageError("give NAME, or --none")
    path = path_of(os.environ)
    contexts = load(path)
    if name is not None:
        _url(contexts, name, path)
    save(path, attrs.evolve(contexts, current=name))
    overruled = next((variable for variable in _OURS if os.environ.get(variable)), None)
    print(f"using {name or 'no context'}" + (f"; {overruled} is set and wins over it" if overruled else ""))


@context.command("list", epilog=example("walrq context list --json"))
@json_option
def list_contexts(as_json: bool) -> None:
    """All contexts; a star marks the one in use."""
    from walrq.client.config import without_token

    contexts = load(path_of(os.environ))
    for name, url in sorted(contexts.urls.items()):
        if as_json:
            output.json_line({"context": name, "url": without_token(url), "in_use": name == contexts.current})
    if not as_json:
        rows = [
            ("*" if name == contexts.current else "", name, without_token(url))
            for name, url in sorted(contexts.urls.items())
        ]
        output.table(("", "context", "url"), rows)


@context.command(epilog=example("walrq context show"))
@click.argument("name", required=False, shell_complete=complete_contexts)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """The URL of NAME; without it, which server commands speak to here, and why."""
    from walrq.client.config import without_token

    target = resolve(None, name, os.environ)
    target = attrs.evolve(target, url=without_token(target.url))
    if as_json:
        output.json_line(attrs.asdict(target))
    elif name is not None:
        print(target.url)
    else:
        output.table(("server", "from"), [(target.url, target.origin)])


@context.command(epilog=example("walrq context remove old"))
@click.argument("name", shell_complete=complete_contexts)
def remove(name: str) -> None:
    """Forget NAME."""
    path = path_of(os.environ)
    old = load(path)
    _url(old, name, path)
    urls = {each: url for each, url in old.urls.items() if each != name}
    save(path, Contexts(urls, None if old.current == name else old.current))
    print(f"removed {name}" + ("; no context is in use now" if old.current == name else ""))


COMMANDS = (context,)
