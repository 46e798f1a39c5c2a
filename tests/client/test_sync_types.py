"""The types of the synchronous face say what the methods behind it are, without `await`."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.client import Client, Stream, SyncClient, SyncStream

OF_GENERATORS = {"asend", "athrow", "aclose", "prepare", "start", "sync"}
"""What an engine needs and no person calls, and the face itself."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def asked(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())


@pytest.mark.parametrize(("face", "behind"), [(SyncClient, Client), (SyncStream, Stream)])
def test_sync_client_has_the_attributes_of_the_client(face, behind) -> None:
    assert public(face) == public(behind) - OF_GENERATORS - {"acts_on"}
    for name in public(face):
        said, meant = inspect.getattr_static(face, name), inspect.getattr_static(behind, name)
        assert isinstance(said, property) == isinstance(meant, property), name
        if not isinstance(said, property):
            assert asked(said) == asked(meant), name
