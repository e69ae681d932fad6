"""Mutual TLS between nodes: who holds a certificate of the cluster's own authority is let in, nobody else.

Names in certificates are not compared with addresses: nodes move, and the authority is the cluster's own. The shared
secret is asked for all the same, and its proofs cover the TLS channel.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

from walrq.errors import ConfigError


@attrs.frozen
class PeerTls:
    """The two contexts of a node: as it dials and as it is dialed."""

    client: ssl.SSLContext
    server: ssl.SSLContext

    @classmethod
    def load(cls, cert: Path | str, key: Path | str, ca: Path | str) -> PeerTls:
        """From PEM files: this node's certificate, its key, and the authority that signs all nodes'. Blocking.

        Raises:
            ConfigError: a file cannot be read or does not fit; the text names the setting.
        """
        for setting, path in (("peer_tls_cert", cert), ("peer_tls_key", key), ("peer_tls_ca", ca)):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"{setting} {str(path)!r} cannot be read: {error.strerror}", field=setting) from None
        contexts = []
        for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cafile=ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"peer_tls_ca {str(ca)!r} holds no certificate: {error}", field="peer_tls_ca"
                ) from None
            try:
                context.load_cert_chain(cert, key, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    f"peer_tls_cert {str(cert)!r} and peer_tls_key {str(key)!r} are no pair: {error}",
                    field="peer_tls_cert",
                ) from None
            contexts.append(context)
        return cls(*contexts)


def _no_password() -> str:
    """Instead of asking on a terminal that nobody watches."""
    raise ValueError("the key is encrypted; a daemon has nobody to ask for the password")
