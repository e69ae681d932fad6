"""How a headless Chromium is started."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")


def command(profile: Path, *more: str) -> list[str]:
    """The command line of a browser that keeps to `profile` and asks nobody but the test's pages."""
    return [
        next(found for name in PROGRAMS if (found := shutil.which(name))),
        "--headless=new",
        # Containers and root have no name spaces to give; the pages are the test's own.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={profile}",
        *more,
    ]
