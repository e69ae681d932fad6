"""Who may do what: tokens, rights, limits, and the lines that say who did it.

    lock.identify(user, secret) ─► Principal ─► check(principal, request) ─► nothing, or Unauthenticated / Forbidden
                                       └────── its Allowance: how much at a time

A door asks for credentials once per connection (HTTP: once per request), keeps the principal, and checks each request
before it submits it. Where no lock is configured the principal is `ANYONE`, which is never checked at all: whether
there is something to check is decided when a connection is made, and not for each request.

    rights      one table: which right each request needs, and on which queues
    principals  who asks; `check`
    book        the tokens that the cluster knows, as replicated state (digests, never secrets)
    lock        all secrets of a node: its own from its settings, the cluster's from the book
    allowance   requests, bytes and requests in flight of a token
    audit       the lines of `walrq.audit`

Never: a clock (times are handed in), a file, a socket; a secret is in no repr and no error.
"""
