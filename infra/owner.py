"""A folder in which one process at a time keeps services."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..schemas.errors import ConfigError


@contextmanager
def owned(home: Path, lock: str) -> Generator[None]:
    """Holds `home` by a lock on a file of this name. Raises ConfigError naming who holds it.

    The kernel gives it back however this process ends. The file stays: another process may be about to lock it, and a
    new file of its name would be a second lock.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / lock).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(f"{home} is in use by process {file.read()}: choose another home (--home)") from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
