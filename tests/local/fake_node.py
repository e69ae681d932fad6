"""Stands in for `walrq serve`: says that it is ready and ends on SIGTERM, unless its data directory says otherwise.

A file in the data directory is an order: `fail` ends it with a status before it is ready, `deaf` makes it ignore
the first SIGTERM and tell the FIFO `heard` of it. What it was given as arguments is in `arguments`, one a line.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path


def main() -> int:
    """One life."""
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    data = Path(flags["--data-dir"])
    data.mkdir(exist_ok=True)
    stops = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    (data / "arguments").write_text("\n".join(sys.argv[1:]))
    if (data / "fail").exists():
        print(json.dumps({"event": "fatal", "text": "fatal DataDirLocked: it is in use"}), file=sys.stderr)
        return int((data / "fail").read_text())
    endpoints = {"cbor": flags["--listen"], "peer": flags["--peer-listen"]}
    print(json.dumps({"event": "ready", "node": flags["--node-id"], "endpoints": endpoints}), flush=True)
    told = 0
    while True:
        number = signal.sigwait(stops)
        told += 1
        with (data / "signals").open("a") as file:
            file.write(signal.Signals(number).name + "\n")
        if number == signal.SIGUSR1:
            print("the disk is gone", file=sys.stderr)
            return 74
        if not (data / "deaf").exists():
            return 0
        if told == 2:
            return 143
        (data / "heard").write_text("x")


if __name__ == "__main__":
    sys.exit(main())
