"""Ports for nodes that are told where to listen before they run."""

from __future__ import annotations

import errno
import itertools
import os
import socket

# Below what kernels draw from for those who do not choose (Linux: 32768 and up). There a port that was free a moment
# ago may be any other process's next connection.
LOWEST, BEYOND = 20_000, 32_000
# Processes of one run begin far from each other.
_numbers = itertools.count(os.getpid() * 61)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, another one each time."""
    for number in itertools.islice(_numbers, BEYOND - LOWEST):
        port = LOWEST + number % (BEYOND - LOWEST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError(f"every port from {LOWEST} to {BEYOND - 1} is taken")


def free_range(ports: frozenset[int]) -> int:
    """What to add to each of these ports so that nobody listens on any of them."""
    for _ in range(100):
        shift = free_port() - min(ports)
        free = 0
        for port in ports:
            if LOWEST <= port + shift < BEYOND:
                try:
                    with socket.create_server(("127.0.0.1", port + shift)):
                        free += 1
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
        if free == len(ports):
            return shift
    raise AssertionError(f"{len(ports)} free ports in a row were not found")
