"""What clients send when they connect, with and without a password."""

from __future__ import annotations

import pytest

from tests.resp.parts import Talk, frame

SERVER = b"$6\r\nserver\r\n$5\r\nwalrq\r\n$7\r\nversion\r\n$5\r\n1.2.3\r\n"
HELLO2 = b"*14\r\n" + SERVER + b"$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:7\r\n"
HELLO3 = b"%7\r\n" + SERVER + b"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n"
REST = b"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"


def test_hello_tells_the_server_and_changes_the_protocol() -> None:
    """Three is a map, two an array of its keys and values."""
    talk = Talk()
    assert talk.send("HELLO") == HELLO2 + REST
    assert talk.send("HELLO 3") == HELLO3 + REST
    assert talk.connection.protocol == 3
    assert talk.send("HELLO 2 SETNAME me") == HELLO2 + REST
    assert talk.send("CLIENT GETNAME") == b"$2\r\nme\r\n"


@pytest.mark.parametrize("version", ["1", "4", "x", "-3", "03"])
def test_an_unknown_version_changes_nothing(version: str) -> None:
    """NOPROTO is the word for it."""
    talk = Talk()
    assert talk.send(f"HELLO {version}").startswith(b"-NOPROTO ")
    assert talk.connection.protocol == 2
    assert talk.send("PING") == b"+PONG\r\n"


def test_what_redis_py_says_first_is_understood() -> None:
    """HELLO 3, maintenance notifications (an error is tolerated), its name and version."""
    talk = Talk()
    talk.send("HELLO 3")
    assert talk.send("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip").startswith(b"-ERR CLIENT knows")
    assert talk.send("CLIENT SETINFO LIB-NAME redis-py", "CLIENT SETINFO LIB-VER 8.1.0") == b"+OK\r\n+OK\r\n"
    assert b"lib-name=redis-py lib-ver=8.1.0" in talk.send("CLIENT INFO")


def test_what_redis_cli_says_first_is_understood() -> None:
    """COMMAND DOCS and COMMAND, then SELECT 0."""
    talk = Talk()
    assert talk.send("COMMAND DOCS").startswith(b"*")
    assert talk.send("COMMAND").startswith(b"*")
    assert talk.send("COMMAND COUNT") == b":%d\r\n" % len(talk.connection._commands)
    assert talk.send("COMMAND INFO lpush nonsense").startswith(b"*2\r\n*6\r\n$5\r\nlpush\r\n:-3\r\n")
    assert talk.send("SELECT 0") == b"+OK\r\n"
    assert talk.send("CONFIG GET save") == b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"


def test_before_the_password_nothing_is_done() -> None:
    """But PING, AUTH, HELLO and QUIT."""
    talk = Talk(b"secret")
    for command in ("LPUSH q x", "RPOP q", "INFO", "BGREWRITEAOF", "SYNC", "NONSENSE", "CLIENT ID", "COMMAND"):
        assert talk.send(command) == b"-NOAUTH Authentication required.\r\n"
    assert talk.asked == []
    assert talk.send("PING") == b"+PONG\r\n"
    assert talk.send("HELLO 3").startswith(b"-NOAUTH HELLO must be called")
    assert talk.connection.protocol == 2


def test_the_password_opens_by_auth_of_one_or_two_words_and_by_hello() -> None:
    """The user is `default`."""
    for command in ("AUTH secret", "AUTH default secret", "HELLO 3 AUTH default secret SETNAME x"):
        talk = Talk(b"secret")
        assert talk.send(command)[:1] in (b"+", b"%")
        assert talk.connection.is_in
        talk.send("LPUSH q x")
        assert len(talk.asked) == 1


def test_a_wrong_password_opens_nothing() -> None:
    """WRONGPASS is what clients make an exception of."""
    for command in ("AUTH wrong", "AUTH default wrong", "AUTH root secret", "HELLO 3 AUTH default wrong"):
        talk = Talk(b"secret")
        assert talk.send(command).startswith(b"-WRONGPASS ")
        assert not talk.connection.is_in
        assert talk.connection.protocol == 2


def test_a_pipelined_login_opens_what_is_behind_it() -> None:
    """Also when all of it comes in one read, and behind it more than a stranger may say."""
    talk = Talk(b"secret")
    big = b"x" * 100_000
    assert talk.raw(frame(b"AUTH", b"secret") + frame(b"LPUSH", b"q", big)) == b"+OK\r\n"
    assert len(talk.asked) == 1


def test_a_password_where_none_is_asked_for_is_an_error() -> None:
    """It tells of a setting that is missing, in the words redis-py knows."""
    talk = Talk()
    assert talk.send("AUTH secret") == b"-ERR Client sent AUTH, but no password is set\r\n"
    assert talk.send("HELLO 3 AUTH default secret") == b"-ERR Client sent AUTH, but no password is set\r\n"


def test_reset_is_as_a_new_connection() -> None:
    """The password is asked for again."""
    talk = Talk(b"secret")
    talk.send("HELLO 3 AUTH default secret SETNAME me")
    assert talk.send("RESET") == b"+RESET\r\n"
    assert talk.send("LPUSH q x").startswith(b"-NOAUTH")
    assert talk.connection.protocol == 2


def test_small_talk_has_its_answers() -> None:
    """Tools use it to see whether somebody is there."""
    talk = Talk()
    assert talk.send("PING hello", "ECHO hello", "REPLCONF ACK 1") == b"$5\r\nhello\r\n$5\r\nhello\r\n+OK\r\n"
    assert talk.send("PING a b") == b"+PONG\r\n"
    assert talk.send("CLIENT ID", "CLIENT SETNAME x") == b":7\r\n+OK\r\n"
    assert talk.send("CLIENT GETNAME") == b"$1\r\nx\r\n"
    assert talk.raw(frame(b"CLIENT", b"SETNAME", b"a b")).startswith(b"-ERR a client name")
