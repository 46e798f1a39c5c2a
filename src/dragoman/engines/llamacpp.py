"""Runs models in GGUF files with llama.cpp's server, in a process of its own, as it may abort.

All its answers are made in one loop, in which a grammar of its own kind may keep it for minutes. So
what the text of an answer must match is written here as a grammar for llguidance, which it has too
and which has bounds, and is tried first, as for our own engines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, unsupported, with_param
from dragoman.core.event import Delta, Event, ItemDone, PartDone
from dragoman.core.interfaces import ANYONE, Caller, Secret
from dragoman.core.item import JSON, Message, Part, Text, Token
from dragoman.core.loss import Loss
from dragoman.core.request import (
    Completion,
    FunctionTool,
    JSONObject,
    JSONSchema,
    Namespace,
    Request,
    Tool,
    completion_request,
)
from dragoman.core.response import CONSTRAINT_FIELDS
from dragoman.core.tools import flat
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.demand import JSONBody, Lark, Whole, demand, unenforced
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.grammar.narrow import narrowed
from dragoman.formats.grammar.schema import too_large
from dragoman.wire.registry import spell_fault, spell_losses

from .base import Prepared, Wrapper, new_id, with_losses
from .child import FORKS, end, inherited, spawn
from .completions import remote
from .find_format import find_format
from .token.constraints import MAX_TRIED, byte_compiler
from .turns import InTurn, ThreadPool
from .upstream import Answer, question

_log = logging.getLogger("dragoman")

NEEDED = "xllamacpp"
MISSING = "GGUF files need the extra llamacpp: pip install '.[llamacpp]' in the checkout."
MAGIC = b"GGUF"
"""The first bytes of every GGUF file."""
PROFILE = "llama.cpp"
PARALLEL = 4
"""Sequences at a time; they share the context."""
PAUSES = (1.0, 60.0)
"""Seconds before a server that exited is restarted, the first time and at most."""
BATCH = 512
"""Tokens of prompts that it reads at a time: answers to others go on between two."""
CACHE = 1024 * 1024 * 1024
"""Bytes of prompts that it keeps for later requests, beside its context."""
LOOK, PATIENCE = 10.0, 120.0
"""Seconds between two looks at it, and for one step, before it is ended: all others wait."""
HELD = 0.05
"""Seconds of the processor for which a grammar may hold its loop: to compile it."""
QUIET = -1
"""The verbosity at which llama.cpp writes nothing to our standard error."""


def prepare(
    file: str | Path,
    *,
    format: str | None = None,
    context: int | None = None,
    parallel: int = PARALLEL,
    threads: int | None = None,
    gpu_layers: int | None = None,
) -> Callable[[], LlamaCpp]:
    """The engine for the model in a GGUF file. Options and file are checked now; the model is
    loaded when the result is called.

    - `format` is the name of a token format, to be used in place of llama.cpp's own chat.
    - `context` is the most tokens of each sequence; by default as many as the model was made for.
      `parallel` sequences run at a time.
    - `threads` is how many threads compute, `gpu_layers` how many layers are on the graphics card;
      by default llama.cpp decides.

    Both raise ImportError where the extra is missing, and ValueError, in a sentence, for a file
    that llama.cpp cannot run, and for too little memory.
    """
    if find_spec(NEEDED) is None:
        raise ImportError(MISSING)
    if format is not None:
        find_format(format)
    path = Path(file).expanduser()
    check(path)
    for name, number in (("context", context), ("parallel", parallel), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}.")

    def load() -> LlamaCpp:
        key = Secret(new_id())
        options = Options(
            path=str(path),
            name=name_of(file),
            key=key.reveal(),
            context=(context or 0) * parallel,  # 0 is the model's own context
            parallel=parallel,
            threads=threads,
            gpu_layers=gpu_layers,
        )
        return LlamaCpp(ServerProcess(options), key, format, parallel)

    return load


def name_of(file: str | Path) -> str:
    """The model's name in the listing.

    >>> name_of("models/qwen3-0.6b.gguf")
    'qwen3-0.6b'
    """
    return Path(file).stem


def check(file: Path) -> None:
    """Raise ValueError for a file that is no GGUF file."""
    if not file.is_file():
        raise ValueError(f"{file} is no file.")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{file} is no GGUF file.")


class Options(Struct, frozen=True, kw_only=True):
    """The options of a server. Port 0 is any free one."""

    path: str
    name: str
    key: str
    context: int
    parallel: int
    threads: int | None
    gpu_layers: int | None
    port: int = 0


def start(options: Options) -> Any:
    """llama.cpp's server in this process; it ends with its last reference."""
    library = import_module(NEEDED)
    params = library.CommonParams()
    params.model.path = options.path
    params.model_alias = {options.name}
    params.n_parallel = options.parallel
    params.n_ctx = options.context
    params.n_batch = params.n_ubatch = BATCH
    params.cache_ram_mib = CACHE // 2**20
    params.ui = params.warmup = False
    params.endpoint_metrics = True  # for looks
    params.hostnames, params.port = ["127.0.0.1"], options.port
    params.verbosity = QUIET
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.gpu_layers is not None:
        params.n_gpu_layers = options.gpu_layers
    params.api_keys = [options.key]
    return library.Server(params)


HELLO: JSON = [{"role": "user", "content": "Hello"}]
"""A short conversation."""
Marks = tuple[str, str]
"""Before and after reasoning, in a model's text; empty where it has none."""
Told = tuple[Marks | None, bool]


def told_by(server: Any) -> Told:
    """What a server tells of its model: the marks, as llama.cpp has found them in its template
    (None: not known), and whether it reads the beginning of an answer as its text.

    The first grammar makes it read the vocabulary, for which others would wait later.
    """
    ask: Any = partial(dict, messages=HELLO, max_tokens=1, verbose=True)
    plain, found = False, None
    with suppress(Exception):  # it has other versions and templates, of which it may say nothing
        answer = server.handle_chat_completions(ask(grammar=f'{HEAD}start: "a"'))
        plain = answer["choices"][0]["message"]["content"] == "a"
    with suppress(Exception):
        answer = server.handle_chat_completions(ask(response_format={"type": "json_object"}))
        found = _ROOT.search(str(answer["__verbose"]["generation_settings"]["grammar"]))
    if found is None:
        return None, plain
    opening, ending = (str(json.loads(found[n] or '""')).strip() for n in ("open", "close"))
    known = bool(opening) == bool(ending) and not _CONTROL.match(opening)
    return (opening, ending) if known else None, plain


def serve() -> None:
    """In a process of its own: run the server until the connection is closed."""
    control = inherited()
    try:
        server = start(msgspec.msgpack.decode(control.recv_bytes(), type=Options))
    except (RuntimeError, MemoryError) as error:
        control.send_bytes(f"!{error}".encode())
        return
    control.send_bytes(b"." + msgspec.json.encode((server.listening_address, told_by(server))))

    def look() -> None:
        server.handle_metrics()  # which its main loop answers, between two steps
        control.send_bytes(b".")

    with suppress(EOFError):
        while control.recv_bytes():
            threading.Thread(target=look, daemon=True).start()
    os._exit(0)  # also while it works


class ServerProcess:
    """A server in a process of its own, restarted with backoff when it exits: some requests make
    llama.cpp abort, or work for ever. Raises ValueError where it does not start."""

    def __init__(self, options: Options) -> None:
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.pause: float | None = None
        """Seconds until it is restarted; None while it runs."""
        self._options = options
        if not FORKS:  # on this system, in our own process
            self._server = start(options)
            self.address = str(self._server.listening_address)
            self.marks, self.plain = told_by(self._server)
            return
        self.address = self._start()
        self._options = replace(options, port=int(self.address.rpartition(":")[2]))
        self._thread = threading.Thread(target=self._watch, name="dragoman-llamacpp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        if self._thread is None:
            self._server = None
        else:
            end(self.pid)
            self._thread.join()
            self._control.close()  # not before: the thread might close a reused descriptor

    def _start(self) -> str:
        """The address of a new server, whose marks are kept."""
        # On abort it would attach a debugger to itself, for seconds, and fill our log.
        self.pid, self._control = spawn(__name__, {**os.environ, "GGML_NO_BACKTRACE": "1"})
        try:
            self._control.send_bytes(msgspec.msgpack.encode(self._options))
            reply = self._control.recv_bytes().decode()
        except (EOFError, OSError):
            reply = "!it died."
        if reply.startswith("!"):
            self._control.close()
            os.waitpid(self.pid, 0)
            raise ValueError(
                f"llama.cpp cannot run {self._options.path}: {reply[1:]} The file may be broken or "
                "of a model it does not know, or too large for the memory there is (a smaller "
                "context takes less)."
            )
        address, told = msgspec.json.decode(reply[1:], type=tuple[str, Told])
        self.marks, self.plain = told
        return address

    def _watch(self) -> None:
        pause = PAUSES[0]
        while True:
            since = time.monotonic()
            status = self._wait()
            self._control.close()
            if time.monotonic() - since > PAUSES[1]:
                pause = PAUSES[0]
            why = f"with status {os.waitstatus_to_exitcode(status)}"
            while not self._closing.is_set():
                self.pause = pause
                _log.error("llama.cpp ended %s; it is started again in %g s", why, pause)
                if self._closing.wait(pause):
                    break
                pause = min(2 * pause, PAUSES[1])
                try:
                    self._start()
                    self.pause = None
                    break
                except (ValueError, OSError) as error:  # the system may have no room for it
                    why = f"again: {error}"
            if self._closing.is_set():
                return

    def _wait(self) -> int:
        """The status with which the process ended; it is ended where it does not go on."""
        with suppress(EOFError, OSError):
            while True:
                if not self._control.poll(LOOK):
                    self._control.send_bytes(b"?")
                    if not self._control.poll(PATIENCE):
                        _log.error("llama.cpp was at one step for %g s, and is ended", PATIENCE)
                        end(self.pid)
                self._control.recv_bytes()
        return os.waitpid(self.pid, 0)[1]


ABORTED = Fault(
    "upstream_unreachable",
    "llama.cpp ended, as it does at some requests, and is started again. Ask again in some "
    "seconds; the log has its status.",
    "upstream",
)


class LlamaCpp(Wrapper):
    """A remote engine with its server process. `close` stops the server. While that is
    restarted, requests are refused.

    llama.cpp removes text before the JSON of a required format (white space, a fence) from the
    answer, not from its log-probabilities: they are aligned here. It is not started for embeddings.
    """

    embed = None

    def __init__(self, server: ServerProcess, key: Secret, format: str | None, places: int) -> None:
        self._remote = remote(f"{server.address}/v1", key=key, profile=PROFILE, format=format)
        super().__init__(InTurn(self._remote, places))
        self._turns = ThreadPool(MAX_TRIED + 1)
        self.server = server
        self._rendered = format is not None  # here: then llama.cpp sees the prompt alone

    async def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Write the demands on the answer as llama.cpp meets them without holding others, and
        align log-probabilities of a required format. Raises FaultError while the server is
        restarted, and for what would end it, in terms of the caller's wire."""
        if (pause := self.server.pause) is not None:
            raise FaultError(replace(ABORTED, retry_after=f"{math.ceil(pause)}"))
        demanding = request.format is not None or request.tools or request.extra
        formed = isinstance(request.format, JSONObject | JSONSchema)
        bound = formed or any(_DEMANDS & fields.keys() for fields in (request.extra or {}).values())
        raw = self._rendered or isinstance(request, Completion)
        layout = await self._layout(request) if bound and not raw else Layout()
        try:
            if caller.size or demanding:
                work = partial(self._checked, request, layout)
                found, losses = await self._turns.run(caller.tenant, work, demanding=bound)
            else:
                found, losses = self._checked(request, layout)
        except FaultError as error:
            raise FaultError(spell_fault(error.fault, request, caller.wire)) from None
        align = Aligner().feed if formed and request.sampling.logprobs else None
        if align is None and not losses:
            return None if found is request else Prepared(found)
        spelled = spell_losses(losses, request, caller.wire)

        def map(events: list[Event]) -> list[Event]:
            if align is not None:
                events = [new for old in events if (new := align(old))]
            return with_losses(events, spelled) if events else events

        return Prepared(found, map)

    def _checked(self, request: Request, layout: Layout | None) -> tuple[Request, tuple[Loss, ...]]:
        check_request(request)
        if self._rendered and not isinstance(request, Completion):
            return request, ()
        return bounded(request, layout, self.server.plain)

    async def _layout(self, request: Request) -> Layout | None:
        """How the template lays out the text of an answer; None where it is not known."""
        if (marks := self.server.marks) is None:
            return None
        body = await asyncio.to_thread(_short, request)
        upstream, place = self._remote.upstream, f"{self.server.address}/apply-template"
        match await question(upstream.client, "POST", place, upstream.headers(ANYONE), body):
            case Answer(status=200, value={"prompt": str(prompt)}):
                return Layout(*marks, prompt.rfind(marks[0]) > prompt.rfind(marks[1]))
        return None

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Continue a prompt, with the same checks."""
        return self.stream(completion_request(request, (prompt,), echo=echo), caller)

    async def close(self) -> None:
        """Close the connections, then the server."""
        await super().close()
        self._turns.close()
        await asyncio.to_thread(self.server.close)


# ---- what would end the server, or keep it from all others ----------------------------------

MAX_NUMBER = 1_000_000
"""The greatest number in a field of llama.cpp's own: it takes memory for as many tokens."""
MAX_VALUES = 10_000
"""Values in such fields together, and names in any object: it compares each with all before it."""
MAX_CHARACTERS = 65_536
"""Characters of texts and names in such a field, whose tokens it keeps, for every place; and of the
names in any object."""
MAX_SAMPLERS = 10
"""Names in `samplers`: each takes memory for `MAX_NUMBER` tokens, and reads the vocabulary."""
MAX_PROBS = 128
"""Alternatives of each token, with their log-probabilities."""
OWN = frozenset({"grammar_triggers", "grammar_lazy", "grammar_type", "chat_parser"})
OWN |= {"generation_prompt", "n_cmpl"}
"""Fields of what llama.cpp writes itself, and its name for `n`, of which it is not asked."""
_REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")
_DEMANDS = frozenset({*CONSTRAINT_FIELDS, "json_schema", "response_format"})
"""Fields that are not passed on: a grammar is written of them."""


def check_request(request: Request) -> None:
    """Raise FaultError for what llama.cpp's stack or memory does not hold: it has no bounds of its
    own, and all who use it would wait until it is started again."""
    if isinstance(request.format, JSONSchema):
        _check_schema(request.format.schema, "format.schema")
    for _, tool in flat(request.tools):
        if isinstance(tool, FunctionTool):
            _check_schema(tool.parameters, "tools")
    if (request.sampling.top_logprobs or 0) > MAX_PROBS:
        raise FaultError(bad_request(f"is more than {MAX_PROBS}", "top_logprobs"))
    for fields in (request.extra or {}).values():
        for name, value in fields.items():
            _check_field(name, value, request.max_output_tokens or MAX_NUMBER)
    _check_names(request)


def _check_names(request: Request) -> None:
    """Raise FaultError for an object that it would read for long, also once its client has left."""
    for field in request.__struct_fields__:
        waiting = [getattr(request, field)]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                if len(each) > MAX_VALUES or sum(map(len, each)) > MAX_CHARACTERS:
                    problem = f"has more than {MAX_VALUES} names in an object, or {MAX_CHARACTERS}"
                    problem += " characters of them"
                    param = "logit_bias" if field == "sampling" else field
                    raise FaultError(bad_request(problem, None if field == "extra" else param))
                waiting += each.values()
            elif isinstance(each, Struct):
                waiting += [getattr(each, name) for name in each.__struct_fields__]
            elif isinstance(each, list | tuple):
                waiting += each


def _check_schema(schema: JSON, param: str) -> None:
    if isinstance(schema, dict) and (problem := too_large(schema)) is not None:
        raise FaultError(bad_request(problem, param))


def _check_field(name: str, value: JSON, most: int) -> None:
    """Raise FaultError for one of the fields that are passed on as they are."""
    if name in OWN:
        raise FaultError(unsupported("is llama.cpp's own, and is not taken from a request", name))
    if name in _DEMANDS:
        return
    names = {*map(str, value)} if name == "samplers" and isinstance(value, str | list) else set()
    if names & {"i", "infill"} or (name == "dry_multiplier" and value):
        problem = "is not supported: it reads the vocabulary so often that all others wait"
        raise FaultError(unsupported(problem, name))
    problem, waiting, count, characters = "", [value], 0, 0
    if name == "reasoning_format" and value not in (None, *_REASONING_FORMATS):
        problem = f"must be one of {', '.join(_REASONING_FORMATS)}"
    elif name == "n_predict" and isinstance(value, int | float) and not 0 <= value <= most:
        problem = f"must be between 0 and {most}: it would go before max_tokens"
    elif name == "n_probs" and isinstance(value, int | float) and value > MAX_PROBS:
        problem = f"is more than {MAX_PROBS}"
    elif name == "samplers" and isinstance(value, str | list) and len(value) > MAX_SAMPLERS:
        problem = f"has more than {MAX_SAMPLERS} samplers"
    while waiting and not problem:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting += each.values()
            characters += sum(map(len, each))
        elif isinstance(each, str):
            characters += len(each)
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, int | float) and not -MAX_NUMBER <= each <= MAX_NUMBER:
            problem = f"has a number that is not between -{MAX_NUMBER} and {MAX_NUMBER}"
        if count > MAX_VALUES:
            problem = f"has more than {MAX_VALUES} values"
        elif characters > MAX_CHARACTERS and name not in _TEMPLATE_FIELDS:
            problem = f"has more than {MAX_CHARACTERS} characters"
    if problem:
        raise FaultError(bad_request(problem, name))


# ---- demands on the answer -------------------------------------------------------------------

HEAD = '%llguidance {"no_forcing": true}\n'
"""With this line a grammar is one of llguidance's, which does not look for bytes that must follow:
they may have no end."""
_TEXT = r'"(?:\\.|[^"\\])*+"'
_ROOT = re.compile(
    rf"^root ::= (?:{_TEXT} )?(?:space )?"
    rf"(?:\((?P<open>{_TEXT}) (?:{_TEXT}\? |space )*until-\d+ (?:{_TEXT}\? |space )*"
    rf"\(?(?P<close>{_TEXT})(?: \| \))?(?: {_TEXT}\?)*\)\? )?"
    r'(?:space )?(?:\("```json"|response-format(?:-schema)?$)',
    re.MULTILINE,
)
"""Its own grammar of an answer in JSON, where nothing but reasoning comes before it."""
_CONTROL = re.compile(r"<\||\[")
"""How marks begin that are mostly tokens of their own, which no text matches."""
_TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort")
"""Fields that may change the end of the prompt."""


def _short(request: Request) -> bytes:
    """A request with the same end of its prompt, in short."""
    fields = (request.extra or {}).get("chat", {})
    asked = {name: fields[name] for name in _TEMPLATE_FIELDS if name in fields}
    if request.reasoning is not None and request.reasoning.effort is not None:
        asked["reasoning_effort"] = request.reasoning.effort
    return msgspec.json.encode({"messages": HELLO, **asked})


class Layout(Struct, frozen=True):
    """The marks of reasoning before the text of an answer, and whether it has begun in the prompt.
    They are empty where there is none."""

    opening: str = ""
    closing: str = ""
    begun: bool = False


def bounded(
    request: Request, layout: Layout | None, plain: bool = True
) -> tuple[Request, tuple[Loss, ...]]:
    """The request with the demands on its answer as llama.cpp meets them in bounded time: one on
    its text is a grammar for llguidance, and schemas that it makes a grammar of itself are
    narrowed. Raises FaultError, naming the field, for demands that are invalid, too large, or on a
    text whose place is not known: without a layout, it must be `plain` that it comes first."""
    extra = {wire: dict(fields) for wire, fields in (request.extra or {}).items()}
    for fields in extra.values():
        if "json_schema" in fields:
            fields.setdefault("guided_json", fields.pop("json_schema"))
    format, losses = request.format, tuple[Loss, ...]()
    if isinstance(format, JSONSchema):
        format = replace(format, strict=format.strict is True)
    wanted = replace(request, extra=extra, format=format, tools=(), tool_choice=None)
    asked = demand(wanted)
    tools = _narrowed_tools(request.tools)
    if asked is not None and isinstance(asked.text, Whole):
        formed = isinstance(format, JSONObject | JSONSchema)
        calls = request.tools and request.tool_choice != "none"
        if formed and (layout is None or calls):
            # its own grammar knows what comes before the text, or instead of it
            if isinstance(format, JSONSchema):
                format = replace(format, schema=next(narrowed([format.schema or {}])))
        elif layout is None and not plain:
            raise FaultError(unsupported(UNMARKED, asked.text.param))
        else:
            losses = unenforced(wanted)
            own = extra.setdefault("completions" if isinstance(request, Completion) else "chat", {})
            place = layout if layout is not None and (formed or layout.begun) else Layout()
            for fields in extra.values():
                for name in _DEMANDS:
                    fields.pop(name, None)
            own["grammar"], format = lark_of(asked.text, place), None if formed else format
    elif tools == request.tools:
        return request, ()
    return replace(request, extra=extra or None, format=format, tools=tools), losses


def lark_of(body: Whole, layout: Layout) -> str:
    """A demand on the text of an answer as a grammar for llguidance in llama.cpp, which was tried.
    Raises FaultError for what is no grammar, or would hold others."""
    writer, own = Writer(), body.lark if isinstance(body, Lark) else None
    start = writer.body(body) if own is None else writer.rule("own", f"%lark {{\n{own}\n}}")
    if layout.opening:
        until = f"{writer.free()} {writer.text(layout.closing)}"
        thought = writer.rule("thought", until, "[lazy]")
        if isinstance(body, JSONBody):
            thought += f" {writer.rule('GAP', _GAP)}"
        if not layout.begun:
            thought = f"({writer.text(layout.opening)} {thought})?"
        start = f"{thought} {start}"
    grammar = writer.grammar(start) if own is None or layout.opening else Grammar(own)
    text = HEAD + grammar.lark
    try:
        byte_compiler().check(replace(grammar, lark=text), HELD)
    except FaultError as error:
        raise FaultError(with_param(error.fault, error.fault.param or body.param)) from None
    return text


UNMARKED = "cannot be met: where this model's text begins is not known. A JSON schema can be met"
_GAP = r"/\s{0,8}/"
"""What may be between reasoning and JSON; before other text it would be a part of it."""


def _narrowed_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools with narrower parameters."""
    functions = [tool for _, tool in flat(tools) if isinstance(tool, FunctionTool)]
    found = narrowed(tool.parameters or {} for tool in functions)

    def narrow(tool: Any) -> Any:
        if isinstance(tool, Namespace):
            return replace(tool, tools=tuple(map(narrow, tool.tools)))
        if isinstance(tool, FunctionTool):
            parameters = next(found)
            return tool if tool.parameters is None else replace(tool, parameters=parameters)
        return tool

    return tuple(map(narrow, tools))


# ---- alignment of log-probabilities ----------------------------------------------------------


def tokens_of_text(tokens: Sequence[Token], text: str) -> tuple[Token, ...]:
    """The tokens from where a text begins in them; all of them where it is not found.

    >>> [token.text for token in tokens_of_text([Token("```"), Token(' {"')], '{"')]
    ['{"']
    """
    encoded, joined = _bytes(text), b"".join(map(_octets, tokens))
    # The text is at the end, unless the server has not sent all of it.
    extra = len(joined) - len(encoded) if joined.endswith(encoded) else joined.find(encoded)
    tokens_left: list[Token] = []
    for token in tokens:
        octets = _octets(token)
        if extra <= 0:
            tokens_left.append(token)
        elif len(octets) > extra:
            rest = octets[extra:]
            tokens_left.append(replace(token, text=rest.decode("utf-8", "replace"), bytes=rest))
        extra -= len(octets)
    return tuple(tokens_left)


class Aligner:
    """Aligns the log-probabilities of one answer with its text."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[Token]] = {}  # of parts without text yet
        self._emitted: dict[tuple[int, int], list[Token]] = {}  # of parts with text

    def feed(self, event: Event) -> Event | None:
        """The event with aligned tokens; None for one that has no text."""
        match event:
            case Delta(kind="text"):
                return self._delta(event)
            case PartDone(index, place, part):
                return replace(event, part=self._part(index, place, part))
            case ItemDone(index, item):
                if isinstance(item, Message) and not isinstance(item.content, str):
                    parts = (self._part(index, *each) for each in enumerate(item.content))
                    return replace(event, item=replace(item, content=tuple(parts)))
        return event

    def _delta(self, delta: Delta) -> Delta | None:
        place = (delta.index, delta.part_index)
        if (tokens_left := self._emitted.get(place)) is not None:
            tokens_left += delta.tokens
            return delta
        held = self._held.setdefault(place, [])
        held += delta.tokens
        if not delta.data:
            return None
        tokens = tokens_of_text(held, delta.data)
        self._emitted[place] = list(tokens)
        return replace(delta, tokens=tokens)

    def _part(self, index: int, place: int, part: Part) -> Part:
        if not isinstance(part, Text) or (index, place) not in self._held:
            return part
        return replace(part, tokens=tuple(self._emitted.get((index, place), ())))


def _octets(token: Token) -> bytes:
    return token.bytes if token.bytes is not None else _bytes(token.text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
