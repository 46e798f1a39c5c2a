"""The hosted tool that searches the web and reads its pages: a browser of text, with citations.

Models see three functions, those that gpt-oss was trained with: `search`, `open` and `find`. What
each shows has a number, its cursor, by which the model may return to it and cite it. The
conversation has all state: addresses, numbers, and the text that the model
was shown. Pages are fetched again when they are needed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.interfaces import Caller
from dragoman.core.item import JSON, Annotation, Call, Unknown
from dragoman.core.request import FunctionTool
from dragoman.formats.citations import LINES, domain
from dragoman.net.url import Proxies, ascii_name, parse_url
from dragoman.wire.json import choices, invalid

from .page import (
    AROUND,
    HEAD,
    LONGER,
    LONGEST_TITLE,
    Link,
    UnreadableError,
    View,
    find_in,
    flat,
    line_with,
    one_line,
    read,
    shown_lines,
    wrapped,
)
from .run import (
    Context,
    Display,
    Recorded,
    Session,
    Shown,
    Tool,
    ToolError,
    check_written,
    recorded,
)
from .search import (
    LONGEST_QUERY,
    SECONDS,
    Fetcher,
    Found,
    Place,
    Query,
    Service,
    find_service,
    is_within,
    target,
)

_T = TypeVar("_T")

KIND = "web_search_call"
SIZES = {"low": (5, 2_000, 200), "medium": (10, 4_000, 400), "high": (20, 8_000, 800)}
"""By `search_context_size`: results of a search, characters of a page that are shown at once, and
characters of a result."""
MOST_SHOWN = 40_000
"""Characters that are shown where the model asks for a number of lines."""
MOST_LOADED = 8
"""Pages of an answer whose text is cached; others are fetched again when they are needed."""
MOST_DOMAINS = 100


# ---- options of a request --------------------------------------------------------------------

_Name = Annotated[str, Meta(max_length=100)] | None
_Domains = Annotated[list[str], Meta(max_length=MOST_DOMAINS)] | None


class _Location(Struct):
    """The user's location; Chat has it one level deeper."""

    type: Literal["approximate"] = "approximate"
    country: Annotated[str, Meta(pattern="^([A-Za-z]{2})?$")] | None = None
    region: _Name = None
    city: _Name = None
    timezone: _Name = None
    approximate: _Location | None = None


class _Filters(Struct, forbid_unknown_fields=True):
    allowed_domains: _Domains = None
    blocked_domains: _Domains = None


class _Options(Struct):
    """The tool in a request: of Responses and Chat, and (the last three) of Messages."""

    external_web_access: bool | None = None
    filters: _Filters | None = None
    user_location: _Location | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    search_content_types: list[str] | None = None
    allowed_domains: _Domains = None
    blocked_domains: _Domains = None
    max_uses: Annotated[int, Meta(ge=0)] | None = None


_DOMAIN = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")


class Options(Struct, frozen=True):
    """The options of a request: the domains, the number of searches, and how much of the
    results is shown."""

    outside: bool
    domains: tuple[str, ...]
    blocked: tuple[str, ...]
    place: Place
    searches: int | None
    results: int
    shown: int
    longest: int

    def may(self, host: str) -> bool:
        """Whether a host is allowed."""
        within = not self.domains or is_within(host, self.domains)
        return within and not is_within(host, self.blocked)


def options_of(asked: Mapping[str, JSON]) -> Options:
    """The options of a tool in a request. Raises FaultError, with the field."""
    filters = asked.get("filters")
    for name in filters if isinstance(filters, dict) else ():
        if name not in _Filters.__struct_fields__:
            raise FaultError(unsupported("is not known here", f"filters.{name}"))
    try:
        given = msgspec.convert(dict(asked), _Options)
    except msgspec.ValidationError as error:
        raise invalid(error, "", choices(_Options)) from None
    if given.search_content_types and "text" not in given.search_content_types:
        raise FaultError(unsupported("only text can be searched here", "search_content_types"))
    within = given.filters or _Filters()
    allowed, blocked = (
        _domains(getattr(within, name), f"filters.{name}") + _domains(getattr(given, name), name)
        for name in _Filters.__struct_fields__
    )
    near = given.user_location or _Location()
    near = near.approximate or near
    user = Place(
        (near.country or "").upper(),
        *(one_line(each or "") for each in (near.region, near.city, near.timezone)),
    )
    size = SIZES[given.search_context_size or "medium"]
    outside = given.external_web_access is not False
    return Options(outside, allowed, blocked, user, given.max_uses, *size)


def _domains(given: Sequence[str] | None, field: str) -> tuple[str, ...]:
    """Normalise domains to host names. Raises FaultError."""
    found: list[str] = []
    for number, each in enumerate(given or ()):
        name = each.strip().lower().rstrip(".")
        try:
            name = ascii_name(name)
        except ValueError:
            name = ""
        if not _DOMAIN.fullmatch(name):
            problem = "must be a domain, without http:// and without a path"
            raise FaultError(bad_request(problem, f"{field}[{number}]"))
        found.append(name)
    return tuple(found)


# ---- arguments of the model ------------------------------------------------------------------


class _Search(Struct):
    query: str
    topn: int = 10


class _Open(Struct):
    id: int | str = -1
    cursor: int = -1
    loc: int = -1
    num_lines: int = -1
    view_source: bool = False


class _Find(Struct):
    pattern: str
    cursor: int = -1


_CURSOR = {
    "type": "integer",
    "default": -1,
    "description": "The number of the display that is meant; the latest one by default.",
}
_DISPLAYS = (
    "Every display of this browser begins with its cursor, as in `[3]`, and has numbered lines. "
    "Cite the lines that an answer rests on by writing `【3†L5-L8】` or `【3†L5】` behind it, with "
    "the cursor of the display they were seen in. Quote at most ten words in a row."
)
_FUNCTIONS: dict[str, tuple[type[Any], str, dict[str, JSON]]] = {
    "search": (
        _Search,
        f"Searches the web and lists results as links. {_DISPLAYS}",
        {
            "query": {"type": "string", "description": "What to search for."},
            "topn": {"type": "integer", "default": 10, "description": "How many results to list."},
        },
    ),
    "open": (
        _Open,
        "Opens a page, or shows another part of one. Links are displayed as `【id†text】`.",
        {
            "id": {
                "type": ["integer", "string"],
                "default": -1,
                "description": "The id of a link in the display `cursor`, or a whole URL. Without "
                "it the page of that display is shown again, for another `loc`.",
            },
            "cursor": _CURSOR,
            "loc": {
                "type": "integer",
                "default": -1,
                "description": "The first line to show; by default that of the best match.",
            },
            "num_lines": {
                "type": "integer",
                "default": -1,
                "description": "How many lines to show; by default as many as there is room for.",
            },
            "view_source": {
                "type": "boolean",
                "default": False,
                "description": "Whether to show the HTML of the page.",
            },
        },
    ),
    "find": (
        _Find,
        "Finds each place in a page that has been opened where a text stands, in any case.",
        {
            "pattern": {"type": "string", "description": "The text to find."},
            "cursor": _CURSOR,
        },
    ),
}


def _arguments(name: str, text: str) -> dict[str, JSON]:
    """Decode a model's arguments, unchecked. Raises ToolError where they are no object, or
    too much."""
    check_written(text)
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ToolError(f"The arguments of {name!r} must be JSON.") from None
    if not isinstance(value, dict):
        raise ToolError(f"The arguments of {name!r} must be a JSON object.")
    return {key: each for key, each in value.items() if each is not None}


def _action(name: str, wanted: str, url: str | None) -> dict[str, JSON]:
    """The `action` of a call in the protocol: `wanted` is the query, or the pattern."""
    match name:
        case "search":
            return {"type": "search", "query": wanted, "queries": [wanted]}
        case "open":
            return {"type": "open_page", "url": url or None}
    return {"type": "find_in_page", "url": url or "", "pattern": wanted}


_NUMBER = re.compile(r"-?[0-9]{1,9}")
_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.[^\W\d]{2,}(?=[:/?#]|$)")


def _target(id: int | str) -> int | str:
    """The target of `open`: the number of a link, as models write it, or an address."""
    if isinstance(id, int):
        return id
    text = id.strip()
    if not text or _NUMBER.fullmatch(text):
        return int(text or -1)
    return f"https://{text}" if _HOST.match(text) else text


class Kept(Struct, frozen=True, omit_defaults=True):
    """Extra data in the record of a call."""

    kind: Literal["results", "page", "source", "find"]
    url: str = ""
    title: str = ""
    pattern: str = ""
    links: tuple[str, ...] = ()


def _kept(record: Recorded | None, item: Unknown) -> Kept:
    """The data in a record; of an item that a client has sent back without one, the data in its
    action. Raises ToolError, TypeError, LookupError or msgspec.ValidationError where it is not
    in our format."""
    if record is not None:
        kept = msgspec.convert(record.kept, Kept)
    else:
        action = item.value.get("action")
        action = action if isinstance(action, dict) else {}
        if action.get("type") == "search" and item.value.get("status") != "failed":
            title = one_line(str(action.get("query", "")))[:LONGEST_TITLE]
            sources = action.get("sources")
            found = [each["url"] for each in sources] if isinstance(sources, list) else []
            return msgspec.convert({"kind": "results", "title": title, "links": found}, Kept)
        url = "" if item.value.get("status") == "failed" else str(action.get("url"))
        pattern = action.get("pattern")
        kind: Literal["find", "page"] = "find" if isinstance(pattern, str) else "page"
        kept = Kept(kind, url, domain(url), str(pattern))
    if kept.kind != "results":
        target(kept.url)
    return kept


class Web:
    """Searches with a service, and opens pages.

    `allow` are networks (`10.1.0.0/16`) that pages may be in though they are not public. Raises
    ValueError for what is no network.
    """

    kinds = frozenset(
        (
            *("web_search", "web_search_2025_08_26"),
            *("web_search_preview", "web_search_preview_2025_03_11"),
        )
    )

    def __init__(
        self, service: Service, *, allow: Sequence[str] = (), proxies: Proxies | None = None
    ) -> None:
        self.service = service
        self.fetcher = Fetcher(allow, proxies)

    @classmethod
    def configured(cls, text: str, environ: Mapping[str, str], *, allow: Sequence[str] = ()) -> Web:
        """The tool that a configuration describes: see `find_service`. Raises ValueError."""
        service, proxies = find_service(text, environ), Proxies.from_environ(environ)
        proxies.choose(parse_url(service.base))  # raises at once for one that cannot be used
        return cls(service, allow=allow, proxies=proxies)

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> Browser:
        """A browser for one answer. Raises FaultError for invalid or unsupported
        options."""
        make = partial(Browser, self, options_of(asked), items, caller)
        return await asyncio.to_thread(make) if caller.size else make()  # many items take long

    async def close(self) -> None:
        """Close all connections."""
        await self.fetcher.close()


class Browser(Session):
    """The browser of one answer: three functions, and everything shown so far."""

    namespace = "browser"

    def __init__(
        self, web: Web, options: Options, items: Sequence[Unknown], caller: Caller
    ) -> None:
        self._web, self._options, self._caller = web, options, caller
        self._views: dict[int, View] = {}  # by cursor
        self._searches = 0
        self._last = -1  # the latest cursor
        for item in items:
            record = recorded(item)
            if record.name in _FUNCTIONS if record is not None else item.kind == KIND:
                self._restore(item)
        self.ended = asyncio.Event()  # set when the latest call and all before it have ended
        self.ended.set()
        self.tools = (
            _Function(self, "search", self._search),
            _Function(self, "open", self._open),
            _Function(self, "find", self._find),
        )

    def cited(self, cursor: int, lines: str) -> Annotation | None:
        """The page of a cursor."""
        view = self._views.get(cursor)
        if view is None or not view.url or LINES.fullmatch(lines) is None:
            return None
        return Annotation("url_citation", url=view.url, title=view.title or domain(view.url))

    async def close(self) -> None:
        """The answer has ended."""
        self._views.clear()

    def about(self, name: str) -> str:
        """The description of a function, with the request's options."""
        options, about = self._options, [_FUNCTIONS[name][1]]
        if name == "search" and options.place != Place():
            near = options.place
            known = filter(None, (near.city, near.region, near.country, near.timezone))
            about.append(f"The user is near {', '.join(known)}.")
        if name != "find" and options.domains:
            about.append(f"Only pages of {', '.join(options.domains)} are searched and opened.")
        if name != "find" and options.blocked:
            about.append(f"Pages of {', '.join(options.blocked)} are not.")
        if name != "find" and not options.outside:
            about.append("Only pages that were opened in this conversation are at hand.")
        return " ".join(about)

    def action(self, name: str, text: str) -> dict[str, JSON]:
        """The item of a call at its beginning, as far as its action is known; invalid arguments
        are shown all the same."""
        wanted, url = text, ""
        try:
            given = _arguments(name, text)
            wanted = str(given.get("pattern" if name == "find" else "query", ""))
            asked = msgspec.convert(given, _FUNCTIONS[name][0], strict=False)
            if not isinstance(asked, _Search):
                opens = _target(asked.id) if isinstance(asked, _Open) else -1
                if isinstance(opens, str):
                    url = opens.removeprefix("view-source:")
                elif opens >= 0:
                    url = self._view(asked.cursor).links[opens].url
                else:
                    url = self._view(asked.cursor).url
        except (ToolError, msgspec.ValidationError, IndexError):
            pass  # the call reports the error
        return _action(name, wanted, url)

    # ---- views -----------------------------------------------------------------------------

    def _restore(self, item: Unknown) -> None:
        """Restore a view of an earlier answer: under the cursor in its record, or without a
        record, under the next one."""
        record, cursor, seen, first = recorded(item), self._next(), "", 0
        if record is not None and isinstance(record.output, str):
            seen = record.output
            if (head := HEAD.match(seen)) is None:
                return
            cursor, first = int(head[1]), int(head[2])
        with suppress(ToolError, TypeError, LookupError, msgspec.ValidationError):
            kept = _kept(record, item)
            links = [Link(each) for each in kept.links]
            self._last = max(self._last, cursor)
            self._views[cursor] = View(
                kept.kind, kept.url, kept.title, None, links, kept.pattern, seen, first
            )

    def _next(self) -> int:
        return self._last + 1

    def _view(self, cursor: int) -> View:
        """The view of this cursor; the latest without one. Raises ToolError."""
        if not self._views:
            raise ToolError("Nothing was opened yet: search, or open a URL.")
        if (view := self._views.get(self._last if cursor < 0 else cursor)) is None:
            raise ToolError(f"There is no cursor {cursor}. The latest is {self._last}.")
        return view

    def _page(self, url: str, kind: Literal["page", "source"]) -> View:
        """The page of a link: the latest view of it, if there is one."""
        known = (each for each in self._views.values() if (each.kind, each.url) == (kind, url))
        return next(known, View(kind, url, domain(url)))

    async def _load(self, view: View) -> list[str]:
        """The lines of a view, fetched again if necessary. Raises ToolError."""
        if view.lines:
            return view.lines
        if view.kind == "find":
            page = self._page(view.url, "page")
            await self._load(page)
            again = await self._in_turn(partial(find_in, page, view.pattern))
        elif view.kind != "results" and self._options.outside:
            again = await self._fetched(view.url, view.kind)
        elif view.seen:
            again = msgspec.structs.replace(view, lines=shown_lines(view.seen))
        elif view.kind == "results":
            raise ToolError("The results of that search are no longer known. Search again.")
        else:
            raise ToolError("That page is not at hand, and the web may not be asked here.")
        view.url, view.title, view.first = again.url, again.title, again.first
        view.lines, view.links = again.lines, again.links
        return view.lines or [""]

    async def _fetched(self, url: str, kind: Literal["page", "source"]) -> View:
        """A page of the web. Raises ToolError."""
        fetched = await self._web.fetcher.fetch(url, self._options.may, self._caller.tenant)
        try:
            if self._caller.count is not None:
                self._caller.count(len(fetched.body))
            reading = partial(read, fetched.body, fetched.kind, fetched.url)
            page = await self._in_turn(partial(reading, source=kind == "source"))
        except (FaultError, UnreadableError) as error:
            raise ToolError(str(error)) from None
        if fetched.cut:
            page.lines += ["", LONGER]
        return View(kind, fetched.url, page.title, page.lines, [Link(each) for each in page.links])

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        return await self._web.fetcher.in_turn(work, self._caller.tenant)

    # ---- functions -------------------------------------------------------------------------

    async def _search(self, given: _Search, before: asyncio.Event) -> Shown:
        options, text = self._options, one_line(given.query)[:LONGEST_QUERY]
        if not text:
            raise ToolError("There is nothing to search for: fill in `query`.")
        self._searches += 1
        if options.searches is not None and self._searches > options.searches:
            raise ToolError("No more searches are allowed in this answer.")
        if options.outside:
            most = min(max(given.topn, 1), options.results)
            query = Query(text, most, options.domains, options.place)
            web, tenant = self._web, self._caller.tenant
            found = await web.fetcher.search(web.service, query, options.may, tenant)
            await before.wait()
        else:
            await before.wait()
            pages = {each.url: each for each in self._views.values() if each.kind == "page"}
            search = partial(_matching, tuple(pages.values()), text.lower().split())
            found = (await self._in_turn(search))[: options.results]
        lines, links = list[str](), list[Link]()
        for number, each in enumerate(found):
            host, about = one_line(domain(each.url)), one_line(each.text)[: options.longest]
            title = one_line(each.title)[:LONGEST_TITLE] or host
            lines += wrapped(f"* 【{number}†{title}†{host}】 {about}")
            links.append(Link(each.url, words=about))
        if not found:
            lines = wrapped(f"No results for `{text}`.")
        if not options.outside:
            lines += ["", "(Only pages that were opened in this conversation were searched.)"]
        action = _action("search", given.query, None)
        action["sources"] = [{"type": "url", "url": each.url} for each in links]
        return self._show(View("results", "", text, lines, links), action, count=len(lines))

    async def _open(self, given: _Open, before: asyncio.Event) -> Shown:
        opens, link = _target(given.id), Link("")
        if isinstance(opens, str):
            url = opens.removeprefix("view-source:")
            kind: Literal["page", "source"] = "page"
            if given.view_source or url != opens:
                kind = "source"
            if self._options.outside:  # a page that is opened by its address is fetched anew
                view = await self._fetched(url, kind)
                await before.wait()
            else:
                await before.wait()
                view = self._page(url, kind)
        else:
            await before.wait()
            view = self._view(given.cursor)
            if opens >= 0:
                link = await self._link(view, opens)
                view = self._page(link.url, "page")
            if given.view_source and view.url:
                view = self._page(view.url, "source")
        lines, place = await self._load(view), given.loc
        if place < 0:
            place = link.line
            if link.words:
                place = view.first + await self._in_turn(partial(line_with, link.words, lines))
            place = max(place - AROUND, view.first)
        return self._show(view, _action("open", "", view.url), place, given.num_lines)

    async def _link(self, view: View, number: int) -> Link:
        """A link of a view. Raises ToolError."""
        if view.kind != "results":
            await self._load(view)
        if number >= len(view.links):
            raise ToolError(f"There is no link {number} in that display. Links are `【id†text】`.")
        if view.kind == "page" and view.seen and view.lines:
            # It was fetched again: this number may be another link now.
            mark = re.compile(rf"【{number}†([^†【】]*)")
            shown, now = (
                mark.search(" ".join(each)) for each in (shown_lines(view.seen), view.lines)
            )
            if shown is not None and (now is None or now[1] != shown[1]):
                raise ToolError("The page has changed since. Open it again by its URL.")
        return view.links[number]

    async def _find(self, given: _Find, before: asyncio.Event) -> Shown:
        await before.wait()
        view = self._view(given.cursor)
        if view.kind in ("results", "find"):
            raise ToolError("Only a page can be searched: open one of these links first.")
        if not given.pattern.strip():
            raise ToolError("There is nothing to find: fill in `pattern`.")
        await self._load(view)
        found = await self._in_turn(partial(find_in, view, given.pattern))
        return self._show(found, _action("find", given.pattern, view.url))

    def _show(self, view: View, action: JSON, place: int = 0, count: int = -1) -> Shown:
        """Show lines from `place` on under a new cursor: `count` of them, or as many as
        fit. Raises ToolError where there is no such line."""
        lines = view.lines or [""]
        last = view.first + len(lines) - 1
        if not view.first <= place <= last:
            raise ToolError(f"There is no line {place}. The lines are {view.first} to {last}.")
        room, shown = MOST_SHOWN if count > 0 else self._options.shown, list[str]()
        for number in range(place, min(last, place + count - 1 if count > 0 else last) + 1):
            shown.append(f"L{number}: {lines[number - view.first]}")
            room -= len(shown[-1]) + 1
            if room <= 0:
                break
        self._last = cursor = self._next()
        self._views[cursor] = view
        loaded = {each: None for each in self._views.values() if each.lines and each.url}
        for each in list(loaded)[:-MOST_LOADED]:
            each.lines, each.links = None, []
        span = f"**viewing lines [{place} - {place + len(shown) - 1}] of {last}**"
        text = "\n".join((f"[{cursor}] {view.head}", span, "", *shown))
        known = tuple(each.url for each in view.links) if view.kind == "results" else ()
        kept = Kept(view.kind, view.url, view.title, view.pattern, known)
        return Shown(text, {"action": action}, kept=msgspec.to_builtins(kept))


def _matching(pages: Sequence[View], words: Sequence[str]) -> list[Found]:
    """The pages that have any of these words."""
    held = ((each, flat([each.seen, *(each.lines or ())])[0]) for each in pages)
    return [
        Found(each.url, each.title) for each, shown in held if any(word in shown for word in words)
    ]


class _Function(Tool):
    """One of the functions, as a tool."""

    seconds = 2 * SECONDS
    repeatable = True

    def __init__(
        self,
        browser: Browser,
        name: str,
        run: Callable[[Any, asyncio.Event], Awaitable[Shown]],
    ) -> None:
        self._browser, self._name, self._run = browser, name, run
        self._kind, _, properties = _FUNCTIONS[name]
        required = [each for each, about in properties.items() if "default" not in about]
        schema = {"type": "object", "properties": properties, "required": required}
        self.spec = FunctionTool(name, browser.about(name), schema)
        self.display = Display(KIND, self._opened, working="searching")

    def _opened(self, call: Call) -> dict[str, JSON]:
        return {"action": self._browser.action(self._name, call.text)}

    async def call(self, text: str, context: Context) -> Shown:
        """Run it. Calls of one round run concurrently, but their views are in the order of the
        calls, which determines the cursors."""
        before, done = self._browser.ended, asyncio.Event()
        self._browser.ended = done
        try:
            given = _arguments(self._name, text)
            return await self._run(msgspec.convert(given, self._kind, strict=False), before)
        except msgspec.ValidationError as error:
            await before.wait()
            raise ToolError(f"The arguments of {self._name!r} do not fit: {error}.") from None
        except ToolError:
            await before.wait()
            raise
        finally:
            done.set()
