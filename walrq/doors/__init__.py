"""The doors beside the native one: each speaks one protocol on one socket, and means nothing but `api`.

    opening.run                 what the supervisor starts, with the sockets of the doors whose flags are set
    ├── forwarding              carries what a follower is asked to the leader, one hop
    └── a door each             resp, websocket, http: `run(entrance)`, accepting until told to stop

A door sees the broker through the `gate` only, which is the same on a leader and on a follower.
"""
