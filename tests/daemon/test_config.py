"""Settings: who wins, where each came from, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from walrq.daemon.config import NAMES, Config, check_file, parse_address, unknown_variables
from walrq.errors import Code, ConfigError


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """One order of precedence, and the origin of each value can be asked for."""
    file = tmp_path / "walrq.toml"
    file.write_text('data_dir = "from-file"\nnode_id = "from-file"\nfsync = "never"\n')
    config = Config.load(
        {"data_dir": "from-flag", "listen": None},
        {"WALRQ_DATA_DIR": "from-env", "WALRQ_NODE_ID": "from-env"},
        file,
    )

    assert ("from-flag", "from-env", "never") == (config.data_dir, config.node_id, config.fsync)
    assert {
        "data_dir": "--data-dir",
        "node_id": "WALRQ_NODE_ID",
        "fsync": f"{file}: fsync",
        "listen": "default",
    } == {name: config.origins[name] for name in ("data_dir", "node_id", "fsync", "listen")}
    assert list(NAMES) == [name for name, _, _ in config.rows()]


def test_the_ancestors_variables_are_understood() -> None:
    """NODE_ID was the address as well as the name; our own variables win over both."""
    config = Config.load({}, {"DATA_DIR": "old", "NODE_ID": "10.0.0.1:7000"})
    newer = Config.load({}, {"DATA_DIR": "old", "NODE_ID": "10.0.0.1:7000", "WALRQ_DATA_DIR": "new"})

    assert ("old", "10.0.0.1:7000", ("10.0.0.1", 7000)) == (config.data_dir, config.node_id, config.listen)
    assert "new" == newer.data_dir


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"listen": "[::1]:80"}, ("listen", ("::1", 80))),
        ({"listen": ":0"}, ("listen", ("", 0))),
        ({"fsync": "interval:20"}, ("fsync", ("interval", 20))),
        ({"max_wal_segment_size": "16MiB"}, ("max_wal_segment_size", 16 << 20)),
        ({"max_wal_segment_size": "16 MiB"}, ("max_wal_segment_size", 16 << 20)),
        ({"max_connections": "64"}, ("max_connections", 64)),
        ({"drain_timeout": "2.5"}, ("drain_timeout", 2.5)),
        ({"auto_create": "false"}, ("auto_create", False)),
        ({"auto_create": True}, ("auto_create", True)),
        ({"peer_listen": ":7000"}, ("peer_listen", ("", 7000))),
        ({"advertise": "n1.example:7000"}, ("advertise", "n1.example:7000")),
        ({"join": "a:1, [::1]:2,a:1"}, ("join", ("a:1", "[::1]:2"))),
        ({"join": ["a:1", "b:2"]}, ("join", ("a:1", "b:2"))),
        ({"bootstrap": "b=h:2,a=h:1", "node_id": "a"}, ("bootstrap", (("a", "h:1"), ("b", "h:2")))),
        ({"bootstrap": ["a=h:1", "b=h:2"], "node_id": "a"}, ("bootstrap", (("a", "h:1"), ("b", "h:2")))),
    ],
)
def test_values_are_read_from_text_as_well(given: dict[str, object], expected: tuple[str, object]) -> None:
    """The environment knows only text; the same readers serve all sources."""
    name, value = expected

    assert value == getattr(Config.load(given), name)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"listen": "localhost"}, "--listen: listen must be HOST:PORT"),
        ({"listen": "::1:80"}, "brackets around an IPv6 address"),
        ({"listen": "h:99999"}, "a port from 0 to 65535"),
        ({"fsync": "sometimes"}, "--fsync: fsync policy 'sometimes' is not one of always, never, interval:MS"),
        ({"max_connections": 0}, "max_connections is 0, allowed are 1 to"),
        ({"max_connections": "many"}, "max_connections must be a whole number"),
        ({"max_connections": True}, "max_connections must be a whole number"),
        ({"drain_timeout": "nan"}, "drain_timeout is nan, allowed are"),
        ({"drain_timeout": "-1"}, "drain_timeout is -1, allowed are"),
        ({"auto_create": "maybe"}, "auto_create must be true or false"),
        ({"max_wal_segment_size": "1 parsec"}, "KiB, MiB or GiB"),
        ({"max_wal_segment_size": "1000001"}, "is 1000001, it must be a multiple of 8"),
        ({"log_level": "loud"}, "log_level must be one of debug, info"),
        ({"data_dir": ""}, "data_dir must be text, and not empty"),
        ({"node_id": "a\nb"}, "printable text"),
        ({"peer_listen": "7000"}, "--peer-listen: peer_listen must be HOST:PORT"),
        ({"advertise": ":7000"}, "--advertise: advertise must be HOST:PORT as other nodes reach it"),
        ({"advertise": "0.0.0.0:7000"}, "with a host of its own"),
        ({"advertise": "h:0"}, "a port from 1 to 65535"),
        ({"join": "a:1,b"}, "--join: join must be HOST:PORT"),
        ({"join": ",".join(f"h:{port}" for port in range(1, 40))}, "join names 39 addresses, at most 32"),
        ({"bootstrap": "a"}, "--bootstrap: bootstrap must be NODE=HOST:PORT,NODE=HOST:PORT"),
        ({"bootstrap": "a=h:1,a=h:2"}, "names node 'a' twice"),
        ({"bootstrap": "a=h:1,b=h:1"}, "names the address h:1 twice"),
        ({"bootstrap": ",".join(f"n{n}=h:{n}" for n in range(1, 40))}, "names 39 nodes, at most 32"),
        ({"bootstrap": "a=h:1,b=h:2"}, "--bootstrap: bootstrap needs node_id: which of a, b is this node?"),
        ({"bootstrap": "a=h:1,b=h:2", "node_id": "c"}, "bootstrap names a, b, and not this node, c"),
        ({"bootstrap": "a=h:1", "node_id": "a", "join": "h:2"}, "join and bootstrap exclude each other"),
        ({"cluster_secret": "short"}, "cluster_secret has 5 bytes, allowed are 16 to 4096"),
        ({"cluster_secret": "x" * 16, "cluster_secret_file": "f"}, "and cluster_secret_file exclude each other"),
        ({"peer_tls_cert": "c", "peer_tls_ca": "a"}, "peer_tls_cert needs peer_tls_key: TLS between nodes is mutual"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_origin(given: dict[str, object], words: str) -> None:
    """The line says which source to correct, which setting, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        Config.load(given)

    assert words in caught.value.text
    assert Code.CONFIG_INVALID == caught.value.code


def test_an_unknown_key_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    """A mistyped key that was ignored would be a setting that silently has no effect."""
    file = tmp_path / "walrq.toml"
    file.write_text("max_conections = 5\n")
    with pytest.raises(ConfigError, match="did you mean max_connections") as caught:
        Config.load({}, {}, file)
    with pytest.raises(ConfigError, match="did you mean WALRQ_DATA_DIR"):
        Config.load({}, {"WALRQ_DATADIR": "x"})
    with pytest.raises(ConfigError, match="did you mean data_dir"):
        Config.load({"datadir": "x"})

    assert str(file) in caught.value.text
    assert "max_connections" == caught.value.details["nearest"]


def test_variables_of_others_are_not_taken_for_mistakes() -> None:
    """Container platforms make up WALRQ_SERVICE_HOST; the client has WALRQ_SERVER."""
    env = {"WALRQ_SERVICE_HOST": "10.1.2.3", "WALRQ_PORT": "tcp://10.1.2.3:50051", "WALRQ_SERVER": "walrq://x"}

    assert Config() == Config.load({}, env)


def test_variables_that_nobody_reads_are_found() -> None:
    """What a mistyped name looks like is refused; what only begins like ours is listed for whoever asks."""
    env = {"WALRQ_FSYNC": "never", "WALRQ_SERVICE_HOST": "h", "WALRQ_SERVER": "x", "WALRQ_COLOUR": "red", "HOME": "/"}

    assert ["WALRQ_COLOUR", "WALRQ_SERVICE_HOST"] == unknown_variables(env)


def test_a_file_is_checked_to_its_end(tmp_path: Path) -> None:
    """One mistake does not hide the next."""
    file = tmp_path / "walrq.toml"
    file.write_text('data_dr = "x"\nmax_connections = 0\nfsync = "never"\n')
    right, mistakes = check_file(file)

    assert (1, 2) == (right, len(mistakes))
    assert "did you mean data_dir?" in mistakes[0]
    assert f"{file}: max_connections: max_connections is 0" in mistakes[1]
    assert (0, 1) == (check_file(tmp_path / "absent")[0], len(check_file(tmp_path / "absent")[1]))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent and malformed files are errors, never silently the defaults."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Config.load({}, {}, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("data_dir = ")
    with pytest.raises(ConfigError, match=r"broken\.toml is not TOML"):
        Config.load({}, {}, broken)


def test_an_address_may_be_given_as_a_pair() -> None:
    """Programs hand in (host, port)."""
    assert ("127.0.0.1", 0) == parse_address(("127.0.0.1", 0))


def test_the_secret_comes_from_its_file_or_from_whoever_is_nearer_to_the_start(tmp_path: Path) -> None:
    """A container's variable wins over the file that its image names; the text itself is never shown."""
    file = tmp_path / "secret"
    file.write_text("  from-the-file-itself\n")
    settings = tmp_path / "walrq.toml"
    settings.write_text(f'cluster_secret_file = "{file}"\n')
    from_file = Config.load({}, {}, settings)
    nearer = Config.load({}, {"WALRQ_CLUSTER_SECRET": "from-the-variable"}, settings)

    assert (b"from-the-file-itself", b"from-the-variable") == (from_file.secret(), nearer.secret())
    assert "from-the-variable" not in repr(nearer) + repr(nearer.rows()) + str(nearer.text("cluster_secret"))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"\xff" * 17, "is not text"), (b"abc\n", "the secret has 3 bytes")],
)
def test_a_secret_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    """Without the secret no node would be let in, so the start says what is wrong with it."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        Config.load({"cluster_secret_file": str(file)}).secret()
    with pytest.raises(ConfigError, match=r"cluster_secret_file .* or WALRQ_CLUSTER_SECRET"):
        Config().secret()

    assert str(file) in caught.value.text


def test_what_a_start_kept_stands_behind_everything_that_is_given() -> None:
    """A restart needs only the directory, and a flag still changes what was kept. A secret is never kept."""
    first = Config.load({"peer_listen": "127.0.0.1:7001", "advertise": "h:7001", "cluster_secret": "x" * 20})
    kept = first.to_keep()
    again = Config.load({"advertise": "new:7001"}).with_kept(kept, "data/peers.json")

    assert {"peer_listen": "127.0.0.1:7001", "advertise": "h:7001"} == kept
    assert (("127.0.0.1", 7001), "new:7001") == (again.peer_listen, again.advertise)
    assert ("data/peers.json", "--advertise") == (again.origins["peer_listen"], again.origins["advertise"])
    assert again == again.reloaded()
    with pytest.raises(ConfigError, match=r"data/peers\.json: peer_listen: peer_listen must be text"):
        Config().with_kept({"peer_listen": 7}, "data/peers.json")
