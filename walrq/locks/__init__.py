"""The locks of a node's doors: secrets from files, TLS, and the doorman who asks who is there.

    Doorman     one per node: knows the lock, makes a `Guard` for each connection that has to be asked, ends those
                whose token was revoked, and keeps the cluster's tokens (`SetToken`, `RevokeToken`, `ListTokens`)
    Guard       one per connection with a principal: asked before each request
    DoorTls     the certificate of a node's doors
    files       secrets in files: who else may read them

What may be done by whom is `walrq.access`'s to say.
"""

from walrq.locks.doorman import Doorman, Guard
from walrq.locks.tls import DoorTls

__all__ = ["DoorTls", "Doorman", "Guard"]
