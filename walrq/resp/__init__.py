"""The Redis protocol: commands of Redis clients in, requests of `api` out, and the answers back.

    connection = RespConnection(host, number)
    connection.receive(data)                 # what the client sent
    for ask in connection.take_asks():       # what it means: answer each, in any order
        connection.answer(ask.id, reply)
    connection.take_output()                 # replies, in the order of their commands

    reading       bytes -> commands, within bounds            writing       values -> bytes, RESP2 and RESP3
    arguments     words -> numbers, names, task ids           commands      THE table of commands
    hot           pushes, pops, acks: pipelined ones merged   talks         commands of several requests
    handshake     HELLO, AUTH, CLIENT, COMMAND, ...           connection    one connection: order, holding, replies

What a command means is the same at every other door; only the words differ. Never: a socket, a clock, a task, the
state machine.
"""
