"""What guidance's interpreter of chat models does, by number, and what is better here.

What is about the wire is asked of a server that has Chat Completions alone.
"""

import base64
import json

import pytest

from dragoman.core.item import Audio, CustomToolCall, FunctionCallOutput, Image, Message, Text
from dragoman.program import (
    Model,
    Tool,
    assistant,
    audio,
    gen,
    gen_audio,
    image,
    regex,
    role,
    select,
    system,
    user,
)
from dragoman.program import json as json_node
from tests.agent.stage import Model as Stage
from tests.mock import Reply, chunk, mock, stream
from tests.program.test_weaknesses import PIXEL, ask, called, says, sent, texts, weather

WAV = b"RIFF0000WAVE"
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def shout(words: str) -> str:
    """Shouts."""
    return words.upper()


def answered(*replies: Reply):
    """What answers each request with the next of these."""
    left = list(replies)
    return lambda asked: left.pop(0)


def test_r0_1_r0_34_a_model_is_a_value_and_branches_share_its_past_and_client() -> None:
    with user():
        lm = Model(Stage("a", "b")) + "Hello!"
    with assistant():
        one, other = lm + "1" + gen("x"), lm + gen("x")
    assert (one["x"], other["x"], "x" in lm) == ("a", "b", False)
    assert (one.usage.round_trips, lm.usage.round_trips) == (1, 0)
    assert one.items[0] is other.items[0] is lm.items[0]
    assert one.client is lm.client
    assert one.state.turn.before is other.state.turn.before


def test_r0_2_texts_are_one_part_and_media_stand_between_them() -> None:
    with user():
        lm = Model(Stage("x")) + "a" + "b"
        assert lm.items == (Message("user", "ab"),)
        lm = lm + image(PIXEL) + "c"
    kinds = [type(part) for part in lm.items[0].parts]
    assert kinds == [Text, Image, Text]
    assert [lm.items[0].parts[place].text for place in (0, 2)] == ["ab", "c"]


def test_r0_3_r0_4_a_block_is_a_message_unless_it_is_empty() -> None:
    lm = Model(Stage("x"))
    for said in ("one", "", "two"):
        with user():
            lm += said
    assert lm.items == (Message("user", "one"), Message("user", "two"))


async def test_r0_5_messages_have_the_plainest_shape_on_the_wire() -> None:
    tool = Tool.from_regex("[a-z]+", shout)
    custom = {"index": 0, "id": "c2", "type": "custom", "custom": {"name": "shout", "input": "x"}}
    speech = {"audio": {"id": "audio_1", "data": "AAA=", "transcript": "Hi", "expires_at": 9}}
    replies = answered(
        says(called("weather", '{"city": "Rome"}'), finish="tool_calls"),
        says({"tool_calls": [custom]}, finish="tool_calls"),
        says({"content": "Listen."}),
        says(speech),
        says({"content": "End."}),
    )
    async with mock(replies) as server:
        lm = Model(server.base_url, model="m", profile="openai", wire="chat")
        async with system():
            lm = await lm.run("Be brief.")
        async with user():
            lm = await lm.run("See ", image(PIXEL))
        async with assistant():
            lm = await lm.run(gen(tools=[weather, tool]))
        async with assistant():
            lm = await lm.run(gen_audio())
        async with assistant():
            lm = await lm.run(gen())
        await lm.client.close()
    last = sent(server)[-1]["messages"]
    assert last[0] == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in last[1]["content"]] == ["text", "image_url"]
    assert last[2]["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        }
    ]
    assert last[3] == {"role": "tool", "tool_call_id": "c1", "content": "Sunny in Rome."}
    assert last[4]["tool_calls"] == [
        {"id": "c2", "type": "custom", "custom": {"name": "shout", "input": "x"}}
    ]
    assert last[5] == {"role": "tool", "tool_call_id": "c2", "content": "X"}
    assert last[6]["audio"] == {"id": "audio_1"}


def test_r0_6_the_text_of_a_model_shows_all_of_it() -> None:
    lm = Model(Stage([CustomToolCall("c1", "shout", "x")], "Done."))
    with user():
        lm += "See " + image(PIXEL) + audio(WAV)
    with assistant():
        lm += gen(tools=[Tool.from_regex("x", shout)])
        assert str(lm) == (
            "<|im_start|>user\nSee [IMAGE][AUDIO]<|im_end|>\n"
            "<|im_start|>assistant\n<tool=shout>x</tool>\n<tool_result=c1>X</tool_result>\nDone."
        )
    assert str(lm).endswith("Done.<|im_end|>\n")


@pytest.mark.parametrize("node", ["text", image(PIXEL), gen(), select(["a"]), json_node()])
def test_r0_7_a_node_outside_a_role_is_an_error_that_says_what_to_write(node) -> None:
    with pytest.raises(ValueError, match=r"outside a role.*write `with (user|assistant)\(\):`"):
        Model(Stage("x")) + node


def test_r0_8_r0_9_roles_do_not_nest_and_are_three() -> None:
    with user(), pytest.raises(ValueError, match=r"end `with user\(\):` first"), system():
        pass
    with pytest.raises(ValueError, match="the roles are system, user, assistant"):
        role("tool")
    with role("assistant"):
        assert (Model(Stage("x")) + "Hm").items[0].role == "assistant"


def test_r0_10_a_text_is_a_delta_and_stands_in_the_turn() -> None:
    with user():
        deltas = list(Model(Stage("x")).stream("Hello"))
    assert [(each.kind, each.text) for each in deltas] == [("literal", "Hello")]
    assert deltas[0].model.items == (Message("user", "Hello"),)


def test_r0_11_only_the_assistant_generates_and_may_have_begun() -> None:
    lm = Model(Stage("fine"))
    with user(), pytest.raises(ValueError, match="only the assistant generates"):
        lm += gen()
    with assistant():
        lm += "I am " + gen("x")
    assert lm.items == (Message("assistant", "I am fine"),)


def test_r0_12_r0_13_settings_of_a_model_count_where_the_node_has_none() -> None:
    stage = Stage("x")
    lm = Model(stage, top_p=0.9, top_k=4, min_p=0.1, repetition_penalty=1.2, effort="low")
    with assistant():
        lm + gen()
        lm + gen(top_p=0.5, effort="high")
    found = [
        (r.sampling.top_p, r.sampling.top_k, r.sampling.min_p, r.sampling.repetition_penalty)
        for r in stage.asked
    ]
    assert found == [(0.9, 4, 0.1, 1.2), (0.5, 4, 0.1, 1.2)]
    assert [r.reasoning.effort for r in stage.asked] == ["low", "high"]


async def test_r0_14_a_request_has_what_was_set() -> None:
    async with mock(texts("a", "b")) as server:
        lm = Model(server.base_url, model="m")
        async with assistant():
            lm = await lm.run(gen("x"))
            [_ async for _ in lm.stream(gen("y"))]
        await lm.client.close()
    first, second = sent(server)
    asked = {"model": "m", "messages": [], "logprobs": True, "top_logprobs": 5}
    assert {name: first[name] for name in asked} == asked
    assert second["stream"] is True
    assert second["stream_options"]["include_usage"] is True
    assert None not in (*first.values(), *second.values())


async def test_r0_15_r0_24_usage_and_times_add_up() -> None:
    last = {**chunk(), "choices": [], "usage": USAGE}
    reply = stream(chunk({"content": "a"}), chunk({}, "stop"), last)
    async with mock(answered(reply, reply)) as server:
        lm = await ask(server, gen("x"), gen("y"))
    used = lm.usage
    assert (used.input_tokens, used.output_tokens, used.cached_tokens) == (14, 4, 6)
    assert used.round_trips == 2
    assert 0 < used.time_to_first_token < used.latency


async def test_r0_16_r0_17_r0_18_what_is_no_text_of_the_first_choice_is_passed_over() -> None:
    other = chunk({"content": "other"})
    other["choices"][0]["index"] = 1
    events = [
        {**chunk(), "choices": []},
        {**chunk(), "choices": None},
        chunk({"role": "assistant", "content": None}),
        chunk({"content": ""}),
        chunk({"content": "one"}),
        other,
        chunk({"content": " two"}),
        chunk({}, "stop"),
    ]
    async with mock(stream(*events)) as server:
        lm = Model(server.base_url, model="m")
        async with assistant():
            seen = lm.stream(gen("x"))
            deltas = [str(delta) async for delta in seen if delta.kind == "text"]
        await lm.client.close()
    assert seen.model["x"] == "one two"
    assert deltas == ["one", " two"]


@pytest.mark.parametrize(
    "logprobs", ["missing", None, {}, {"content": None}, {"content": []}], ids=str
)
async def test_r0_19_text_without_probabilities_is_text(logprobs) -> None:
    event = chunk({"content": "ab"})
    if logprobs != "missing":
        event["choices"][0]["logprobs"] = logprobs
    async with mock(stream(event, chunk({}, "stop"))) as server:
        lm = await ask(server, gen("x"))
    assert (lm["x"], lm.log_prob("x")) == ("ab", None)


async def test_r0_19_tokens_have_their_probabilities_and_alternatives() -> None:
    top = [{"token": "a", "logprob": -0.5, "bytes": None}, {"token": "c", "logprob": -1.5}]
    tokens = [
        {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": top},
        {"token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": []},
    ]
    event = chunk({"content": "aé"})
    event["choices"][0]["logprobs"] = {"content": tokens}
    async with mock(stream(event, chunk({}, "stop"))) as server:
        lm = await ask(server, gen("x"))
    first, second = lm.capture("x").tokens
    assert (first.text, first.logprob, [each.text for each in first.top]) == ("a", -0.5, ["a", "c"])
    assert (second.text, lm.log_prob("x")) == ("é", -0.75)


async def test_r0_20_r0_33_speech_is_joined_streamed_and_named_by_its_id() -> None:
    pieces = [
        {"audio": {"id": "audio_1", "transcript": "Good "}},
        {"audio": {"id": "audio_1", "data": base64.b64encode(b"\1\0").decode()}},
        {"audio": {"transcript": "day", "data": base64.b64encode(b"\2\0").decode()}},
        {"audio": {"expires_at": 99}},
    ]
    async with mock(answered(says(*pieces), says({"content": "x"}))) as server:
        lm = Model(server.base_url, model="m")
        async with assistant():
            seen = lm.stream(gen_audio("speech"))
            heard = [str(delta) async for delta in seen if delta.kind == "transcript"]
            lm = await seen.model.run(gen())
        await lm.client.close()
    first, second = sent(server)
    assert heard == ["Good ", "day"]
    assert lm["speech"][44:] == b"\1\0\2\0"
    assert sorted(first["modalities"]) == ["audio", "text"]
    assert first["audio"] == {"voice": "alloy", "format": "pcm16"}
    assert second["messages"][-1]["audio"] == {"id": "audio_1"}


async def test_r0_21_r0_26_r0_27_calls_come_in_pieces_and_results_in_order() -> None:
    def rain(city: str) -> dict[str, float]:
        """How much it rains."""
        return {city: 1.5}

    first = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather"}},
        {"index": 1, "id": "c2", "function": {"name": "rain", "arguments": '{"ci'}},
    ]
    rest = [
        {"index": 1, "function": {"arguments": 'ty": "Bonn"}'}},
        {"index": 0, "function": {"arguments": '{"city": "Rome"}'}},
    ]
    replies = answered(
        says(*({"tool_calls": [each]} for each in (*first, *rest)), finish="tool_calls"),
        says({"content": "Both."}),
    )
    async with mock(replies) as server:
        lm = Model(server.base_url, model="m")
        async with assistant():
            node = gen(
                "x", tools=[weather, rain], tool_choice="required", parallel_tool_calls=False
            )
            seen = lm.stream(node)
            kinds = [(d.kind, d.text) async for d in seen if d.kind in ("call", "result")]
        await lm.client.close()
    assert kinds == [
        ("call", '{"city": "Rome"}'),
        ("call", '{"city": "Bonn"}'),
        ("result", "Sunny in Rome."),
        ("result", '{"Bonn":1.5}'),
    ]
    assert seen.model["x"] == "Both."
    body = sent(server)[0]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "rain"]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    results = sent(server)[1]["messages"][-2:]
    assert [each["tool_call_id"] for each in results] == ["c1", "c2"]


async def test_r0_22_a_deprecated_function_call_is_a_call() -> None:
    old = [{"function_call": {"name": "weather", "arguments": ""}}]
    old += [{"function_call": {"arguments": '{"city": "Rome"}'}}]
    replies = answered(says(*old, finish="function_call"), says({"content": "Sun."}))
    async with mock(replies) as server:
        lm = await ask(server, gen("x", tools=[weather]))
    results = [item.output for item in lm.items if isinstance(item, FunctionCallOutput)]
    assert (results, lm["x"]) == (["Sunny in Rome."], "Sun.")


async def test_r0_23_a_refusal_is_on_the_capture_and_the_program_goes_on() -> None:
    replies = answered(says({"refusal": "I "}, {"refusal": "will not."}), says({"content": "a"}))
    async with mock(replies) as server:
        lm = await ask(server, gen("x"), select(["a", "b"], name="y"))
    found = lm.capture("x")
    assert (found.value, found.end, found.refusal) == ("", "refused", "I will not.")
    assert lm["y"] == "a"


async def test_r0_25_a_call_without_an_offered_tool_is_left_out() -> None:
    reply = says({"content": "Hm."}, called("weather", "{}"), finish="tool_calls")
    async with mock(reply) as server:
        lm = await ask(server, gen("x"))
    assert [type(item) for item in lm.items] == [Message, Message]
    assert (lm["x"], lm.capture("x").end) == ("Hm.", "tool_calls")


async def test_r0_28_stops_suffixes_limits_and_lists() -> None:
    async with mock(texts("a b; c", "d e", "f")) as server:
        lm = await ask(
            server,
            gen("l", stop=[";", "!"], suffix="?", save_stop_text=True, list_append=True),
            gen("l", stop_regex="[e-f]", save_stop_text="end", list_append=True),
            gen("l", temperature=0.5, max_tokens=3, list_append=True),
        )
    assert lm["l"] == ["a b", "d ", "f"]
    assert (lm["l_stop_text"], lm["end"]) == (";", "e")
    assert lm.items[-1].text == "a b?d f"
    assert sent(server)[2]["temperature"] == 0.5
    limits = [sent(server)[2].get(name) for name in ("max_completion_tokens", "max_tokens")]
    assert 3 in limits


async def test_r0_29_an_expression_is_kept_and_without_one_text_is_free() -> None:
    async with mock(texts("In 1815.", "16, or so", "free")) as server:
        lm = await ask(
            server, regex("[0-9]{4}", name="a"), gen("b", regex="[0-9]+"), gen("c", regex=None)
        )
    assert lm.captures == {"a": "1815", "b": "16", "c": "free"}


async def test_r0_30_json_asks_for_an_object_or_for_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with mock(texts("{}", '{"a": 1}')) as server:
        lm = await ask(server, json_node("any"), json_node("one", schema=schema))
    first, second = (body["response_format"] for body in sent(server))
    assert first == {"type": "json_object"}
    assert (second["type"], second["json_schema"]["strict"]) == ("json_schema", True)
    given = second["json_schema"]["schema"]
    assert {name: given[name] for name in schema} == schema
    assert json.loads(lm["one"]) == {"a": 1}


async def test_r0_31_r0_32_media_are_sent_as_they_are() -> None:
    async with mock(texts("ok")) as server:
        lm = Model(server.base_url, model="m")
        async with user():
            lm = await lm.run(image(PIXEL), image("https://example.com/a.png"), audio(WAV))
        async with assistant():
            await lm.run(gen())
        await lm.client.close()
    shown = sent(server)[0]["messages"][0]["content"]
    encoded = base64.b64encode(PIXEL).decode()
    assert [part.get("image_url", {}).get("url") for part in shown[:2]] == [
        f"data:image/png;base64,{encoded}",
        "https://example.com/a.png",
    ]
    sound = {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    assert shown[2] == {"type": "input_audio", "input_audio": sound}
    assert isinstance(lm.items[0].parts[2], Audio)
    with pytest.raises(ValueError, match="are no image"):
        image(b"no image")
