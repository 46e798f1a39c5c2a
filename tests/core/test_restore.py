"""What was done to a request is undone on the events of its answer, and the events stay legal."""

from collections.abc import Iterator

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    Call,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Summary,
    Text,
    Thought,
    Token,
    UnknownPart,
)
from dragoman.core.lifecycle import check
from dragoman.core.loss import LossList
from dragoman.core.lower import (
    CallFilter,
    CallRenamer,
    Restore,
    SummaryEmitter,
    chained,
    with_summary,
)
from dragoman.core.request import CustomTool, FunctionTool, Namespace, ReasoningOptions, Request
from dragoman.core.response import Response, Status
from dragoman.core.tools import Toolbox
from tests.strategies import responses, word

TOOLS = (CustomTool("patch"), Namespace("crm", (FunctionTool("find"),)))


def renamer() -> CallRenamer:
    box = Toolbox(enumerate(TOOLS), custom=False, namespaces=False, losses=LossList())
    return CallRenamer(box)


def answer(*items: Item, status: Status = "completed", reasons: tuple[str, ...]) -> Response:
    numbered = tuple(replace(item, id=f"fc_{n}") for n, item in enumerate(items))
    return Response(
        id="1", created_at=0, model="m", status=status, output=numbered, reasons=reasons
    )


def in_pieces(events: Iterator[Event]) -> Iterator[Event]:
    """The same events with every text cut in two."""
    for event in events:
        if isinstance(event, Delta) and isinstance(event.data, str) and event.kind != "audio":
            half = len(event.data) // 2
            yield replace(event, data=event.data[:half])
            yield replace(event, data=event.data[half:], tokens=())
        else:
            yield event


def restored(response: Response, restore: Restore, size: int = 1) -> list[Event]:
    """The client's events, restored in batches of this size."""
    given = [*in_pieces(unfold(response))]
    batches = [given[at : at + size] for at in range(0, len(given), size)]
    events = [event for batch in batches for event in restore(batch)]
    check(events)
    return events


def deltas(events: list[Event]) -> list[tuple[int, str, str]]:
    return [(e.index, e.kind, e.data) for e in events if isinstance(e, Delta)]


# ---- names and kinds -------------------------------------------------------------------------


def test_p16_custom_call_is_restored_with_its_input_in_one_delta() -> None:
    call = FunctionCall("c1", "patch", '{"input": "*** Begin"}', status="completed")
    events = restored(answer(call, reasons=("tool_calls",)), renamer().feed)
    assert events[1] == ItemAdded(
        0, CustomToolCall("c1", "patch", "", id="ctc_0", status="in_progress")
    )
    assert deltas(events) == [(0, "input", "*** Begin")]
    assert fold(events).calls == (
        CustomToolCall("c1", "patch", "*** Begin", id="ctc_0", status="completed"),
    )


def test_p16_namespaced_call_is_restored_while_it_streams() -> None:
    call = FunctionCall("c1", "crm__find", '{"q": 1}', status="completed")
    events = restored(answer(call, reasons=("tool_calls",)), renamer().feed)
    assert deltas(events) == [(0, "arguments", '{"q"'), (0, "arguments", ": 1}")]
    (found,) = fold(events).calls
    assert (found.name, found.namespace) == ("find", "crm")


def test_an_empty_input_has_no_delta() -> None:
    call = FunctionCall("c1", "patch", '{"input": ""}', status="completed")
    events = restored(answer(call, reasons=("tool_calls",)), renamer().feed)
    assert deltas(events) == []


def test_parallel_calls_do_not_mix() -> None:
    restore = renamer().feed
    for index, name in enumerate(("patch", "crm__find", "patch")):
        restore([ItemAdded(index, FunctionCall(f"c{index}", name, "", status="in_progress"))])
    assert restore([Delta(0, 0, "arguments", '{"input"')]) == []
    assert restore([Delta(2, 0, "arguments", '{"inp')]) == []
    assert restore([piece := Delta(1, 0, "arguments", "{")]) == [piece]
    assert restore([Delta(0, 0, "arguments", ': "a"}')]) == []
    assert restore([Failed(fault := Fault("internal", "x"))]) == [
        Delta(0, 0, "input", "a"),
        Delta(2, 0, "input", '{"inp'),
        Failed(fault),
    ]


@st.composite
def called(draw: st.DrawFn) -> Response:
    """An answer with calls; no name is that of a function and of a custom tool at once."""
    response = draw(responses())
    calls = [item for item in response.output if isinstance(item, FunctionCall | CustomToolCall)]
    kinds = {(call.namespace, call.name, type(call)) for call in calls}
    assume(len({(space, name) for space, name, _ in kinds}) == len(kinds))
    return response


@given(called(), st.booleans(), st.booleans())
def test_p16_restored_answer_equals_the_original(response, custom, namespaces) -> None:
    box = Toolbox((), custom=custom, namespaces=namespaces, losses=LossList())

    def lower(item: Item) -> Item:
        return box.lower(item) if isinstance(item, FunctionCall | CustomToolCall) else item

    lowered = replace(response, output=tuple(map(lower, response.output)))
    assert fold(restored(lowered, CallRenamer(box).feed)) == response


# ---- calls that are not allowed --------------------------------------------------------------

READ = FunctionCall("c1", "read", "{}", status="completed")
WRITE = FunctionCall("c2", "write", "{}", status="completed")
SAID = Message("assistant", (Text("So."),), status="completed")


def suppressed(*items: Item, reasons: tuple[str, ...] = ("tool_calls",)) -> Response:
    suppressor = CallFilter(frozenset({(None, "read"), ("files", "list")}))
    return fold(restored(answer(*items, reasons=reasons), suppressor.feed))


def test_call_that_is_not_allowed_is_dropped_and_reported() -> None:
    response = suppressed(WRITE, SAID, READ)
    assert response.output == (replace(SAID, id="fc_1"), replace(READ, id="fc_2"))
    assert response.reasons == ("tool_calls",)
    (loss,) = response.losses
    assert (loss.field, loss.action) == ("tool_choice", "dropped")
    assert "'write'" in loss.why


def test_answer_whose_calls_are_all_dropped_ends_with_stop() -> None:
    assert suppressed(SAID, WRITE).reasons == ("stop",)
    assert suppressed(SAID, WRITE, reasons=("length",)).reasons == ("length",)


def test_answer_with_nothing_left_is_an_empty_message() -> None:
    response = suppressed(WRITE, WRITE)
    assert response.output == (Message("assistant", (Text(""),), "msg_1_2", "completed"),)
    assert response.reasons == ("stop",)


def test_namespace_of_a_call_is_checked_unless_it_is_missing() -> None:
    listed = FunctionCall("c", "list", "{}", status="completed")
    others = replace(listed, namespace="mail")
    response = suppressed(listed, replace(listed, namespace="files"), others)
    assert [call.namespace for call in response.calls] == [None, "files"]


def test_progress_gets_the_index_of_its_item() -> None:
    restore = CallFilter(frozenset()).feed
    assert restore([Started("1", 0, "m")]) == [Started("1", 0, "m")]
    assert restore([ItemAdded(0, WRITE)]) == []
    assert restore([ItemAdded(1, SAID)]) == [ItemAdded(0, SAID)]
    assert restore([Progress(0, "searching")]) == []
    assert restore([Progress(1, "searching")]) == [Progress(0, "searching")]
    assert restore([everywhere := Progress(None, "alive")]) == [everywhere]


def test_dropped_calls_change_the_reason_of_their_choice_only() -> None:
    restore = CallFilter(frozenset({(None, "read")})).feed
    for index, (item, choice) in enumerate([(READ, 0), (WRITE, 1), (SAID, 2)]):
        restore([ItemAdded(index, item, choice)])
    *said, end = restore([Finished("completed", ("tool_calls", "tool_calls", "stop"))])
    assert end.reasons == ("tool_calls", "stop", "stop")
    assert [event.choice for event in said if isinstance(event, ItemAdded)] == [1]


@given(responses(), st.sets(word, max_size=2))
def test_call_filter_drops_calls_and_nothing_else(response, names) -> None:
    def may(item: Item) -> bool:
        return not isinstance(item, FunctionCall | CustomToolCall) or item.name in names

    spaces = {item.namespace for item in response.output if isinstance(item, Call)} | {None}
    suppressor = CallFilter(frozenset((space, name) for space in spaces for name in names))
    left = fold(restored(response, suppressor.feed))
    kept = tuple(item for item in response.output if may(item))
    assert left.output[: len(kept)] == kept
    assert all(item.text == "" for item in left.output[len(kept) :])
    if len(kept) == len(response.output):
        assert left == response


def test_chained_restores_run_in_order() -> None:
    restore = chained(renamer().feed, CallFilter(frozenset({("crm", "find")})).feed)
    find = FunctionCall("c1", "crm__find", "{}", status="completed")
    patch = FunctionCall("c2", "patch", '{"input": "x"}', status="completed")
    response = fold(restored(answer(patch, find, reasons=("tool_calls",)), restore))
    assert [(call.namespace, call.name) for call in response.calls] == [("crm", "find")]


# ---- summaries of open reasoning ---------------------------------------------------------------


@given(responses())
def test_open_reasoning_is_emitted_as_summary_and_events_stay_legal(response) -> None:
    seen = fold(restored(response, SummaryEmitter().feed))
    for item, own in zip(seen.output, response.output, strict=True):
        if isinstance(own, Reasoning) and isinstance(item, Reasoning) and not own.summary:
            thoughts = (part for part in own.content if isinstance(part, Thought))
            expected = replace(own, summary=tuple(Summary(part.text) for part in thoughts))
            if own.status == "in_progress":  # its text follows the summary, which is not done yet
                expected = replace(expected, content=item.content)
            assert item == expected
        elif response.status == "completed":
            assert item == own


def test_summary_streams_and_the_reasoning_follows_whole() -> None:
    thought = Thought("So it is.", (Token("So", -0.5), Token(" it is.", -0.1)))
    events = restored(answer(Reasoning((thought,)), reasons=("stop",)), SummaryEmitter().feed)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [(delta.kind, delta.data) for delta in deltas] == [
        ("summary", "So i"),
        ("summary", "t is."),
        ("reasoning", "So it is."),
    ]
    assert deltas[-1].tokens == thought.tokens


def test_reasoning_that_begins_with_a_summary_passes_unchanged() -> None:
    own = answer(Reasoning((Thought("b"),), (Summary("a"),)), reasons=("stop",))
    begun = [ItemAdded(0, Reasoning()), PartAdded(0, 0, Summary("")), Delta(0, 0, "summary", "a")]
    begun += [
        PartDone(0, 0, Summary("a")),
        PartAdded(0, 0, Thought("")),
        ItemDone(0, own.output[0]),
    ]
    assert SummaryEmitter().feed(begun) == begun


def test_upstream_summary_follows_the_emulated_one() -> None:
    """OpenRouter may send details of both kinds in any order."""
    own = Reasoning(id="rs_1", status="in_progress")
    parts = (Thought("a"), Summary("b"), UnknownPart("chat", {"type": "x"}), Thought("c"))
    summariser, seen = SummaryEmitter(), [Started("1", 0, "m"), ItemAdded(0, own)]
    for number, part in ((0, parts[0]), (0, parts[1]), (1, parts[2]), (2, parts[3])):
        kind = "summary" if isinstance(part, Summary) else "reasoning"
        text = getattr(part, "text", "")
        seen += summariser.feed([PartAdded(0, number, replace(part, text="") if text else part)])
        if text:
            seen += summariser.feed([Delta(0, number, kind, text)])
            seen += summariser.feed([Delta(0, number, kind, "")])
        seen += summariser.feed([PartDone(0, number, part)])
    whole = Reasoning((parts[0], parts[2], parts[3]), (parts[1],), id="rs_1", status="completed")
    seen += summariser.feed([ItemDone(0, whole)])
    seen += summariser.feed([Finished("completed")])
    check(seen)
    summary = (Summary("a"), Summary("b"), Summary("c"))
    assert fold(seen).output == (replace(whole, summary=summary),)


def test_cut_reasoning_is_left_as_a_summary() -> None:
    thought = Reasoning((Thought("Hm, so"),))
    events = [*in_pieces(unfold(answer(thought, reasons=("stop",))))]
    cut = next(n for n, event in enumerate(events) if isinstance(event, PartDone))
    fault = Failed(Fault("upstream_error", "gone", "upstream"))
    summariser = SummaryEmitter()
    seen = summariser.feed([*events[:cut], fault])
    check(seen)
    (item,) = fold(seen).output
    assert item.summary == (Summary("Hm, so"),)


def test_no_summary_is_emitted_unless_asked() -> None:
    rename = renamer().feed
    for options in (None, ReasoningOptions("low")):
        request = Request(model="m", reasoning=options)
        assert with_summary(request) is None
        assert with_summary(request, rename) is rename
    asked = Request(model="m", reasoning=ReasoningOptions(summary="auto"))
    assert with_summary(asked) is not None
    both = with_summary(asked, rename)
    assert both is not None
    call = answer(FunctionCall("c", "crm__find", "{}"), Reasoning((Thought("t"),)), reasons=("x",))
    seen = fold(restored(call, both))
    assert seen.output[0].namespace == "crm"
    assert seen.output[1].summary == (Summary("t"),)
