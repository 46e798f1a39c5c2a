"""Programs: functions of a model and of arguments, as nodes."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, overload

from .model import Model
from .nodes import EMPTY, Call, Node, Rule, node


class Program:
    """A function that takes a model and arguments, and returns the model. Called without the model
    it is a node; see `program`."""

    __program__ = True

    def __init__(self, function: Callable[..., Any], *, stateless: bool = False) -> None:
        functools.update_wrapper(self, function)
        self._function, self._stateless = function, stateless

    @overload
    def __call__(self, lm: Model, /, *args: Any, **kwargs: Any) -> Model: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Node: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Model):
            return args[0] + self(*args[1:], **kwargs)
        if not self._stateless:
            return Call(self._function, args, kwargs)
        key = (
            self._function,
            *map(_key, args),
            *((name, _key(kwargs[name])) for name in sorted(kwargs)),
        )
        return Rule(key, functools.partial(_built, self._function, args, kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Program:
        if instance is None:
            return self
        return Program(types.MethodType(self._function, instance), stateless=self._stateless)


def _key(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


def _built(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    given = function(EMPTY, *args, **kwargs)
    if given is None:
        name = getattr(function, "__name__", "the program")
        raise TypeError(f"{name} gave nothing, and must return nodes: end it with `return lm`")
    return node(given)


@overload
def program(function: Callable[..., Any], /) -> Program: ...
@overload
def program(
    *, stateless: bool = False, dedent: bool = True
) -> Callable[[Callable[..., Any]], Program]: ...
def program(
    function: Callable[..., Any] | None = None, /, *, stateless: bool = False, dedent: bool = True
) -> Any:
    """A decorator: makes a program of a function whose first parameter is the model, and which
    returns it. Called with the other arguments it is a node: `lm += greet("Ada")`.

    One that is `stateless` only appends nodes, and is part of a grammar; it may come back to
    itself. With `dedent` the texts of several lines in the function lose the indentation of the
    code. It may be a method, or asynchronous.

    >>> from dragoman.program import match, select
    >>> @program(stateless=True)
    ... def nested(lm):
    ...     return lm + select(["x", "(" + nested() + ")"])
    >>> match(nested(), "((x))") is not None
    True
    """
    if function is None:
        return functools.partial(program, stateless=stateless, dedent=dedent)
    if isinstance(function, staticmethod | classmethod):
        raise TypeError("write @staticmethod above @program, and no @classmethod")
    return Program(_dedented(function) if dedent else function, stateless=stateless)


# ---- indentation -------------------------------------------------------------------------------


def _dedented(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its texts of several lines dedented; as it is where its source is not to be
    had."""
    if not isinstance(function, types.FunctionType):
        return function
    with suppress(OSError, SyntaxError, TypeError):
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
        body = tree.body[0]
        if not isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef):
            return function
        walker = _Dedent(ast.get_docstring(body, clean=False))
        walker.visit(body)
        if not walker.changed:
            return function
        body.decorator_list = []
        ast.increment_lineno(tree, first - 1)
        free = function.__code__.co_freevars
        names = [ast.arg(name) for name in free]
        outer = ast.FunctionDef(
            name="outer",
            args=ast.arguments(
                posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[]
            ),
            body=[body],
            decorator_list=[],
        )
        ast.copy_location(outer, body)
        vars(outer).setdefault("type_params", [])  # which 3.12 wants
        module = ast.fix_missing_locations(ast.Module([outer], []))
        compiled = compile(module, function.__code__.co_filename, "exec")
        inner = _code(_code(compiled, "outer"), function.__name__)
        cells = dict(zip(free, function.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in inner.co_freevars)
        made = types.FunctionType(
            inner, function.__globals__, function.__name__, function.__defaults__, closure
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return functools.update_wrapper(made, function)
    return function


def _code(code: types.CodeType, name: str) -> types.CodeType:
    codes = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return next(each for each in codes if each.co_name == name)


class _Dedent(ast.NodeTransformer):
    """Dedents the texts of a function. What is put into an f-string has no part in that."""

    def __init__(self, docstring: str | None) -> None:
        self.changed = False
        self._docstring = docstring

    def visit_Constant(self, node: ast.Constant) -> ast.AST:  # ast's name
        if isinstance(node.value, str) and "\n" in node.value and node.value != self._docstring:
            return self._with(node, _outdented([node.value])[0])
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:  # ast's name
        parts = [each for each in node.values if isinstance(each, ast.Constant)]
        if any("\n" in str(each.value) for each in parts):
            texts = [
                str(each.value) if isinstance(each, ast.Constant) else None for each in node.values
            ]
            for part, text in zip(node.values, _outdented(texts), strict=True):
                if isinstance(part, ast.Constant):
                    self._with(part, text)
        return node

    def _with(self, node: ast.Constant, text: str) -> ast.Constant:
        self.changed = self.changed or node.value != text
        node.value = text
        return node


def _outdented(parts: list[Any]) -> list[str]:
    """Parts of a text (None: a value) without the indentation that its lines have in common."""
    mark = "\0"
    whole = mark.join("" if part is None else part for part in parts)
    lines = whole.split("\n")
    starts = [len(line) - len(line.lstrip(" \t")) for line in lines[1:] if line.strip(" \t")]
    least = min(starts, default=0)
    first = lines[0]
    rest = [line[least:] for line in lines[1:]]
    return "\n".join((first, *rest)).split(mark)
