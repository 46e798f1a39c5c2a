"""Answers of every kind that a Responses client may be given, as events.

Each scene is the events of one answer; the tests say them, judge what was said, and hear it
again. They are made with the assembler, or by hand where the assembler would never do it.
"""

from collections.abc import Callable

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import (
    Annotation,
    Compaction,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
)
from dragoman.core.open_item import part_kind
from dragoman.core.response import Usage
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import CUT, Turn

USAGE = Usage(9, 4, 13, 2, 1, 3)
CITATION = Annotation("url_citation", 0, 5, "https://example.com/a", "A page")
QUOTE = Annotation("file_citation", file_id="file_1", filename="a.txt", index=3)
TOKENS = (
    Token("Hel", -0.25, b"Hel", (Token("Hel", -0.25, b"Hel"), Token("Hi", -1.5, b"Hi"))),
    Token("lo", -0.5, b"lo"),
)

Scene = Callable[[Turn], None]
SCENES: dict[str, Scene] = {}


def scene(reason: str) -> Callable[[Scene], Scene]:
    """Adds a scene, which ends for this reason unless it has failed."""

    def add(begin: Scene) -> Scene:
        def whole(turn: Turn) -> None:
            begin(turn)
            turn.usage = USAGE
            if reason in ("length", "content_filter"):
                turn.complete("incomplete", (reason,))
            else:
                turn.complete("completed", (reason,), 1_700_000_009)

        SCENES[begin.__name__] = whole
        return whole

    return add


def play(scene: Scene) -> list[Event]:
    """The events of a scene."""
    turn = Turn("0123abcd", 1_700_000_000, "model-1", think=None)
    scene(turn)
    return turn.take()


@scene("stop")
def text(turn: Turn) -> None:
    for piece in ("Hel", "lo ", "wör", "ld 😀", '"\\\n'):
        turn.text(piece)


def _write(turn: Turn, index: int, part: Part, number: int) -> None:
    item = turn.item(index)
    match part:
        case Text():
            turn.emit(item.at("text", number, Text(""))[0])
            turn.write(index, "text", part.text[:3], number, part.tokens[:1])
            for note in part.annotations:
                turn.emit(item.annotate(note, number))
            turn.write(index, "text", part.text[3:], number, part.tokens[1:])
        case Refusal() | Thought() | Summary():
            turn.write(index, part_kind(part), part.text[:2], number)
            turn.write(index, part_kind(part), part.text[2:], number)
    turn.emit(item.close_part(item.at(part_kind(part), number)[1]))


@scene("stop")
def parts_with_annotations(turn: Turn) -> None:
    index = turn.open(Message("assistant", phase="final_answer"))
    _write(turn, index, Text("Hello there", (CITATION, QUOTE)), 0)
    _write(turn, index, Text("and more"), 1)


@scene("stop")
def probabilities(turn: Turn) -> None:
    index = turn.open(Message("assistant"))
    _write(turn, index, Text("Hello", (), TOKENS), 0)


@scene("stop")
def refusal(turn: Turn) -> None:
    turn.refusal("I cannot ")
    turn.refusal("do that.")


@scene("stop")
def text_then_refusal(turn: Turn) -> None:
    index = turn.open(Message("assistant"))
    _write(turn, index, Text("Well, "), 0)
    _write(turn, index, Refusal("no."), 1)


@scene("stop")
def raw_reasoning(turn: Turn) -> None:
    turn.reasoning("First ")
    turn.reasoning("this.")
    turn.text("Yes.")


@scene("stop")
def summary_reasoning(turn: Turn) -> None:
    index = turn.open(Reasoning())
    _write(turn, index, Summary("**One**"), 0)
    _write(turn, index, Summary("**Two**"), 1)
    turn.close(index)
    turn.text("Yes.")


@scene("stop")
def sealed_reasoning(turn: Turn) -> None:
    index = turn.open(Reasoning())
    _write(turn, index, Summary("In short"), 0)
    _write(turn, index, Thought("At length"), 0)
    item = turn.item(index)
    item.attach_reasoning({}, "gAAAAB+/==")
    turn.close(index)
    turn.text("Yes.")


@scene("tool_calls")
def one_call(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "get_weather"))
    for piece in ('{"ci', 'ty": "Zü', 'rich"}'):
        turn.call(CallFragment(0, arguments=piece))


@scene("tool_calls")
def parallel_calls(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "first"))
    turn.call(CallFragment(1, "call_b", "second"))
    for index, piece in ((0, '{"a"'), (1, '{"b"'), (0, ": 1}"), (1, ": 2}")):
        turn.call(CallFragment(index, arguments=piece))


@scene("tool_calls")
def custom_call(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "apply_patch", custom=True))
    turn.call(CallFragment(0, arguments="*** Begin"))
    turn.call(CallFragment(0, arguments=" Patch\n"))


@scene("tool_calls")
def namespaced_call(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "search", "{}", namespace="mail"))


@scene("tool_calls")
def call_after_text(turn: Turn) -> None:
    turn.text("Let me see.")
    turn.call(CallFragment(0, "call_a", "look", '{"x": 1}'))


@scene("stop")
def commentary(turn: Turn) -> None:
    for phase, words in (("commentary", "Looking."), ("final_answer", "Found.")):
        index = turn.open(Message("assistant", phase=phase))
        turn.write(index, "text", words)
        turn.close(index)


@scene("length")
def cut_by_length(turn: Turn) -> None:
    turn.text("It is a truth univ")


@scene("length")
def call_cut_by_length(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "look", '{"x": '))


@scene("content_filter")
def filtered(turn: Turn) -> None:
    turn.text("How to ")


@scene("content_filter")
def filtered_at_once(turn: Turn) -> None:
    turn.header("model-1")


@scene("stop")
def nothing(turn: Turn) -> None:
    turn.header("model-1")


@scene("stop")
def hosted_tool(turn: Turn) -> None:
    action = {"type": "search", "query": "a", "queries": ["a"]}
    search = {"id": "ws_1", "status": "in_progress", "action": action}
    index = turn.open(Unknown("responses", "web_search_call", search, "ws_1"))
    turn.progress(index, "in_progress")
    turn.progress(index, "searching")
    turn.progress(index, "completed")
    found = {"id": "ws_1", "status": "completed", "action": action}
    turn.close(index, Unknown("responses", "web_search_call", found, "ws_1"))
    turn.text("Found it.")


@scene("stop")
def picture(turn: Turn) -> None:
    begun = {"id": "ig_1", "status": "in_progress", "result": None}
    index = turn.open(Unknown("responses", "image_generation_call", begun, "ig_1"))
    turn.progress(index, "generating")
    turn.progress(index, "partial", {"partial_image_index": 0, "partial_image_b64": "QUJD"})
    done = {"id": "ig_1", "status": "completed", "result": "QUJD"}
    turn.close(index, Unknown("responses", "image_generation_call", done, "ig_1"))


@scene("stop")
def compaction(turn: Turn) -> None:
    turn.open(Compaction("gAAAA==", "cmp_1"))


@scene("failed")
def failed_during_text(turn: Turn) -> None:
    turn.text("Once upon")
    turn.usage = USAGE
    turn.fail(Fault("upstream_error", "Out of memory.", "upstream", upstream_code="server_error"))


@scene("failed")
def failed_during_calls(turn: Turn) -> None:
    turn.call(CallFragment(0, "call_a", "first", '{"a"'))
    turn.call(CallFragment(1, "call_b", "second", '{"b"'))
    turn.fail(Fault("rate_limited", "Slow down.", "upstream"))


@scene("failed")
def cut_off(turn: Turn) -> None:
    turn.reasoning("Hm")
    turn.text("Once upon")
    turn.fail(CUT)


@scene("failed")
def failed_at_once(turn: Turn) -> None:
    turn.header("model-1")
    turn.fail(Fault("internal", "That was us."))


FAILED = {name for name in SCENES if name.startswith(("failed", "cut_off"))}
"""Scenes that end badly."""
