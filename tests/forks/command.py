"""What a shell script calls in place of `python -m walrq`: `python -I -S command.py SOCKET ARGUMENTS...`.

It hands its streams, variables and arguments to the server (server.py), passes signals on, and ends as the command
did. It imports next to nothing, because its start is all that such a run costs.

The server says when the run needs a real interpreter; where there is no server any more, it is one as well.
"""

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import marshal
import posix
import select
import sys

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
# These an interpreter ignores by itself.
ALWAYS_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


def really(arguments: tuple[str, ...]) -> None:
    """Become the interpreter that was wanted."""
    posix.execv(sys.executable, [sys.executable, "-m", "walrq", *arguments])


def main(name: str, *arguments: str) -> int:
    """The command's exit status; its own end by a signal is this process's too."""
    mask = posix.umask(0)
    posix.umask(mask)
    ignored = [
        int(number)
        for number in signal.valid_signals()
        if number not in ALWAYS_IGNORED and signal.getsignal(number) == signal.SIG_IGN
    ]
    asked = {
        "arguments": list(arguments),
        "environment": posix.environ,
        "folder": posix.getcwd(),
        "new_session": False,
        "ignored": ignored,
        "umask": mask,
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect("\0" + name)
    except OSError:
        really(arguments)

    body = marshal.dumps(asked)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    head = len(body).to_bytes(4, "little")
    sent = server.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(head[sent:] + body)
    if server.recv(1) != b"\x01":
        really(arguments)
    server.setblocking(False)
    # The number of each goes to the server as it comes, whatever this process is just doing.
    signal.set_wakeup_fd(server.fileno())
    for number in PASSED_ON:
        if number not in ignored:
            signal.signal(number, lambda number, frame: None)
    # Whoever reads what the command writes must see its end.
    nothing = posix.open("/dev/null", posix.O_RDWR)
    for number in range(3):
        posix.dup2(nothing, number)
    answer = b""
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    while len(answer) < 4:
        waiting.poll()
        more = server.recv(4 - len(answer))
        if not more:
            return 1
        answer += more
    status = int.from_bytes(answer, "little", signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        posix.kill(posix.getpid(), -status)
    return status


posix._exit(main(*sys.argv[1:]))
