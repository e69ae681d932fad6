"""TLS at the doors of a node: its certificate, and if asked for, those of its clients.

Certificates are read when the node starts and again on SIGHUP; connections that are there keep theirs.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs
import trio

from walrq.errors import ConfigError
from walrq.limits import HANDSHAKE_TIMEOUT_S


@attrs.define
class DoorTls:
    """A node's certificate.

    Attributes:
        context: for connections from now on; `reload` puts another in its place.
        outgoing: for connections to the doors of other nodes of the cluster.
    """

    cert: str
    key: str
    client_ca: str | None
    ca: str | None
    context: ssl.SSLContext
    outgoing: ssl.SSLContext

    @classmethod
    def load(cls, cert: str, key: str, client_ca: str | None = None, ca: str | None = None) -> DoorTls:
        """From PEM files. Blocking.

        Args:
            cert, key: the node's certificate (with those between it and its authority) and key.
            client_ca: who has no certificate of this authority is not let in; None = nobody is asked for one.
            ca: who signed the other nodes' certificates; None = an authority that the system knows, or all nodes have
                the same certificate.

        Raises:
            ConfigError: a file cannot be read or does not fit; the text names the setting.
        """
        return cls(cert, key, client_ca, ca, _context(cert, key, client_ca), _outgoing(cert, key, ca))

    def reload(self) -> None:
        """Read the files again. Blocking.

        Raises:
            ConfigError: as `load`; the old certificate goes on.
        """
        context, outgoing = _context(self.cert, self.key, self.client_ca), _outgoing(self.cert, self.key, self.ca)
        self.context, self.outgoing = context, outgoing

    async def shake(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream] | None:
        """The stream, once both ends have shaken hands; None when that failed or took too long (it is closed then)."""
        wrapped = trio.SSLStream(stream, self.context, server_side=True, https_compatible=True)
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await wrapped.do_handshake()
                return wrapped
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # Said below; what exactly a stranger did wrong is for debugging.
                pass
        await trio.aclose_forcefully(stream)
        return None


def _context(cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    for setting, path in (("tls_cert", cert), ("tls_key", key), ("tls_client_ca", client_ca)):
        if path is not None:
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"{setting} {path!r} cannot be read: {error.strerror}", setting=setting) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"tls_cert {cert!r} and tls_key {key!r} are no pair: {error}", setting="tls_cert") from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cafile=client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_client_ca {client_ca!r} holds no certificate: {error}", setting="tls_client_ca"
            ) from None
    return context


def _outgoing(cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """Names in certificates are not compared with addresses, as between peers: nodes move."""
    context = ssl.create_default_context()
    context.check_hostname = False
    try:
        context.load_verify_locations(cafile=cert if ca is None else ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca {ca!r} holds no certificate: {error}", setting="tls_ca") from None
    context.load_cert_chain(cert, key, password=_no_password)
    return context


def _no_password() -> str:
    """Instead of asking on a terminal that nobody watches."""
    raise ValueError("the key is encrypted; a daemon has nobody to ask for the password")
