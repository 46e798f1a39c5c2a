"""Purity beyond what imports show: no await, no I/O by built-ins, no connection by a side door.

The import contracts keep clocks and sockets out of core, wire and formats; these tests keep out
what needs no import, and keep connections made through the event loop inside net.
"""

import ast
from collections.abc import Callable, Iterable

from tests.architecture.tree import Source, rooms, sources

PURE = ("core", "wire", "formats")
WAITING = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
WORLDLY = {"open", "print", "input", "breakpoint", "eval", "exec", "__import__"}
CONNECTING = {
    "open_connection",
    "open_unix_connection",
    "create_connection",
    "create_unix_connection",
    "create_datagram_endpoint",
    "sock_connect",
    "urlopen",
}


def places(modules: Iterable[Source], rule: Callable[[ast.AST], bool]) -> list[str]:
    """File and line of every node of `modules` for which `rule` holds."""
    return [
        f"{source.name}:{getattr(node, 'lineno', '?')}"
        for source in modules
        for node in ast.walk(source.tree)
        if rule(node)
    ]


def waits(node: ast.AST) -> bool:
    return isinstance(node, WAITING) or (isinstance(node, ast.comprehension) and node.is_async)


def touches_the_world(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLDLY
    )


def opens_a_connection(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in CONNECTING) or (
        isinstance(node, ast.alias) and node.name in CONNECTING
    )


def test_pure_rooms_never_wait() -> None:
    assert not places(rooms(*PURE), waits)


def test_pure_rooms_touch_nothing() -> None:
    assert not places(rooms(*PURE), touches_the_world)


def test_only_net_opens_connections_through_the_loop() -> None:
    inside = rooms("net")
    outside = [source for source in sources() if source not in inside]
    assert not places(outside, opens_a_connection)
