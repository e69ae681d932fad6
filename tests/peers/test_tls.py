"""Mutual TLS between nodes: certificates of the cluster's own authority, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.peers.harness import append, beat, dial, group, lines, until
from walrq.errors import ConfigError
from walrq.peers.tls import PeerTls


class Authority:
    """Signs certificates and writes the files that a node is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def files(self, node: str) -> tuple[Path, Path, Path]:
        """(certificate, key, authority)."""
        issued = self._ca.issue_cert(f"{node}.example")
        cert, key = self.folder / f"{node}.pem", self.folder / f"{node}.key"
        cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key, self.ca

    def tls(self, node: str) -> PeerTls:
        """What the daemon makes of them."""
        return PeerTls.load(*self.files(node))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The cluster's authority."""
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Somebody else's."""
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.mark.trio
async def test_nodes_of_one_authority_talk_over_tls(ours: Authority) -> None:
    """Everything as over plain TCP: order, large messages, both directions."""
    async with group() as nodes:
        anna = await nodes.start("anna", tls=ours.tls("anna"))
        bert = await nodes.start("bert", {"anna": anna.address}, tls=ours.tls("bert"))
        await bert.wait_up("anna")
        await anna.wait_up("bert")
        for index in range(40):
            anna.mesh.send([append("anna", "bert", index, b"x" * 50_000, filled=index % 2 == 0)])
        anna.mesh.send([beat("anna", "bert", 5)])
        bert.mesh.send([beat("bert", "anna", 6)])
        await bert.wait_got(41)
        await anna.wait_got(1)

        assert list(range(40)) == [m.prev_index for m in bert.got if m != beat("anna", "bert", 5)]  # type: ignore[attr-defined]
        assert [beat("bert", "anna", 6)] == anna.got


@pytest.mark.trio
async def test_a_certificate_of_another_authority_is_refused_on_both_ends(
    ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The secret alone opens nothing where certificates are asked for."""
    async with group() as nodes:
        bert = await nodes.start("bert", tls=ours.tls("bert"))
        carl = await nodes.start("carl", {"bert": bert.address}, tls=theirs.tls("carl"))
        anna = await nodes.start("anna", {"bert": bert.address}, tls=ours.tls("anna"))
        await until(lambda: "TLS" in carl.mesh.stats()["bert"].last_error)
        await until(lambda: lines(caplog, "peer_refused"))
        await anna.wait_up("bert")

        assert "CERTIFICATE_VERIFY_FAILED" in carl.mesh.stats()["bert"].last_error
        assert "TLS:" in lines(caplog, "peer_refused")[0]
        assert "carl" not in bert.mesh.stats()


@pytest.mark.trio
async def test_a_node_without_tls_is_refused_where_it_is_asked_for(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a cluster configured otherwise than the rest."""
    async with group() as nodes:
        bert = await nodes.start("bert", tls=ours.tls("bert"))
        carl = await nodes.start("carl", {"bert": bert.address})
        await until(lambda: lines(caplog, "peer_refused"))
        await until(lambda: "does it ask for TLS?" in carl.mesh.stats()["bert"].last_error)

        assert "TLS:" in lines(caplog, "peer_refused")[0]
        assert "carl" not in bert.mesh.stats()


@pytest.mark.trio
async def test_a_node_with_tls_says_so_where_nobody_else_has_it(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The same from the other side: the acceptor names what it hears."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        await nodes.start("carl", {"bert": bert.address}, tls=ours.tls("carl"))
        await until(lambda: lines(caplog, "peer_refused"))

        assert "look like TLS" in lines(caplog, "peer_refused")[0]


@pytest.mark.trio
async def test_garbage_on_a_tls_port_is_refused(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger gets no further than the TLS library."""
    async with group() as nodes:
        bert = await nodes.start("bert", tls=ours.tls("bert"))
        async with await dial(bert.address) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: lines(caplog, "peer_refused"))

        assert "TLS:" in lines(caplog, "peer_refused")[0]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_file_that_cannot_be_read_is_named(ours: Authority, missing: int) -> None:
    """The setting and the path, in one line."""
    files = list(ours.files("anna"))
    files[missing] = ours.folder / "nothing.pem"
    with pytest.raises(ConfigError, match=("peer_tls_cert", "peer_tls_key", "peer_tls_ca")[missing]):
        PeerTls.load(*files)


def test_a_key_of_another_certificate_is_refused(ours: Authority) -> None:
    """At the start, not at the first connection."""
    cert, _, ca = ours.files("anna")
    _, key, _ = ours.files("bert")
    with pytest.raises(ConfigError, match="no pair"):
        PeerTls.load(cert, key, ca)


def test_an_authority_that_is_none_is_refused(ours: Authority) -> None:
    """A key where a certificate belongs."""
    cert, key, _ = ours.files("anna")
    with pytest.raises(ConfigError, match="peer_tls_ca"):
        PeerTls.load(cert, key, key)
