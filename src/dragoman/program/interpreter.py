"""Runs nodes: appends literal texts, asks the engine for generated ones, and captures them.

Each kind of node has a method; every other node is a grammar. A grammar is enforced by the
strongest constraint that the engine supports, and the text is checked here in any case.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, cast

from msgspec.structs import asdict, replace

from dragoman.client.answer import Answer, AnswerError
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta as EventDelta
from dragoman.core.event import Failed, ItemAdded
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    FunctionCall,
    Image,
    Item,
    Message,
    Reasoning,
    Refusal,
    Text,
    Token,
)
from dragoman.core.item import Call as ToolCall
from dragoman.core.request import (
    AudioOutput,
    CustomTool,
    NamedTool,
    ReasoningOptions,
    Request,
    Sampling,
    ToolChoice,
)
from dragoman.core.response import Guarantee
from dragoman.core.sound import wav
from dragoman.engines.token.engine import StopScanner
from dragoman.tools.run import Context, Runner

from . import search
from .grammar import captures as captured
from .grammar import choices, find, fitting, is_text
from .history import Capture, State, open_role, outside, since, tokens_of, without_space
from .means import CONTINUE, PREFILL, Ask, ProgramError, Target, by_probability, natives, unbound
from .nodes import (
    Bound,
    Call,
    Gen,
    GenAudio,
    Join,
    Media,
    Node,
    Options,
    Rule,
    label,
    loose,
    merged,
)
from .nodes import Literal as LiteralNode

Kind = Literal["literal", "text", "reasoning", "call", "result", "transcript", "audio", "done"]
Emit = Callable[[Kind, str, str | None, State], None]
"""Called with each piece as it is generated: its kind, text, the name it is captured under, and the
state with it."""

ATTEMPTS = 4
"""How often an unconstrained answer is asked for, until one matches."""
TOP = 5
"""How many alternatives of each token are asked for."""

_NONE = Options()
_OWN = frozenset({"name", "list_append", "guarantee", "attempts"})
"""Options that are not sampling settings."""
_REFUSED = frozenset({"unsupported", "invalid_request", "upstream_refused", "upstream_error"})
"""Faults with which a server refuses a field."""


class Run:
    """Runs nodes on a state. `call` runs programs; `emit` is None where nothing is streamed."""

    def __init__(
        self,
        target: Target,
        settings: Mapping[str, Any],
        state: State,
        call: Callable[[Call, State, Mapping[str, Any]], Awaitable[State]],
        emit: Emit | None,
    ) -> None:
        self.target, self.settings, self.state = target, settings, state
        self._call, self._emit = call, emit

    async def visit(self, value: Node, options: Options = _NONE) -> None:
        """Run a node. `options` are those of the nodes around it."""
        match value:
            case LiteralNode(text=text):
                if text:
                    self._place()
                    self._say(text)
            case Join(parts=parts):
                for part in parts:
                    await self.visit(part, options)
            case Media(part=part):
                self._show(part)
            case Gen():
                await self._gen(value, merged(options, value.options))
            case GenAudio(options=own, voice=voice):
                await self._speak(value, merged(options, own), voice)
            case Call():
                self.state = await self._call(value, self.state, _sampling(options))
            case Rule(build=build) if loose(value, frozenset()):
                await self.visit(build(), options)
            case Bound(body=body, options=own) if loose(body, frozenset()) or is_text(body):
                await self._around(body, merged(options, own))
            case Bound(body=body, options=own):
                await self._grammar(value, body, merged(options, own))
            case _:
                await self._grammar(value, value, options)

    async def _around(self, body: Node, options: Options) -> None:
        """Run a node that is no single grammar, and capture its text."""
        self._place()
        turn = self.state.turn
        start = None if turn is None else turn.last
        await self.visit(body, replace(options, name=None, list_append=False))
        if options.name is not None:
            capture = Capture(since(self.state.turn, start))
            self.state = self.state.captured(options.name, capture, append=options.list_append)

    # ---- texts and blocks ----------------------------------------------------------------------

    def _place(self) -> None:
        """Continue the turn of the open role and the open blocks, and emit their openers."""
        if self._emit is None:
            self.state = self.state.placed()
            return
        for step in (State.settled, State.placed):
            old, self.state = self.state.turn, step(self.state)
            turn = self.state.turn
            start = old.last if old and turn and turn.mark is old.mark else None
            if marks := since(turn, start):
                self._emit("literal", marks, None, self.state)

    def _say(self, text: str) -> None:
        self.state = self.state.added(text)
        if self._emit:
            self._emit("literal", text, None, self.state)

    def _show(self, part: Image | Audio) -> None:
        role = open_role.get()
        if role is not None and role.name == "assistant":
            kind = type(part).__name__.lower()
            raise ValueError(f"{kind} is for the model to see; write `with user():` around it")
        self._place()
        self.state = self.state.added(part)
        if self._emit:
            self._emit("literal", "", None, self.state)

    # ---- requests --------------------------------------------------------------------------

    def _begin(self, value: Node) -> None:
        """Prepare the state for generating. Raises ValueError outside the assistant's role."""
        role = open_role.get()
        if role is None or role.name != "assistant":
            where = "outside a role" if role is None else f"in the role {role.name}"
            problem = f"{label(value)} is {where}, and only the assistant generates"
            raise ValueError(f"{problem}; write `with assistant():` around it")
        self._place()

    def _request(
        self, state: State, options: Options, ask: Ask | None = None, **about: Any
    ) -> Request:
        """The request that continues a state."""
        items = state.items()
        prefix, ask = state.prefix(), ask or Ask()
        extra = dict(ask.extra)
        if ask.hidden:
            while items and _is_assistants(items[-1]):
                items.pop()
        elif prefix and ask.begun:
            items = items[:-1]
        elif prefix and isinstance(last := items[-1], Message):
            items[-1] = replace(last, status="in_progress")
            if not ask.hint and self.target.continues is not None:
                extra |= self.target.continues
                if _spaced(prefix):  # models write a space with the word after it
                    items[-1] = without_space(last)
        if ask.hint:
            items.append(Message("user", ask.hint))
        elif not self.target.prefills and items and _is_assistants(items[-1]):
            items.append(Message("user", CONTINUE))
        given = {**self.settings, **_sampling(options)}
        effort = given.pop("effort", None)
        if effort is None and "lark" in self.target.constraints and ask.plain and ask.extra:
            effort = "none"  # the model would reason before every choice
        limit = given.pop("max_tokens", None)
        wanted: dict[str, Any] = {}
        if self.target.logprobs:
            wanted = {"logprobs": True, "top_logprobs": TOP}
        sampling = Sampling(**{**wanted, **given, **about.pop("sampling", {})})
        return Request(
            model=self.target.model or "",
            items=tuple(items),
            sampling=sampling,
            max_output_tokens=limit,
            reasoning=None if effort is None else ReasoningOptions(effort),
            format=ask.format,
            stream=about.pop("stream", False) or self._emit is not None,
            extra={self.target.wire: extra} if extra else None,
            **{"tools": ask.tools, "tool_choice": ask.tool_choice, **about},
        )

    async def _answer(self, request: Request, watch: _Watch | None) -> Answer:
        """The answer to a request. `watch` gets the deltas of its first choice, and returns true
        to stop the stream. Raises AnswerError."""
        first: list[bool] = []
        async with self.target.client.stream(request) as stream:
            async for event in stream:
                match event:
                    case ItemAdded(choice=choice):
                        first.append(choice == 0)
                    case EventDelta(index=index) if watch is not None and first[index]:
                        if await watch(event):
                            break
                    case Failed(fault=fault):
                        left = None if first else self._without(request, fault)
                        if left is None:
                            raise AnswerError(fault, stream.answer)
                        return await self._answer(left, watch)
            answer = stream.answer
        self.state = self.state.spending(answer.usage)
        return answer

    def _without(self, request: Request, fault: Fault) -> Request | None:
        """The request without what the engine refuses: log probabilities, stops, or a prefill."""
        sampling, about = request.sampling, f"{fault.param}: {fault.message}".lower()
        stream, items, extra = request.stream, request.items, request.extra
        if items and _is_assistants(items[-1]) and any(word in about for word in PREFILL):
            extra = self.target.cannot_continue(extra)
            whole = self.state.items() if getattr(items[-1], "status", None) else items  # spaces
            items = (*items[:-1], whole[-1], Message("user", CONTINUE))
        elif sampling.logprobs and "logprob" in about:
            self.target.logprobs = False
            sampling = replace(sampling, logprobs=None, top_logprobs=None)
        elif sampling.stop and "stop" in about:
            self.target.stops = False
            sampling, stream = replace(sampling, stop=None), True  # cancelled at the first stop
        else:
            return None
        return replace(request, items=items, sampling=sampling, stream=stream, extra=extra)

    # ---- free text -------------------------------------------------------------------------

    async def _gen(self, value: Gen, options: Options) -> None:
        self._begin(value)
        await self.target.learn()
        runner = Runner(value.tools)
        offered: dict[str, Any] = {}
        if value.tools:
            offered = {
                "tools": runner.offered(),
                "parallel_tool_calls": value.parallel_tool_calls,
            }
        choice = _choice(value)
        sampling: dict[str, Any] = {}
        # Not every server reports at which stop it ended, or whether at one.
        if value.stop and self.target.stops and value.save_stop_text is None:
            sampling["stop"] = value.stop
        if value.n is not None and value.n > 1:
            sampling["n"] = value.n
        for _ in range(value.max_rounds):
            prefix = self.state.prefix()
            cut = bool(value.stop_regex or (value.stop and "stop" not in sampling))
            about = {**offered, "sampling": sampling, "stream": cut}
            if offered and choice is not None:
                about["tool_choice"] = choice
                choice = None  # else the model would call tools forever
            watch = _Watch(self, options, value, prefix)
            request = self._request(self.state, options, **about)
            answer = await self._answer(request, watch if watch.needed else None)
            ended = answer.end == "length" or request.sampling.stop
            if ended and watch.inside(answer.text) and not answer.calls:
                answer = await self._past(request, answer, watch, label(value))
            await watch.close(answer.text)
            calls = await self._add(answer, watch, value, options, request)
            if not calls:
                return
            await self._run_tools(runner, calls)
        problem = f"{label(value)}: the model still calls tools after {value.max_rounds} rounds"
        raise ProgramError(
            Fault("upstream_error", f"{problem}. Raise max_rounds, or change the prompt.")
        )

    async def _past(self, request: Request, answer: Answer, watch: _Watch, what: str) -> Answer:
        """The answer of a server that began with what is before it in the turn, and was ended there
        by a stop or the limit; as it is where it only looks like that."""
        limit, limited = request.max_output_tokens, answer.end == "length"
        whole = await self._answer(
            replace(
                request,
                sampling=replace(request.sampling, stop=None),
                max_output_tokens=None if limit is None else limit + len(watch.repeated.encode()),
            ),
            None,
        )
        inside = whole.end == "length" and watch.inside(whole.text)
        if not (inside or watch.repeats(whole.text)):
            return answer if limited else whole
        self.target.stops = False
        over = (limited or whole.end == "length") and (await watch.cut(whole.text))[1] is None
        if inside or over:
            problem = f"{what}: {self.target.name} begins its answer anew, and max_tokens ended it "
            problem += "too soon. Leave that out, or put what is before it into a user's message."
            raise ProgramError(Fault("upstream_error", problem, "upstream"))
        return whole

    async def _add(
        self, answer: Answer, watch: _Watch, value: Gen, options: Options, request: Request
    ) -> list[ToolCall]:
        """Append an answer to the state: text, reasoning and calls in their order, and the
        capture, unless there are calls to run. Returns the calls."""
        calls: list[ToolCall] = []
        text, refusal, stop_text = "", "", answer.stop_sequence
        tokens: list[Token] = []
        seconds = answer.usage.latency
        for item in answer.choice(0):
            match item:
                case Reasoning():
                    self.state = self.state.added(item)
                case FunctionCall() | CustomToolCall():
                    if not value.tools:
                        continue  # no tools were offered
                    self.state = self.state.added(item)
                    calls.append(item)
                case Message(parts=parts):
                    for part in parts:
                        if isinstance(part, Refusal):
                            refusal += part.text
                            self.state = self.state.added(part)
                        if not isinstance(part, Text):
                            continue
                        part_text, found = await watch.cut(part.text)
                        stop_text = found if found is not None else stop_text
                        text += part_text
                        at = len(part.text) - len(watch.lead(part.text))
                        own = tuple(tokens_of(part.tokens, at, part_text))
                        tokens += own
                        if part_text:
                            about: dict[str, Any] = {"tokens": own, "seconds": seconds}
                            self.state = self.state.added(part_text, generated=True, **about)
        if calls:
            return calls
        end = "stop" if stop_text is not None else "refused" if refusal else answer.end
        if value.suffix:
            self._say(value.suffix)
        if options.name is not None:
            given: str | list[str] = text
            if value.n is not None:
                given = [text, *await self._others(answer, value.n, watch, request)]
            capture = Capture(given, tuple(tokens), None, end, refusal)
            self.state = self.state.captured(options.name, capture, append=options.list_append)
        if value.save_stop_text is not None:
            saved = Capture(stop_text or "")
            self.state = self.state.captured(value.save_stop_text, saved)
        if self._emit:
            self._emit("done", "", options.name, self.state)
        return calls

    async def _others(
        self, answer: Answer, count: int, watch: _Watch, request: Request
    ) -> list[str]:
        """The texts of the other choices; those that the engine did not give are asked for."""
        have = max(len(answer.reasons), 1)
        one = replace(request, sampling=replace(request.sampling, n=None))
        lacking = (self._answer(one, None) for _ in range(count - have))
        choices = [answer.choice(number) for number in range(1, min(have, count))]
        choices += [each.choice(0) for each in await asyncio.gather(*lacking)]
        texts = ("".join(i.text for i in items if isinstance(i, Message)) for items in choices)
        return [(await watch.cut(text))[0] for text in texts]

    async def _run_tools(self, runner: Runner, calls: Sequence[ToolCall]) -> None:
        """Run calls concurrently, and add their results in order. An error is a result, too."""
        for call in calls:
            if self._emit:
                self._emit("call", call.text, call.name, self.state)
        begin = asyncio.get_running_loop().create_task
        tasks = [
            begin(runner.run(call, Context(call, ANYONE)), context=outside()) for call in calls
        ]
        for call, result in zip(calls, await asyncio.gather(*tasks), strict=True):
            self.state = self.state.added(result.output)
            if self._emit:
                output = result.output.output
                text = output if isinstance(output, str) else Message("user", output).text
                self._emit("result", text, call.name, self.state)

    # ---- text of a grammar -----------------------------------------------------------------

    async def _grammar(self, value: Node, body: Node, options: Options) -> None:
        """Generate a text that matches a node, with the strongest constraint there is."""
        self._begin(value)
        await self.target.learn()
        if choices(body) is None:  # compiled off the event loop, and cached
            await asyncio.to_thread(fitting, body, "")
        prefix = self.state.prefix()
        last = self.state.items()[-1:]
        means = natives(self.target, body, prefix, follows=any(map(_is_assistants, last)))
        own = next(means, None)
        wanted = options.guarantee
        if own is None and wanted == "enforced":
            known = ", ".join(self.target.constraints) or "no constraint"
            problem = (
                f"{label(value)} cannot be enforced by {self.target.name}, which takes {known}"
            )
            fix = "ask another engine, or for guarantee='verified'"
            raise ProgramError(Fault("unsupported", f"{problem}; {fix}.", "client", "guarantee"))
        attempts = options.attempts or (1 if wanted == "best-effort" else ATTEMPTS)
        latest: Answer | None = None
        made, formats = 0, True
        while made < attempts:
            ask = own or unbound(body, made + (not formats), formats)
            watch = None
            if self._emit and own is not None and own.plain:
                watch = _Watch(self, options, None, prefix if own.begun else "")
            try:
                answer = await self._answer(self._request(self.state, options, ask), watch)
            except AnswerError as error:
                if error.fault.code not in _REFUSED or error.answer.output:
                    raise
                if own is None and not (formats and ask.format):
                    raise
                if own is not None:
                    own = next(means, None)  # the engine refuses this one
                    if own is None and wanted == "enforced":
                        raise
                formats = formats and ask.format is None  # the prompt asks for it instead
                continue
            made, latest = made + 1, answer
            text = ask.read(answer)
            if text is not None and own is not None and own.begun:
                # A text that was cut off may end before the prefix does.
                text = "" if prefix.startswith(text) else text.removeprefix(prefix)
            elif text and prefix.startswith(text) and self.target.continues is None:
                # So may one that is searched, in which there may be what matches.
                text = "" if answer.end == "length" and not fitting(body, text) else text
            sure: Guarantee = "verified"
            matching = None
            if text is not None and own is not None and fitting(body, text):
                matching, sure = text, "enforced"
            elif text is not None and (own is None or not own.plain):
                matching = await search.apart(label(body), find, body, text.removeprefix(prefix))
            if matching is None and own is None:
                matching = by_probability(body, answer)
            if matching is not None:
                await self._keep(value, options, answer, matching, sure, watch)
                return
            if answer.refusal or answer.end in ("length", "content_filter", "refused"):
                await self._keep(value, options, answer, text or "", "best-effort", watch)
                return
            # The server ignored this constraint; try the next one.
            own = next(means, own if wanted == "enforced" else None)
        if wanted == "best-effort" and latest is not None:
            await self._keep(value, options, latest, latest.text, "best-effort")
            return
        shown = latest.text[:200] if latest is not None else ""
        problem = (
            f"{label(value)}: none of {attempts} answers of {self.target.name} matches; "
            f"the last was {shown!r}. Ask for it in the prompt, use an engine that enforces "
            "grammars, or allow guarantee='best-effort'."
        )
        raise ProgramError(Fault("upstream_error", problem, "upstream"))

    async def _keep(
        self,
        value: Node,
        options: Options,
        answer: Answer,
        text: str,
        guarantee: Guarantee,
        watch: _Watch | None = None,
    ) -> None:
        """Append a generated text to the state, with its captures."""
        state = self.state
        for item in answer.choice(0):
            if isinstance(item, Reasoning):
                state = state.added(item)
        parts = [p for i in answer.choice(0) if isinstance(i, Message) for p in i.parts]
        given = next((part for part in parts if isinstance(part, Text) and text in part.text), None)
        tokens: list[Token] = []
        start = 0
        if given is not None:
            start = given.text.rfind(text)
            tokens = tokens_of(given.tokens, start, text)
        end = "refused" if answer.refusal else answer.end
        end = "stop" if end == "tool_calls" else end
        if answer.refusal:
            state = state.added(Refusal(answer.refusal))
            text = ""
        if text:
            about = {"seconds": answer.usage.latency, "guarantee": guarantee}
            state = state.added(text, generated=True, tokens=tuple(tokens), **about)
        body = value.body if isinstance(value, Bound) else value
        if end == "stop" or fitting(body, text):
            with suppress(FaultError):
                for name, inner in (await search.apart(label(body), captured, body, text)).items():
                    each = inner if isinstance(inner, list) else [inner]
                    for one in each:
                        own: list[Token] = []
                        if given is not None and text.count(one) == 1:  # else ambiguous
                            own = tokens_of(given.tokens, start + text.find(one), one)
                        found = Capture(one, tuple(own), guarantee)
                        state = state.captured(name, found, append=isinstance(inner, list))
        if options.name is not None:
            capture = Capture(text, tuple(tokens), guarantee, end, answer.refusal)
            state = state.captured(options.name, capture, append=options.list_append)
        self.state = state
        if self._emit:
            if rest := text[watch.shown if watch else 0 :]:
                self._emit("text", rest, options.name, state)
            self._emit("done", "", options.name, state)

    # ---- sound -----------------------------------------------------------------------------

    async def _speak(self, value: GenAudio, options: Options, voice: str) -> None:
        self._begin(value)
        await self.target.learn()
        about: dict[str, Any] = {
            "modalities": ("text", "audio"),
            "audio": AudioOutput(voice, "pcm16"),
            "sampling": {"logprobs": None, "top_logprobs": None},
        }
        watch = _Watch(self, options, None, "")
        answer = await self._answer(self._request(self.state, options, **about), watch)
        sound, refusal = b"", answer.refusal
        for item in answer.choice(0):
            for part in item.parts if isinstance(item, Message) else ():
                if isinstance(part, Audio):
                    sound += base64.b64decode(part.data or "")
                    part = replace(part, data=None, format=None) if part.id else part
                    self.state = self.state.added(part)
                elif isinstance(part, Text) and part.text:
                    self.state = self.state.added(part.text, generated=True)
                elif isinstance(part, Refusal):
                    self.state = self.state.added(part)
        if options.name is not None:
            end = "refused" if refusal else answer.end
            sound = sound if sound.startswith(b"RIFF") else wav(sound)
            capture = Capture(sound, (), None, end, refusal)
            self.state = self.state.captured(options.name, capture, append=options.list_append)
        if self._emit:
            self._emit("done", "", options.name, self.state)


class _Watch:
    """Processes streamed text: removes a repeated prefix, finds stops, and emits the rest."""

    def __init__(self, run: Run, options: Options, gen: Gen | None, prefix: str) -> None:
        self._emit, self._name, self._target = run._emit, options.name, run.target
        self._prefix, self._gen, self._begun = prefix, gen, False
        self.shown = 0  # characters
        self._stops = gen.stop if gen else ()
        self._patterns = gen.stop_regex if gen else ()
        self._scanner = StopScanner(self._stops)
        self._text = ""
        self._growing = search.Growing()
        self._state = run.state
        self._append, turn = options.list_append, run.state.turn
        self._start = turn.last if turn else None

    @cached_property
    def repeated(self) -> str:
        """What the answer may begin with again, as is known once it begins."""
        return self._prefix if self._gen is None or self._target.continues is None else ""

    @cached_property
    def _left(self) -> str:
        return self.repeated.lstrip()

    @property
    def _spaced(self) -> bool:
        return not self.repeated and _spaced(self._prefix)

    @property
    def needed(self) -> bool:
        """Whether there is anything to show, or to find."""
        return bool(self._emit or self._stops or self._patterns)

    async def __call__(self, event: EventDelta) -> bool:
        """Take a delta; whether nothing after it is needed."""
        kind, data = event.kind, event.data
        if kind == "text":
            return await self._take(data)
        if self._emit and kind in ("reasoning", "summary"):
            self._emit("reasoning", data, None, self._state)
        elif self._emit and kind == "transcript":
            self._show(data, "transcript")
        elif self._emit and kind == "audio":
            self._emit("audio", data, self._name, self._state)
        return False

    async def close(self, text: str) -> None:
        """Emit what was held back; `text` is the whole answer."""
        if self._emit and (rest := (await self.cut(text))[0][self.shown :]):
            self._show(rest, "text")

    async def _take(self, data: str) -> bool:
        if data and self._spaced:
            data, self._begun = data if self._begun else data.removeprefix(" "), True
            if not data:
                return False
        if self._left:  # it may repeat the beginning of the turn
            self._text += data
            if self._left.startswith(self._text.lstrip()):
                return False
            data, self._left = self._unrepeated(self._text), ""
            self._text = ""
        if not (self._stops or self._patterns):
            if self._emit:
                self._show(data, "text")
            return False
        if self._patterns:
            return await self._growing.look(data, self._found)
        shown = self._scanner.feed(data)
        if shown and self._emit:
            self._show(shown, "text")
        return self._scanner.found is not None

    def _show(self, text: str, kind: Kind) -> None:
        self.shown += len(text)
        self._state = self._state.added(text, generated=True)
        if self._emit:
            snapshot = self._state.streaming(self._name, self._append, self._start)
            self._emit(kind, text, self._name, snapshot)

    def inside(self, text: str) -> bool:
        """Whether a whole text may be a part of the repeated prefix, and nothing else."""
        begun, repeated = text.lstrip(), self.repeated.lstrip()
        stopped = any(repeated.startswith(stop.lstrip()) for stop in self._stops)
        return repeated.startswith(begun) if begun else bool(repeated) and stopped

    def repeats(self, text: str) -> bool:
        """Whether a text begins with the repeated prefix, maybe after white space."""
        repeated = self.repeated.lstrip()
        return repeated != "" and text.lstrip().startswith(repeated)

    def _unrepeated(self, text: str) -> str:
        return text.lstrip()[len(self.repeated.lstrip()) :] if self.repeats(text) else text

    def lead(self, text: str) -> str:
        """A whole text without the repeated prefix."""
        text = self._unrepeated(text)
        return text.removeprefix(" ") if self._spaced else text

    async def cut(self, text: str) -> tuple[str, str | None]:
        """A whole text up to the first stop, and the stop."""
        text = self.lead(text)
        hits = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        hits += await self._found(text)
        at, stop = min(hits, default=(len(text), None))
        return text[:at], stop

    async def _found(self, text: str) -> list[tuple[int, str]]:
        """Where a `stop_regex` matches, and what of the text."""
        try:
            hits = [await search.first(each, text) for each in self._patterns]
        except FaultError as error:
            raise ProgramError(error.fault) from error
        return [(hit.start, text[hit.start : hit.end]) for hit in hits if hit is not None]


def _sampling(options: Options) -> dict[str, Any]:
    """The sampling settings among options."""
    given = asdict(options).items()
    return {name: each for name, each in given if each is not None and name not in _OWN}


def _spaced(text: str) -> bool:
    """Whether a text ends with one space."""
    return len(text) > 1 and text[-1] == " " and not text[-2].isspace()


def _is_assistants(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "assistant"


def _choice(value: Gen) -> ToolChoice | None:
    choice = value.tool_choice
    if choice is None or choice in ("auto", "required", "none"):
        return cast("ToolChoice | None", choice)
    spec = next(tool.spec for tool in value.tools if tool.spec.name == choice)
    return NamedTool(choice, "custom" if isinstance(spec, CustomTool) else "function")
