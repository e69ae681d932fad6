"""The locks of a node's doors: secrets from files, TLS, and the doorman who asks who is there.

    doorman     `Doorman`, one per node: knows the lock, makes a `Guard` for each connection that has to be asked before
                each of its requests, ends those whose token was revoked, and keeps the cluster's tokens (`SetToken`,
                `RevokeToken`, `ListTokens`)
    tls         `DoorTls`, the certificate of a node's doors
    files       secrets in files: who else may read them

What may be done by whom is `walrq.access`'s to say.
"""
