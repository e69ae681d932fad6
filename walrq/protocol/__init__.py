"""The native wire protocol, sans-IO: bytes in, events out, and back. Shared by daemon and client.

How to drive a server's end::

    connection = ServerConnection(welcome=judge)          # judge(Hello) -> Welcome | Failed
    for event in connection.receive(data):                # HelloReceived, Incoming, BadRequest, Closed
        ...                                               # later: connection.reply(event.id, api_reply)
    socket.send(connection.take_output())                 # one string for all that gathered
    connection.receive_eof()                              # when the peer ended the stream

and a client's::

    connection = ClientConnection(Hello(client="me/1"))
    socket.send(connection.take_output())
    connection.receive(data)                              # Welcomed, Answer, WentAway, Closed
    number = connection.request(api.Ping())

The caller owes: time-outs (handshake; a frame begun and not finished, `connection.frames.partial`),
back-pressure (`in_flight`), and that one connection object is used by one thread at a time. The protocol
never touches a socket, a clock or randomness, and raises `LocalProtocolError` only for mistakes of its own
side: what the peer does wrong comes as `BadRequest` or `Closed`.

Files: framing (length prefix), codec (plain CBOR), fields (single checks), requests and replies (the tables),
handshake, server and client (the two ends), columns (lists of messages into batches and back).
docs/protocol.md is the text for other languages, spec/protocol.cddl the contract.
"""
