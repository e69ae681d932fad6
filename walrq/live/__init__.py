"""What goes on until it is stopped: the moving parts beneath the command line.

    rates      two looks at a node -> messages per second                     pure
    board      what `walrq top` shows, and what a key does to it              pure
    screen     the terminal: the other screen, keys as they come, all put back
    top        a look, a picture, a key: until q
    tail       new messages of a queue, by peeking
    handover   a command for each message, its exit status the verdict
    empty      why a look found nothing
    redrive    dead messages back in small units, at a rate

It knows clients and terminals, never arguments: `walrq/cli/` reads those, opens the client and prints.
"""
