"""The key that seals reasoning: out of the environment, or a file of its own, made when needed.

It knows where the key is kept, and not what is done with it. A server whose memory is its process
has a key that ends with it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dragoman.engines.seal import Seal
from dragoman.server.configuration import ConfigurationError
from dragoman.server.settings import Settings
from dragoman.stores.base import StoreError
from dragoman.stores.factory import data_directory

FILE = "seal.key"
LENGTH = 32
SHORTEST = 16
"""Characters of a key in the environment, at the least."""


def open_seal(settings: Settings, environ: Mapping[str, str]) -> Seal:
    """The seal that the settings describe. Raises ConfigurationError for a variable that holds no
    key."""
    if settings.seal_key_env is not None:
        value = environ.get(settings.seal_key_env, "").strip().encode()
        if len(value) < SHORTEST:
            raise ConfigurationError(
                f"The environment variable {settings.seal_key_env} should hold the key that seals "
                f"reasoning, at least {SHORTEST} characters of it."
            )
        return Seal(lambda: value)
    if settings.store == "memory":
        return Seal(_fresh)
    try:
        folder = data_directory(environ)
    except StoreError:  # a user without a home, which is no reason to have no seal
        return Seal(_fresh)
    return Seal(file_key(folder / FILE))


def file_key(path: Path) -> Callable[[], bytes]:
    """Reads the key in a file, and makes both where they are missing. Where the file can be
    neither read nor made, the key lives as long as the process."""

    def key() -> bytes:
        with suppress(OSError):
            if not path.exists():
                _make(path)
            if len(held := path.read_bytes()) >= LENGTH:
                return held
        return _fresh()

    return key


def _make(path: Path) -> None:
    """Make the file for its owner alone, whole at once: another server may be making it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_fresh())
    try:
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()


def _fresh() -> bytes:
    return secrets.token_bytes(LENGTH)
