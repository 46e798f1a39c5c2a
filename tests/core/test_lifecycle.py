"""The checker: every misstep it must catch, and that it names the place."""

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    FunctionCall,
    Image,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
)
from dragoman.core.lifecycle import FirstChoice, LifecycleError, check

START, END = Started("r", 0, "m"), Finished("completed")
FAIL = Failed(Fault("internal", "x"))
MESSAGE = Message("assistant", id="m")
ADDED, TEXT = ItemAdded(0, MESSAGE), PartAdded(0, 0, Text(""))
SAID = Message("assistant", (Text("Hi"),), id="m")
HI = Delta(0, 0, "text", "Hi")
DONE = (PartDone(0, 0, Text("Hi")), ItemDone(0, SAID))
CALL = FunctionCall("c", "f", "", id="f")


@pytest.mark.parametrize(
    "events",
    [
        [FAIL],
        [START, END],
        [START, FAIL],
        [START, ADDED, TEXT, HI, FAIL],
        [START, ADDED, TEXT, HI, *DONE, Progress(0, "completed"), END],
        [START, ItemAdded(0, Unknown("w", "k", {"x": 1})), Delta(0, 0, "code", "x"),
         ItemDone(0, Unknown("w", "k", {"x": 2})), END],
        [START, ADDED, PartAdded(0, 0, Image("u")), PartDone(0, 0, Image("u")),
         ItemDone(0, Message("assistant", (Image("u"),), id="m")), END],
    ],
)  # fmt: skip
def test_p17_legal_orders_pass(events) -> None:
    check(events)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "the events ended while the answer was new"),
        ([START], "the events ended while the answer was open"),
        ([END], "Finished may not come while the answer is new"),
        ([ADDED], "ItemAdded may not come while the answer is new"),
        ([START, START], "Started may not come while the answer is open"),
        ([START, END, FAIL], "Failed may not come while the answer is over"),
        ([START, ItemAdded(1, MESSAGE)], "item 1 was added where 0 was next"),
        ([START, ADDED, ItemAdded(1, MESSAGE)], "the id m was used before"),
        ([START, ItemAdded(0, SAID)], "item 0 was not empty when it was added"),
        ([START, ItemAdded(0, Reasoning(summary=(Summary("s"),)))], "was not empty"),
        ([START, Progress(0, "completed")], "item 0 is not known"),
        ([START, HI], "item 0 is not known"),
        ([START, ADDED, PartAdded(0, 1, Text(""))], "part 1 was added where 0 was next"),
        ([START, ADDED, PartAdded(0, 0, Text("Hi"))], "part 0 was not empty when it was added"),
        ([START, ADDED, HI], "a text delta came for part 0 of item 0, which is not open"),
        ([START, ADDED, TEXT, Delta(0, 0, "refusal", "no")], "a refusal delta came for part 0"),
        ([START, ADDED, TEXT, HI, DONE[0], HI], "which is not open"),
        ([START, ADDED, PartDone(0, 0, Text(""))], "part 0 of item 0 is not open"),
        ([START, ADDED, TEXT, PartDone(0, 0, Refusal(""))], "part 0 of item 0 is not open"),
        ([START, ADDED, TEXT, DONE[0]], "the deltas of part 0 of item 0 do not add up"),
        ([START, ADDED, TEXT, HI, DONE[1]], "item 0 was done while parts of it were open"),
        ([START, ADDED, ItemDone(0, Message("assistant", id="n"))], "item 0 changed its id"),
        ([START, ADDED, ItemDone(0, SAID)], "item 0 is done and is not what its events add up to"),
        ([START, ADDED, TEXT, HI, *DONE, HI], "item 0 is done"),
        ([START, ADDED, END], r"the answer finished while items \[0\] were open"),
        ([START, Finished("completed", ())], "the answer finished without a reason"),
        ([START, ItemAdded(0, CALL), Delta(0, 0, "arguments", "{}"), ItemDone(0, CALL)], "item 0"),
        ([START, ItemAdded(0, CustomToolCall("c", "f", "x"))], "item 0 was not empty"),
    ],
)
def test_p17_illegal_events_are_named(events, problem) -> None:
    with pytest.raises(LifecycleError, match=problem):
        check(events)


@pytest.mark.parametrize(
    ("part", "delta", "wrong"),
    [
        (Text("a"), {"kind": "text", "data": "a"}, Text("a", tokens=(Token("a"),))),
        (Text(""), {"kind": "annotation", "data": Annotation("n")}, Text("")),
        (Refusal("a"), {"kind": "refusal", "data": "a"}, Refusal("b")),
        (Thought("a"), {"kind": "reasoning", "data": "a"}, Thought("b")),
        (Summary("a"), {"kind": "summary", "data": "a"}, Summary("b")),
        (Audio("QQ=="), {"kind": "audio", "data": "QQ=="}, Audio("QUI=")),
        (Audio(transcript="a"), {"kind": "transcript", "data": "a"}, Audio()),
    ],
)
def test_law_3_deltas_add_up_to_the_part(part, delta, wrong) -> None:
    blank = {Text: Text(""), Audio: Audio()}.get(type(part)) or type(part)("")
    thinking = isinstance(part, Thought | Summary)
    item = Reasoning(id="m") if thinking else MESSAGE
    before = [START, ItemAdded(0, item), PartAdded(0, 0, blank), Delta(0, 0, **delta)]
    with pytest.raises(LifecycleError, match="add up"):
        check([*before, PartDone(0, 0, wrong)])
    if delta["kind"] != "annotation":
        check([*before, PartDone(0, 0, part), FAIL])


def test_a_reasoning_item_is_made_of_its_parts() -> None:
    parts = [
        *(
            PartAdded(0, 0, Thought("")),
            Delta(0, 0, "reasoning", "t"),
            PartDone(0, 0, Thought("t")),
        ),
        *(PartAdded(0, 0, Summary("")), PartDone(0, 0, Summary(""))),
    ]
    begun = [START, ItemAdded(0, Reasoning()), *parts]
    check([*begun, ItemDone(0, Reasoning((Thought("t"),), (Summary(""),), "blob")), END])
    with pytest.raises(LifecycleError, match="not what its events add up to"):
        check([*begun, ItemDone(0, Reasoning((Thought("t"),)))])


def test_of_many_choices_the_first_is_kept() -> None:
    first, message = FirstChoice(), Message("assistant")
    events = [
        *(START, Progress(None, "alive"), ItemAdded(0, message, choice=1), ItemAdded(1, message)),
        *(PartAdded(0, 0, Text("")), PartAdded(1, 0, Text(""))),
        Finished("completed", reasons=("stop", "length")),
    ]
    assert [first.feed(event) for event in events] == [
        *(START, Progress(None, "alive"), None, ItemAdded(0, message)),
        *(None, PartAdded(0, 0, Text(""))),
        Finished("completed", reasons=("stop",)),
    ]
