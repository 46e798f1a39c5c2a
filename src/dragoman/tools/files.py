"""The hosted tool that searches the text of uploaded files, with citations.

What the model is shown of each call are numbered pieces of files. It cites them by their marks,
`【101†notes.md】`, which become annotations of its text.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.files import Found
from dragoman.core.interfaces import Caller
from dragoman.core.item import JSON, Annotation, Call, Unknown
from dragoman.core.request import FunctionTool
from dragoman.wire.files import (
    FILE_PREFIX,
    LONGEST_QUERY,
    MOST_QUERIES,
    Search,
    decode_options,
    found_object,
)

from .run import Context, Display, Session, Shown, Tool, ToolError, check_written, recorded

KIND = "file_search_call"
SECONDS = 60.0
NOTHING = "Nothing was found. Search with other words, or say that the files do not tell."
FIRST = 101
"""The number of the first piece: those of the pages of a browser, beside it, begin with 0."""
LONGEST_MARK = 80
"""Characters of a file's name in a mark."""
NO_LIBRARY = Fault(
    "unsupported",
    "There are no files here: they are searched by a server that stores them, started with "
    "`dragoman serve --tool files`.",
    "client",
)


class Library(Protocol):
    """What is searched: see `dragoman.server.state.files`."""

    async def check(self, caller: Caller, stores: Sequence[str]) -> None:
        """Raise FaultError where there is no vector store with one of these ids."""
        ...

    async def search(self, caller: Caller, stores: Sequence[str], search: Search) -> list[Found]:
        """The chunks that fit best, the best first. Raises FaultError."""
        ...


class FileSearch:
    """Searches the vector stores that a request names, in the library that the server has."""

    kinds = frozenset(("file_search",))
    searched: Library | None = None

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> Reading:
        """A search for one answer. Raises FaultError for options that make no sense, and for vector
        stores that are not there."""
        if self.searched is None:
            raise FaultError(NO_LIBRARY)
        stores, search = decode_options(asked)
        await self.searched.check(caller, stores)
        make = partial(Reading, self.searched, stores, search, items, caller)
        return await asyncio.to_thread(make) if caller.size else make()  # many items take long

    async def close(self) -> None:
        """There is nothing to be closed: the store is the server's."""


_DESCRIPTION = (
    "Searches the text of the user's files by words and meaning, and shows the pieces that fit "
    "best. Ask several short questions at once where one is not enough. Each piece begins with its "
    "mark, such as 【101†notes.md】. Write the mark behind each statement that rests on the piece."
)
_PARAMETERS: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": MOST_QUERIES,
            "description": "What to search for.",
        }
    },
    "required": ["queries"],
    "additionalProperties": False,
}
_HEAD = re.compile(r"^【([0-9]{1,9})†([^†【】\n]*)】 \((file-\w+), score", re.MULTILINE)
_FORGED = re.compile(r"【(?=[0-9]+(†|】))")


class Reading(Session):
    """What the model has for one answer: one function, and the pieces that it was shown so far."""

    def __init__(
        self,
        library: Library,
        stores: Sequence[str],
        search: Search,
        items: Sequence[Unknown],
        caller: Caller,
    ) -> None:
        self._library, self._stores, self._search = library, stores, search
        self._caller = caller
        self._shown: dict[int, tuple[str, str]] = {}
        for item in items:
            record = recorded(item) if item.kind == KIND else None
            if record is not None and isinstance(record.output, str):
                for head in _HEAD.finditer(record.output):
                    self._shown[int(head[1])] = head[3], head[2]
        self._last = max(self._shown, default=FIRST - 1)
        self.tools = (_Function(self),)

    def cited(self, number: int, _: str) -> Annotation | None:
        """The piece that was shown with a number."""
        if (shown := self._shown.get(number)) is None:
            return None
        return Annotation("file_citation", file_id=shown[0], filename=shown[1])

    async def find(self, queries: Sequence[str]) -> Shown:
        """What is found, for the model and for the client."""
        try:
            asked = replace(self._search, queries=tuple(queries))
            found = await self._library.search(self._caller, self._stores, asked)
        except FaultError as error:
            raise ToolError(error.fault.message) from error
        results = [found_object(each) for each in found]
        text = "\n\n".join(map(self._show, found)) or NOTHING
        return Shown(text, {"queries": list(queries), "results": results})

    def _show(self, found: Found) -> str:
        self._last = number = self._last + 1
        name = re.sub("[†【】]", "", found.name)[-LONGEST_MARK:]
        id = FILE_PREFIX + found.file
        self._shown[number] = id, found.name
        # A file could have what looks like a mark: only ours can be cited.
        return (
            f"【{number}†{name}】 ({id}, score {found.score:.2f})\n{_FORGED.sub('[', found.text)}"
        )


class _Function(Tool):
    """The function that the model calls."""

    seconds = SECONDS
    repeatable = True

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.spec = FunctionTool("file_search", _DESCRIPTION, _PARAMETERS)
        self.display = Display(KIND, _opened, working="searching")

    async def call(self, text: str, context: Context) -> Shown:
        """Search. Raises ToolError for arguments that cannot be understood."""
        return await self._reading.find(_queries(text))


def _opened(call: Call) -> dict[str, JSON]:
    try:
        queries = _queries(call.text)
    except ToolError:  # the call says what is wrong
        queries = []
    return {"queries": list(queries), "results": None}


def _queries(text: str) -> list[str]:
    """What a model asks, also where it wrote one question in place of several."""
    check_written(text)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ToolError("The arguments of 'file_search' must be JSON.") from None
    if isinstance(given, dict):
        given = given.get("queries", given.get("query"))
    listed = given if isinstance(given, list) else [given]
    queries = [each.strip()[:LONGEST_QUERY] for each in listed if isinstance(each, str)]
    if not (queries := [query for query in queries if query]):
        raise ToolError('Give \'file_search\' what to search for: {"queries": ["..."]}.')
    if len(queries) > MOST_QUERIES:
        raise ToolError(f"Give 'file_search' at most {MOST_QUERIES} queries at once.")
    return queries
