"""Secrets in files, without the white space around them. Blocking.

Who else may read such a file is said in a warning (container platforms hand secrets out readable for all, and they are
right to: nobody else is in there); a file that anybody may write is refused, because the secret in it is anybody's.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

from walrq.errors import ConfigError
from walrq.limits import TOKEN_BYTES_MAX

log = logging.getLogger("walrq.locks")
# Who runs no node has set up no logs, and is not to be spoken to for that.
log.addHandler(logging.NullHandler())

_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH


def read_secret(path: str, setting: str, least: int, most: int = TOKEN_BYTES_MAX) -> str:
    """The secret in a file.

    Args:
        setting: its name, for errors.
        least, most: bytes it may have.

    Raises:
        ConfigError: it cannot be read, anybody may write it, or it is too short or too long.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(2 * most)
        secret = data.decode().strip()
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error.strerror}", setting=setting) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} {path} is not text", setting=setting) from None
    if mode & stat.S_IWOTH:
        raise ConfigError(f"{setting} {path} can be written by anybody (mode {mode:03o}): chmod 600", setting=setting)
    if not least <= len(secret.encode()) <= most:
        raise ConfigError(
            f"{setting} {path}: the secret has {len(secret.encode())} bytes, allowed are {least} to {most}",
            setting=setting,
        )
    if mode & _OTHERS_READ:
        log.warning("secret_file_readable %s=%s mode=%03o: others can read it, chmod 600 it", setting, path, mode)
    return secret
