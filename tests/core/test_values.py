"""Plain values: messages, responses, faults, losses, guarantees, secrets."""

import copy
import gc
import pickle
import time

import pytest

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.event import Finished, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import (
    PLACED,
    FunctionCall,
    Image,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    UnknownPart,
    place_behind,
    place_of,
)
from dragoman.core.loss import Loss, LossList, path
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    NamedTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.core.response import default_guarantee
from tests.answers import answer


def test_a_message_reads_as_text_and_parts_either_way() -> None:
    assert Message("user", "Hi").parts == (Text("Hi"),)
    assert Message("user", "Hi").text == "Hi"
    assert Message("user", (Text("a"), Image("u"), Text("b"))).text == "ab"
    assert Message("user").parts == ()


def test_tokens_of_which_an_answer_has_a_million_are_no_work_for_the_collector() -> None:
    assert not gc.is_tracked(Token("a", -0.5, top=(Token("b", -1.0),)))


def test_what_users_said_tells_places_apart_whatever_the_model_and_tools_said() -> None:
    plain = [Message("user", "Hi")]
    assert place_behind(7, [Message("user", (Text("Hi"),))]) == place_behind(7, plain)
    for item in (Message("assistant", "Hi"), FunctionCall("c", "f", "{}"), Message("user", ())):
        assert place_behind(7, [item]) == 7
    long = "x" * 10_000
    said = ["Hi", "\ud83d", long, long + "x", "y" + long[1:], long[1:] + "y"]
    shown = [(Image("https://example.com/" + name), Text("Hi")) for name in "ab"]
    asked = [Message("user", content) for content in [*said, *shown]]
    assert len({place_behind(7, [each]) for each in asked}) == len(asked)


def test_of_a_million_parts_the_first_are_read_for_their_place_and_all_are_counted() -> None:
    def user(*parts: str) -> Message:
        return Message("user", tuple(map(Text, parts)))

    def said(*parts: str) -> int:
        return place_behind(place_behind(7, [user("a")]), [user(*parts)])

    start, end = ("b",) * (PLACED - 1), ("c",) * 100
    known = said(*start, *end)
    assert known == said(*start, "d", *end[1:])
    assert known not in (said(*start, *end, "c"), said(*start[1:], "d", *end))
    assert known not in (said(*start[:500], "d", *start[501:], *end), said(*start[1:], *end))
    many = Message("user", (Text("c"),) * 1_000_000)
    begun = time.thread_time()
    place_behind(7, [many])
    assert time.thread_time() - begun < 0.05


@pytest.mark.parametrize(
    "id",
    ["call_x8Kd93Lp", "toolu_01AbCdEf", "chatcmpl-tool-9fab12cd", "123456789", "call_00_Qd5eabc3"],
)
def test_an_id_of_a_call_that_is_random_needs_no_place(id: str) -> None:
    assert place_of(FunctionCall(id, "clock", "{}"), 7) is None


@pytest.mark.parametrize(
    "id", ["functions.step2research:0", "0", "call_0", "", "call-12", "functions.clock:3"]
)
def test_an_id_of_a_call_that_is_counted_needs_its_place(id: str) -> None:
    name = "step2research" if "step" in id else "clock"
    assert place_of(FunctionCall(id, name, "{}"), 7) == 7


def test_reasoning_text_is_the_content_or_else_the_summary() -> None:
    unknown = UnknownPart("responses", {})
    assert Reasoning((Thought("a"), unknown, Thought("b")), (Summary("s"),)).text == "ab"
    assert Reasoning((), (Summary("s"),)).text == "s"


def test_r1_5_a_whole_answer_reads_as_text_calls_reasoning_and_refusal() -> None:
    call = FunctionCall("c", "f", "{}")
    output = (
        Reasoning((Thought("hm"),)),
        Message("assistant", (Text("a"), Refusal("no"))),
        call,
        Message("assistant", "b"),
        Message("assistant", "other"),
    )
    one, two = answer(*output[:4]), answer(*output, choices=(0, 0, 0, 0, 1))
    for response in (one, two):
        assert (response.text, response.refusal, response.reasoning) == ("ab", "no", "hm")
        assert response.calls == (call,)
    assert (one.choice(1), two.choice(1)) == ((), output[4:])


def test_faults_name_their_field() -> None:
    assert bad_request("is wrong", "n").message == "n: is wrong"
    assert bad_request("is wrong").param is None
    assert unsupported("cannot be", "n").code == "unsupported"
    with pytest.raises(FaultError, match="n: is wrong") as raised:
        raise FaultError(bad_request("is wrong", "n"))
    assert raised.value.fault.param == "n"


def test_a_fault_that_is_raised_in_another_process_arrives() -> None:
    class OtherError(FaultError):
        def __init__(self, fault, more) -> None:
            super().__init__(fault)
            self.more = more

    error = OtherError(bad_request("is wrong", "n"), more=1)
    copied = copy.copy(error)  # as `pickle` does it
    assert (type(copied), str(copied), vars(copied)) == (OtherError, str(error), vars(error))
    assert pickle.loads(pickle.dumps(FaultError(error.fault))).fault == error.fault


def test_p45_a_caller_and_a_secret_do_not_print_keys() -> None:
    canary = "canary-" + "key"
    key = Secret(canary)
    assert key.reveal() == canary
    assert canary not in repr(key) + str(key) + f"{[key]}" + repr(Caller(tenant="t", key=key))
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_guarantee_of_the_end_wins_over_that_of_the_start() -> None:
    start = Started("1", 0, "m", guarantee="enforced")
    assert fold([start, Finished("completed")]).guarantee == "enforced"
    assert fold([start, Finished("completed", guarantee="best-effort")]).guarantee == "best-effort"
    verified = fold([Started("1", 0, "m"), Finished("completed", guarantee="verified")])
    assert fold(unfold(verified)) == verified


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (Request(model="m"), None),
        (Request(model="m", format=JSONObject()), "best-effort"),
        (Request(model="m", extra={"chat": {"response_format": {"type": "regex"}}}), "best-effort"),
        (Request(model="m", extra={"chat": {"response_format": {"vendor": 1}}}), None),
        (
            Request(model="m", tools=(Namespace("n", (FunctionTool("f", strict=True),)),)),
            "best-effort",
        ),
        (Request(model="m", tools=(CustomTool("c", None, "lark", "start: WORD"),)), "best-effort"),
        (Request(model="m", tools=(CustomTool("c"), UnknownTool("chat", "x", {}))), None),
        (Request(model="m", tool_choice=AllowedTools("auto", (NamedTool("f"),))), "best-effort"),
        (Request(model="m", tool_choice=NamedTool("f")), "best-effort"),
        (Request(model="m", tool_choice="required"), "best-effort"),
        (Request(model="m", tool_choice="none", tools=(FunctionTool("f", strict=True),)), None),
    ],
)
def test_default_guarantee_follows_the_constraints_of_the_request(request_, word) -> None:
    assert default_guarantee(request_) == word


def test_places_are_filled_in_from_the_left() -> None:
    assert path("a[*].b[*].c", (1, 2)) == "a[1].b[2].c"
    assert path("a[*].b[*].c", (1,)) == "a[1].b[*].c"
    assert path("a", ()) == "a"


def test_losses_keep_the_order_of_their_first_occurrence() -> None:
    ledger = LossList()
    ledger.note("b[*]", "dropped", "why", (0,))
    ledger.note("a", "emulated", "how")
    ledger.note("b[*]", "dropped", "why", (1,))
    assert ledger.losses() == (Loss("b[*]", "dropped", "why"), Loss("a", "emulated", "how"))


def test_the_same_place_twice_is_one_place() -> None:
    ledger = LossList()
    for _ in range(2):
        ledger.note("a[*]", "dropped", "why", (3,))
    assert ledger.losses() == (Loss("a[3]", "dropped", "why"),)


def test_two_reasons_are_two_losses() -> None:
    ledger = LossList()
    ledger.note("a", "dropped", "one")
    ledger.note("a", "dropped", "other")
    assert len(ledger.losses()) == 2
    assert ledger.contains("a", "one")
    assert not ledger.contains("a", "third")
