"""What guidance's interpreter of chat models gets wrong, by number, and what happens here.

W9 to W12 are about the model itself, the others about what goes over the wire.
"""

import asyncio
import base64
import json
import struct

import pytest

from dragoman.core.item import FunctionCall, FunctionCallOutput, Image, Message
from dragoman.core.response import Response
from dragoman.engines.remote import Remote
from dragoman.engines.script import demo
from dragoman.program import (
    Model,
    assistant,
    gen,
    gen_audio,
    image,
    regex,
    select,
    system,
    user,
)
from tests.agent.stage import Model as Stage
from tests.mock import Asked, Mock, Reply, chunk, head, mock, plain, stream

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def says(*pieces: dict, finish: str = "stop", **more: object) -> Reply:
    """A streamed answer of a chat server."""
    return stream(*map(chunk, pieces), chunk({}, finish, **more))


def texts(*answers: str):
    """What answers each request with the next of these."""
    left = list(answers)
    return lambda asked: says({"content": left.pop(0)})


def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise RuntimeError("no such city")
    return f"Sunny in {city}."


def called(name: str, arguments: str, id: str = "c1", **more: object) -> dict:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{"index": 0, **call, **more}]}


def sent(server: Mock) -> list[dict]:
    return [asked.json for asked in server.asked]


async def ask(server: Mock, *nodes: object, **settings: object) -> Model:
    """A program of one question and one answer."""
    lm = Model(server.base_url, model="m", **settings)
    async with user():
        lm = await lm.run("Hello!")
    async with assistant():
        lm = await lm.run(*nodes)
    await lm.client.close()
    return lm


async def test_r0_w1_text_around_gens_select_regex_stop_and_suffix_work_in_one_turn() -> None:
    answers = texts("friendly", "it says so. Really.", "It was in 1815, I think", "yes")
    async with mock(answers) as server:
        lm = await ask(
            server,
            "It is " + select(["friendly", "rude"], name="mood") + ", as ",
            gen("why", stop=".", suffix="!"),
            f" Since {regex('[0-9]{4}', name='year')}: {gen('end')}",
        )
    assert lm.captures == {"mood": "friendly", "why": "it says so", "year": "1815", "end": "yes"}
    turn = lm.items[-1]
    assert turn == Message("assistant", "It is friendly, as it says so! Since 1815: yes")
    assert [lm.guarantee(name) for name in ("mood", "year", "why")] == [
        "verified",
        "verified",
        None,
    ]
    last = [body["messages"][-1] for body in sent(server)]
    assert last[0] == {"role": "assistant", "content": "It is "}
    assert last[3]["content"] == "It is friendly, as it says so! Since 1815: "
    assert sent(server)[1]["stop"] in (".", ["."])


async def test_r0_w2_a_temperature_of_zero_is_sent_and_so_are_other_settings() -> None:
    async with mock(texts("Hi")) as server:
        await ask(server, gen(temperature=0, top_p=0.5, seed=7, max_tokens=3))
    (body,) = sent(server)
    assert (body["temperature"], body["top_p"], body["seed"]) == (0, 0.5, 7)
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 3
    assert None not in body.values()


async def test_r0_w3_a_call_beside_text_in_one_chunk_is_run() -> None:
    replies = [says({"content": "", **called("weather", '{"city": "Rome"}')}, finish="tool_calls")]
    replies.append(says({"content": "Sun."}))
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("answer", tools=[weather]))
    assert lm["answer"] == "Sun."
    assert sent(server)[1]["messages"][-1]["content"] == "Sunny in Rome."


async def test_r0_w4_text_before_calls_stands_before_them_and_the_turn_goes_on() -> None:
    rome = called("weather", '{"city": "Rome"}')
    replies = [says({"content": "Let me see."}, rome, finish="tool_calls")]
    replies += [says({"content": "Sun."}), says({"content": "Bye."})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("answer", tools=[weather]), " ", gen("end"))
    kinds = [type(item) for item in lm.items]
    assert kinds == [Message, Message, FunctionCall, FunctionCallOutput, Message]
    assert [item.text for item in lm.items if isinstance(item, Message)] == [
        *("Hello!", "Let me see.", "Sun. Bye.")
    ]


async def test_r0_w5_the_model_gets_a_calls_error_without_a_traceback() -> None:
    wrong = ['{"city": ', "{}", '{"city": "Atlantis"}']
    replies = [says(called("weather", text), finish="tool_calls") for text in wrong]
    replies += [says(called("wether", "{}"), finish="tool_calls"), says({"content": "Sorry."})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("answer", tools=[weather]))
    results = [item.output for item in lm.items if isinstance(item, FunctionCallOutput)]
    assert [len(results), lm["answer"]] == [4, "Sorry."]
    assert "no JSON" in results[0]
    assert "city" in results[1]
    assert "no such city" in results[2]
    assert "There is no tool 'wether'" in results[3]
    assert not any("Traceback" in text or ".py" in text for text in results)


async def test_r0_w6_length_filter_and_refusal_are_on_the_capture_and_refusals_in_the_history() -> (
    None
):
    replies = [says({"content": "Once"}, finish="length")]
    replies += [says({"content": "Up"}, finish="content_filter"), says({"refusal": "I will not."})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("long"), gen("filtered"), gen("refused"))
    found = [lm.capture(name) for name in ("long", "filtered", "refused")]
    assert [each.end for each in found] == ["length", "content_filter", "refused"]
    assert [each.value for each in found] == ["Once", "Up", ""]
    assert found[2].refusal == "I will not."
    assert "I will not." in str(lm)


async def test_r0_w7_the_model_is_asked_again_after_results_until_it_answers() -> None:
    cities = [called("weather", json.dumps({"city": city})) for city in ("Rome", "Bonn")]
    replies = [says(each, finish="tool_calls") for each in cities] + [says({"content": "Sun."})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("answer", tools=[weather], tool_choice="required"))
    assert lm["answer"] == "Sun."
    choices = [body.get("tool_choice") for body in sent(server)]
    assert choices == ["required", None, None]


async def test_r0_w8_speech_is_a_wav_file_of_24_khz_and_its_transcript_is_streamed() -> None:
    first = {"audio": {"id": "audio_1", "transcript": "Hel"}}
    sounds = [{"audio": {"data": base64.b64encode(data).decode()}} for data in (b"\1\0", b"\2\0")]
    rest = {"audio": {"transcript": "lo", "expires_at": 1}}
    async with mock(says(first, *sounds, rest)) as server:
        lm = Model(server.base_url, model="m")
        async with user():
            lm = await lm.run("Speak!")
        async with assistant():
            stream = lm.stream(gen_audio("speech", voice="ash"))
            heard = [str(delta) async for delta in stream if delta.kind == "transcript"]
        await lm.client.close()
    wav = stream.model["speech"]
    assert heard == ["Hel", "lo"]
    assert wav[:4] == b"RIFF"
    assert struct.unpack("<I", wav[24:28]) == (24_000,)
    assert wav[44:] == b"\1\0\2\0"
    assert sent(server)[0]["audio"]["voice"] == "ash"
    assert "Hello" in str(stream.model)


def test_r0_w9_streaming_works_in_role_blocks_without_async() -> None:
    lm = Model(Stage("one two"))
    with user():
        lm += "Count."
    with assistant():
        deltas = list(lm.stream("So: ", gen("count")))
    assert [str(delta) for delta in deltas] == ["So: ", "one", " two", ""]
    assert [delta.model.get("count") for delta in deltas] == [None, "one", "one two", "one two"]


def test_r0_w10_appending_copies_none_of_the_history() -> None:
    lm = Model(Stage("x"))
    kept = []
    for number in range(50):
        with user():
            lm += f"turn {number}"
        kept.append(lm)
    first = kept[10].state.turn
    turn = kept[-1].state.turn
    while turn is not first:
        turn = turn.before
    assert turn is first
    assert [len(each.items) for each in kept] == list(range(1, 51))


async def test_r0_w11_no_name_of_a_model_says_what_it_can_do() -> None:
    async with mock(texts("A dot.")) as server:
        lm = Model(server.base_url, model="anything-at-all")
        async with user():
            lm = await lm.run("What is this?", image(PIXEL))
        async with assistant():
            lm = await lm.run(gen("seen"))
        await lm.client.close()
    content = sent(server)[0]["messages"][0]["content"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert sent(server)[0]["logprobs"] is True


async def test_r0_w12_the_probability_of_a_capture_is_that_of_its_tokens() -> None:
    tokens = [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []} for text in "ab"]
    event = chunk({"content": "ab"})
    event["choices"][0]["logprobs"] = {"content": tokens}
    async with mock(stream(event, chunk({}, "stop"))) as server:
        lm = await ask(server, gen("x"))
    assert lm.log_prob("x") == -1.0
    assert Model(Stage("x")).set("y", 1).log_prob("y") is None


async def test_r0_w12_an_engine_that_refuses_logprobs_is_asked_without() -> None:
    refusal = plain(400, {"error": {"message": "no logprobs here", "param": "logprobs"}})
    replies = [refusal, says({"content": "Hi"}), says({"content": "Ho"})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("x"), gen("y"))
    assert (lm["x"], lm["y"], lm.log_prob("x")) == ("Hi", "Ho", None)
    assert ["logprobs" in body for body in sent(server)] == [True, False, False]
    assert not any(body.get("stream") for body in sent(server))  # it may take that no more


async def test_engine_that_refuses_a_prefill_is_asked_to_go_on_in_words() -> None:
    replies = [{"content": "42"}, {"content": "It is: 42, and: b"}, {"content": "c"}]

    def answering(asked: Asked) -> Reply:
        if asked.json["messages"][-1]["role"] == "assistant":
            problem = "This model does not support assistant message prefill. The conversation "
            return plain(400, {"error": {"message": f"{problem}must end with a user message."}})
        return says(replies.pop(0))

    async with mock(answering) as server:
        nodes = "It is: ", gen("x"), ", and: ", gen("y"), " ", select(["c", "d"], name="z")
        lm = await ask(server, *nodes)
    assert (lm["x"], lm["y"], lm["z"]) == ("42", "b", "c")
    asked = [[message["role"] for message in body["messages"]] for body in sent(server)]
    assert asked == [["user", "assistant"], *[["user", "assistant", "user"]] * 3]


@pytest.mark.parametrize("profile", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_server_that_does_not_continue_a_message_of_a_thinking_model(
    profile, streamed
) -> None:
    """It begins its message anew, as servers do that are never asked to continue one."""
    replies = ["It is: 42", "It is: 42, and: b", "c"]

    def answering(asked: Asked) -> Reply:
        if asked.json["messages"][-1]["role"] == "assistant":
            problem = "Assistant response prefill is incompatible with enable_thinking."
            return plain(400, {"error": {"message": problem, "code": 400}})
        assert not {"continue_final_message", "add_generation_prompt"} & asked.json.keys()
        texts = replies[0][:4], replies[0][4:]
        del replies[0]
        return says({"reasoning_content": "Hm."}, *({"content": each} for each in texts))

    async with mock(answering) as server:
        lm = Model(Remote(server.base_url, wire="chat", profile=profile), model="m")
        async with user():
            lm = await lm.run("Hello!")
        async with assistant():
            for nodes in (("It is: ", gen("x")), (", and: ", gen("y")), (" ", gen("z"))):
                if streamed:
                    stream = lm.stream(*nodes)
                    shown = [each.text async for each in stream if each.kind == "text"]
                    lm = stream.model
                    assert "".join(shown) == lm[nodes[1].options.name]
                else:
                    lm = await lm.run(*nodes)
        assert (lm["x"], lm["y"], lm["z"]) == ("42", "b", "c")
        assert server.asked[1].json["messages"][1]["content"] == "It is: ", "with its space"
        await lm.client.close()


async def test_requests_under_way_when_one_is_not_continued_are_asked_in_words_too() -> None:
    async def answering(asked: Asked) -> Reply:
        if asked.json["messages"][-1]["role"] == "assistant":
            await asyncio.sleep(0.05)  # all are on their way
            problem = "continue_final_message is set but the final message does not appear"
            return plain(400, {"error": {"message": problem, "code": 400}})
        assert "continue_final_message" not in asked.json, "the user's message would be continued"
        return says({"content": "42"})

    async with mock(answering) as server:
        lm = Model(Remote(server.base_url, wire="chat", profile="vllm"), model="m")
        async with user():
            lm = await lm.run("Hello!")
        async with assistant():
            found = await (lm + "It is: ").batch([gen("x") for _ in range(5)])
        assert [each["x"] for each in found] == ["42"] * 5
        await lm.client.close()


async def test_r0_w13_calls_without_an_index_are_not_merged() -> None:
    both = [called("weather", f'{{"city": "{city}"}}', city) for city in ("Rome", "Bonn")]
    for each in both:
        each["tool_calls"][0]["index"] = None
    replies = [says(*both, finish="tool_calls"), says({"content": "Sun."})]
    async with mock(lambda asked: replies.pop(0)) as server:
        lm = await ask(server, gen("answer", tools=[weather]))
    results = [item.output for item in lm.items if isinstance(item, FunctionCallOutput)]
    assert results == ["Sunny in Rome.", "Sunny in Bonn."]


async def test_r0_w14_reasoning_is_kept_and_streamed() -> None:
    async with mock(says({"reasoning_content": "Hm."}, {"content": "Yes."})) as server:
        lm = Model(server.base_url, model="m")
        async with user():
            lm = await lm.run("Well?")
        async with assistant():
            stream = lm.stream(gen("answer"))
            thoughts = [delta.text async for delta in stream if delta.kind == "reasoning"]
        await lm.client.close()
    assert thoughts == ["Hm."]
    assert [type(item).__name__ for item in stream.model.items] == [
        "Message",
        "Reasoning",
        "Message",
    ]
    assert stream.model["answer"] == "Yes."


async def test_r0_w15_several_answers_a_seed_concurrency_and_cancellation() -> None:
    arrived, open_ = [], asyncio.Event()

    async def handler(asked) -> Reply:
        arrived.append(asked)
        if len(arrived) == 20:
            open_.set()
        await open_.wait()  # all are asked at once, or none is answered
        return says({"content": "Hi"}) if len(arrived) == 20 else Reply([head()], hang=True)

    async with mock(handler) as server:
        lm = Model(server.base_url, model="m")
        async with user():
            lm = await lm.run("Hello!")
        async with assistant():
            models = await lm.batch([gen("x", seed=n) for n in range(20)])
            assert [each["x"] for each in models] == ["Hi"] * 20
            hanging = asyncio.ensure_future(lm.run(gen("y")))
            server.forget()
            await server.arrived.wait()
            hanging.cancel()
            await asyncio.wait((hanging,))
            assert hanging.cancelled()
            await arrived[-1].gone
        await lm.client.close()
    assert sorted(asked.json["seed"] for asked in arrived[:20]) == list(range(20))


def test_r0_w15_n_answers_are_a_list_of_which_the_first_goes_on() -> None:
    lm = Model(demo(pace=0))
    with user():
        lm += "Tell me."
    with assistant():
        lm += gen("takes", n=3)
    assert len(lm["takes"]) == 3
    assert lm.items[-1].text == lm["takes"][0]
    assert len(set(lm["takes"])) == 3


def test_r0_w16_nothing_is_downloaded_for_display() -> None:
    lm = Model(Stage("A cat."))
    with user():
        lm += "What is this? " + image("http://127.0.0.1:1/cat.png")
    assert lm.items[0].parts[1] == Image(url="http://127.0.0.1:1/cat.png")
    assert "[IMAGE]" in str(lm)


def test_r0_w17_parameters_with_a_default_are_optional_and_no_schema_is_strict() -> None:
    def search(words: str, most: int = 5) -> str:
        """Search."""
        return words * most

    stage = Stage(Response(id="1", created_at=0, model="m", status="completed", reasons=("stop",)))
    lm = Model(stage)
    with system():
        lm += "Search."
    with assistant():
        lm += gen(tools=[search])
    (tool,) = stage.asked[0].tools
    assert tool.parameters["required"] == ["words"]
    assert tool.strict is None
