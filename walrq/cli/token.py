"""`walrq token ...`: who may do what in a cluster that asks who somebody is."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import Group, confirm, example, json_option, open_client, server_option, yes_option

if TYPE_CHECKING:
    from walrq.api import Grant, TokenInfo

_PREFIX: Final = "walrq_"
_SECRET_BYTES: Final = 32


@click.group(cls=Group, epilog=example("walrq token list"))
def token() -> None:
    """Who may do what: tokens, and the rights of each."""


def _grants(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> list[Grant]:
    from walrq.api import Grant, Right

    found = []
    for each in given:
        word, colon, pattern = each.partition(":")
        if word.upper() not in Right.__members__ or (colon and not pattern):
            raise click.BadParameter(f"{each!r} is not read, write or admin, with :PATTERN behind it or without")
        found.append(Grant(Right[word.upper()], pattern or "*"))
    return found


@token.command(epilog=example("walrq token create ci --grant write:jobs-* --grant read"))
@click.argument("name")
@click.option(
    "--grant",
    "grants",
    metavar="RIGHT[:PATTERN]",
    multiple=True,
    required=True,
    callback=_grants,
    help="read, write or admin, on the queues of PATTERN, in which one * stands for anything; all of them without one.",
)
@click.option("--requests-per-s", metavar="N", type=click.IntRange(1), help="Requests a second.  [no bound]")
@click.option("--bytes-per-s", metavar="N", type=click.IntRange(1), help="Bytes of requests a second.  [no bound]")
@click.option("--in-flight", metavar="N", type=click.IntRange(1), help="Requests without an answer.  [no bound]")
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Take the secret that is in FILE, instead of making one.",
)
@json_option
@server_option
def create(
    name: str,
    grants: list[Any],
    requests_per_s: int | None,
    bytes_per_s: int | None,
    in_flight: int | None,
    secret_file: Path | None,
    as_json: bool,
    server: str | None,
) -> None:
    """Make the token NAME; its secret is printed once, and kept nowhere.

    A token of that name gets another secret and other rights. The first token of a cluster locks it: it must be
    one with --grant admin. Say the secret with WALRQ_TOKEN or WALRQ_TOKEN_FILE.
    """
    import secrets

    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES) if secret_file is None else _read(secret_file)
    with open_client(server, session=False) as client:
        client.set_token(
            name,
            secret,
            grants,
            requests_per_s=requests_per_s,
            bytes_per_s=bytes_per_s,
            in_flight=in_flight,
        )
    if as_json:
        output.json_line({"token": name, "secret": secret if secret_file is None else None})
        return
    if secret_file is None:
        print(secret)
    output.note(f"made {name}; its secret is shown this once")


def _read(path: Path) -> str:
    from walrq.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--secret-file {path} cannot be read: {reason}") from None


@token.command("list", epilog=example("walrq token list --json"))
@json_option
@server_option
def list_tokens(as_json: bool, server: str | None) -> None:
    """All tokens and what they may do; never a secret."""
    with open_client(server, session=False) as client:
        found = client.list_tokens()
    if as_json:
        for each in found:
            output.json_line(_value(each))
        return
    rows = [
        (each.name, " ".join(_word(grant) for grant in each.grants), _limits(each), _date(each.set_ms))
        for each in found
    ]
    output.table(("token", "may", "limits", "made"), rows)


@token.command(epilog=example("walrq token revoke ci --yes"))
@click.argument("name")
@yes_option
@server_option
def revoke(name: str, yes: bool, server: str | None) -> int:
    """Forget the token NAME, and end its connections. Exit status 3 when there is none."""
    from walrq.errors import ERRORS, Code

    confirm(f"Revoke the token {name}?", yes, "whoever uses it is sent away")
    with open_client(server, session=False) as client:
        was_there = client.revoke_token(name)
    if not was_there:
        print(f"walrq: there is no token {name!r}", file=sys.stderr)
        return ERRORS[Code.QUEUE_NOT_FOUND].exit
    print(f"revoked {name}")
    return 0


def _word(grant: Grant) -> str:
    return f"{grant.right.name.lower()}:{grant.queues}"


def _limits(each: TokenInfo) -> str:
    limits = (("requests/s", each.requests_per_s), ("bytes/s", each.bytes_per_s), ("in flight", each.in_flight))
    return ", ".join(f"{number} {what}" for what, number in limits if number is not None) or "-"


def _date(wall_ms: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC).isoformat(timespec="seconds")


def _value(each: TokenInfo) -> dict[str, Any]:
    return {
        "token": each.name,
        "grants": [{"right": grant.right.name.lower(), "queues": grant.queues} for grant in each.grants],
        "requests_per_s": each.requests_per_s,
        "bytes_per_s": each.bytes_per_s,
        "in_flight": each.in_flight,
        "set_ms": each.set_ms,
    }


COMMANDS = (token,)
