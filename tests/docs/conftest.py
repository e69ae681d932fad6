"""The site, built while the other tests of this folder wait for their pages' processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html")


@attrs.frozen
class Site:
    """A build that is under way.

    Attributes:
        folder: where it puts the pages.
    """

    folder: Path
    _process: subprocess.Popen[str]

    def built(self) -> tuple[int, str]:
        """Wait for its end: exit status, and what it complained about."""
        _, complaints = self._process.communicate()
        return self._process.returncode, complaints


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Sphinx at work on docs/."""
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.Popen(
        [*BUILD, "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "site")],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Site(folder / "site", process)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture(scope="session", autouse=True)
def _site_begun(request: pytest.FixtureRequest) -> None:
    """Begin with the site at the folder's first test, if any test is to look at it."""
    if any("site" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("site")
