"""Every room says what it is for, and the public names are exactly those that are promised.

A module opens with one plain sentence that says what it does; every public object explains itself.
"""

import ast
import inspect
import re
from types import ModuleType

import dragoman
from tests.architecture.tree import sources

SENTENCE_END = re.compile(r"[.!?][)\"'`]*(\s|$)")


def test_every_module_opens_with_its_purpose() -> None:
    terse = [
        source.name
        for source in sources()
        if len(SENTENCE_END.findall(ast.get_docstring(source.tree) or "")) < 1
    ]
    assert not terse


def test_the_public_names_are_those_promised() -> None:
    promised = list(dragoman.__all__)
    assert promised == sorted(set(promised))
    visible = {
        name
        for name in dir(dragoman)
        if not name.startswith("_") and not isinstance(getattr(dragoman, name), ModuleType)
    }
    assert visible == {name for name in promised if not name.startswith("_")}


def test_every_public_object_explains_itself() -> None:
    silent = [
        name
        for name in dragoman.__all__
        if (inspect.isclass(value := getattr(dragoman, name)) or inspect.isroutine(value))
        and not (own_docstring(value) or "").strip()
    ]
    assert not silent


def own_docstring(value: object) -> str | None:
    """The docstring written for `value` itself: one inherited from a base explains the base."""
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
