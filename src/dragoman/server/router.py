"""Which path is answered by what: a table, looked up by path and then by method.

Whoever is not in the table is not found; the table also says which few routes ask for no key. It
knows no handler's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller

from .exchange import Exchange

Handler = Callable[[Exchange, Caller], Awaitable[None]]


BASE = "/v1"
"""What base URLs end with, and clients forget."""


class Route(Struct, frozen=True):
    """A path and what is done there. A path that ends in `/` stands for all below it.

    `public` routes are open to those without a key.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False


class MethodNotAllowedError(FaultError):
    """The path is there and does not take this method; `allow` names those it takes."""

    def __init__(self, method: str, path: str, allow: str) -> None:
        problem = f"{path} does not take {method}; it takes {allow}."
        super().__init__(Fault("method_not_allowed", problem, "client"))
        self.allow = allow


class Router:
    """The table of routes."""

    def __init__(self, routes: Collection[Route]) -> None:
        self._paths: dict[str, dict[str, Route]] = {}
        self._trees: dict[str, dict[str, Route]] = {}
        self._public = {route.path for route in routes if route.public}
        for route in routes:
            table = self._trees if route.path.endswith("/") else self._paths
            methods = table.setdefault(route.path, {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route

    def is_public(self, path: str) -> bool:
        """Whether a path asks for no key."""
        return path in self._public

    def find(self, method: str, path: str) -> Handler:
        """The handler of a request. Raises FaultError where there is none."""
        methods = self._paths.get(path) or self._below(path)
        if methods is None:
            hint = f" Did you mean {BASE}{path}?" if f"{BASE}{path}" in self._paths else ""
            raise FaultError(nothing_at(path, hint))
        route = methods.get(method)
        if route is None:
            raise MethodNotAllowedError(method, path, ", ".join(sorted(methods)))
        return route.handler

    def _below(self, path: str) -> dict[str, Route] | None:
        for tree, methods in self._trees.items():
            if path.startswith(tree) and len(path) > len(tree):
                return methods
        return None


def nothing_at(path: str, hint: str = "") -> Fault:
    """The fault for a path that leads nowhere."""
    return Fault("not_found", f"There is nothing at {path[:200]}.{hint}", "client")
