"""What clients say of themselves, and ask of the server, before and beside any work: answered at once.

What redis-cli and redis-py really send when they connect is answered as they need it: an error to HELLO, for one, ends
redis-py's connection whatever it says.
"""

from __future__ import annotations

from typing import Any, Final

from walrq.errors import InvalidArgument, UnsupportedVersion
from walrq.resp import arguments, writing
from walrq.resp.connection import RespConnection, Words

_WRONG: Final = writing.error("invalid username-password pair or user is disabled.", "WRONGPASS")
# redis-py knows this sentence.
_NO_PASSWORD: Final = writing.error("Client sent AUTH, but no password is set")
_NAME_BYTES_MAX: Final = 255


def ping(connection: RespConnection, words: Words) -> bytes:
    """PING [message]."""
    return writing.bulk(words[1]) if len(words) == 2 else writing.PONG


def echo(connection: RespConnection, words: Words) -> bytes:
    """ECHO message."""
    return writing.bulk(words[1])


def auth(connection: RespConnection, words: Words) -> bytes:
    """AUTH [user] password."""
    user = words[1] if len(words) == 3 else None
    return _log_in(connection, user, words[-1]) or writing.OK


def _log_in(connection: RespConnection, user: bytes | None, password: bytes) -> bytes | None:
    """None when the client is in, else the error."""
    host = connection.host
    if not host.has_password:
        return _NO_PASSWORD
    guard = host.admits(user, password, connection.peer)
    if guard is None:
        return _WRONG
    connection.is_in = True
    connection.guard = guard
    connection.user = str(guard.principal.name).encode()
    return None


def hello(connection: RespConnection, words: Words) -> bytes:
    """HELLO [2|3 [AUTH user password] [SETNAME name]]."""
    protocol = connection.protocol
    if len(words) > 1:
        if words[1] not in (b"2", b"3"):
            raise UnsupportedVersion("unsupported protocol version")
        protocol = int(words[1])
    name: bytes | None = None
    rest = words[2:]
    login: tuple[bytes, bytes] | None = None
    while rest:
        option = rest[0].upper()
        if option == b"AUTH" and len(rest) >= 3:
            login = (rest[1], rest[2])
            rest = rest[3:]
        elif option == b"SETNAME" and len(rest) >= 2:
            name = _client_name(rest[1])
            rest = rest[2:]
        else:
            raise InvalidArgument(f"HELLO knows AUTH user password and SETNAME name, not {arguments.shown(rest[0])}")
    if login is not None:
        failed = _log_in(connection, *login)
        if failed is not None:
            return failed
    if not connection.is_in:
        return writing.error(
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass>"
            " option can be used to authenticate the client and select the RESP protocol version at the same time",
            "NOAUTH",
        )
    if name is not None:
        connection.name = name
    connection.protocol = protocol
    facts: dict[str, Any] = {
        "server": "walrq",
        "version": connection.host.version,
        "proto": protocol,
        "id": connection.number,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return writing.encode(facts, protocol)


def _client_name(word: bytes) -> bytes:
    if len(word) > _NAME_BYTES_MAX or any(not 0x21 <= byte <= 0x7E for byte in word):
        raise InvalidArgument(f"a client name has at most {_NAME_BYTES_MAX} printable characters without spaces")
    return word


def client(connection: RespConnection, words: Words) -> bytes:
    """CLIENT SETNAME|GETNAME|ID|INFO|SETINFO|NO-EVICT|NO-TOUCH."""
    action = words[1].upper()
    count = len(words) - 2
    if action == b"SETNAME" and count == 1:
        connection.name = _client_name(words[2])
        return writing.OK
    if action == b"GETNAME" and not count:
        return writing.encode(connection.name or None, connection.protocol)
    if action == b"ID" and not count:
        return writing.integer(connection.number)
    if action in (b"INFO", b"LIST") and not count:
        return writing.bulk(_about(connection))
    if action == b"SETINFO" and count == 2:
        if words[2].upper() not in (b"LIB-NAME", b"LIB-VER"):
            raise InvalidArgument(f"SETINFO knows LIB-NAME and LIB-VER, not {arguments.shown(words[2])}")
        connection.library[words[2].upper()] = _client_name(words[3])
        return writing.OK
    if action in (b"NO-EVICT", b"NO-TOUCH") and count == 1:
        return writing.OK
    raise InvalidArgument(
        f"CLIENT knows SETNAME, GETNAME, ID, INFO, SETINFO, NO-EVICT and NO-TOUCH, not {arguments.shown(words[1])} with"
        f" {count} arguments"
    )


def _about(connection: RespConnection) -> bytes:
    library = connection.library
    return b"id=%d name=%b user=%b resp=%d lib-name=%b lib-ver=%b\n" % (
        connection.number,
        connection.name,
        connection.user,
        connection.protocol,
        library.get(b"LIB-NAME", b""),
        library.get(b"LIB-VER", b""),
    )


def select(connection: RespConnection, words: Words) -> bytes:
    """SELECT 0."""
    if arguments.integer(words[1], "index", -(1 << 63), (1 << 63) - 1):
        raise InvalidArgument("DB index is out of range: there is one database, 0; queues are told apart by name")
    return writing.OK


def quit(connection: RespConnection, words: Words) -> bytes:
    """QUIT."""
    connection.is_over = True
    return writing.OK


def reset(connection: RespConnection, words: Words) -> bytes:
    """RESET: as a new connection."""
    connection.protocol = 2
    connection.name = b""
    connection.is_in = not connection.host.has_password
    connection.guard = None
    return b"+RESET\r\n"


def replconf(connection: RespConnection, words: Words) -> bytes:
    """REPLCONF, with whatever a follower of the feed says of itself."""
    return writing.OK


_CONFIG: Final = {b"save": b"", b"appendonly": b"yes", b"maxmemory": b"0", b"databases": b"1"}


def config(connection: RespConnection, words: Words) -> bytes:
    """CONFIG GET name [name ...]: the few that tools ask for."""
    action = words[1].upper()
    if action == b"GET" and len(words) > 2:
        found = {name: _CONFIG[name] for name in map(bytes.lower, words[2:]) if name in _CONFIG}
        return writing.encode(found, connection.protocol)
    if action == b"RESETSTAT":
        return writing.OK
    raise InvalidArgument("settings are those of the process: flags, WALRQ_* and its file (walrq config show)")
