"""The Python client: asynchronous (anyio: trio and asyncio) and blocking, over the same sans-IO parts.

How a caller drives it is in `walrq` and `walrq.aio`. How it is built:

    config        where to connect and how patient to be
    operations    arguments -> api requests, replies -> results         pure
    messages      Message, Batch, MessageIds: lazy views of what came   pure
    exchange      sessions, retries, time-outs of all calls             pure, over protocol.ClientConnection
    addresses     which node next, and how to say that none is there
    merging       concurrent single calls travel together               pure, over exchange
    asynchronous  what people await; with carrier, the exchange driven by tasks, and parking, how a caller waits
    blocking      what people call; with pool and pump, the exchange driven by whichever caller's thread waits first
    journal       what the log is told of outages
    failures      errors only a client can meet
    reports       what a death report says of an exception             pure

What a caller is promised: a call that returned took effect once; a call that raised an error with `definite`
did not take effect; one that raised an `OutcomeUnknown` may have. Within a session (the default) every
request that changes something is retried under its sequence number, through broken connections and restarted
servers, until `timeout_s`.
"""
