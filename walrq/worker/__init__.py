"""Workers: functions that are called somewhere else, later, at least once.

    import walrq

    worker = walrq.Worker()

    @worker.task(queue="mail", retries=5, timeout=60)
    def send_mail(to: str, text: str) -> None: ...

    send_mail.enqueue("ada@example.com", text="hello")      # in the web application
    $ walrq worker app:worker --concurrency 8               # in another terminal

How it is built, from the outside in:

    application  Worker: what a program declares; run, serve, stop
    tasks        Task and its options: a typed function that can also be enqueued
    arguments    signature and CBOR form of a call                                         pure
    backoff      how long until the next attempt                                           pure
    outcomes     what a handler may raise, and what becomes of its message                 pure
    context      what a handler sees of its message, its lease and its worker
    publishing   the blocking client behind `enqueue`, made on first use
    serving      one run of a worker: the nursery tree, from the first poll to the last ack
    intake       which queues are asked for how many messages, and what waits its turn     pure
    running      one message: middleware, handler, and what came of it
    settling     results gathered to few acks and nacks, repeated until they are answered
    leases       who holds what until when, and what is due                                pure
    receiving    polls, in a thread of its own
    keeper       extends leases, in a thread of its own
    mailbox      from those threads to the event loop; says when the loop is blocked
    records      ids on every line of the log

The promise: a message is handed out until some handler's success was acknowledged, so a handler may run more than once,
and never with a lease that this side knows to be over. Nothing here is ever unpickled.
"""
