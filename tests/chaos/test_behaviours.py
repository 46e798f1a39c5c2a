"""The promised behaviours that rows of the table show, each under its number.

A row is held against the engine and against the whole server, over both protocols, streamed and
plain; what it must become stands in the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.chaos import test_stack as through_the_server
from tests.chaos.cases import load
from tests.chaos.stage import perform, stage

ROWS = {case.name: case for case in load()}

Hold = Callable[..., Awaitable[None]]


@pytest.fixture
async def hold() -> AsyncIterator[Hold]:
    """Plays rows, by name, every way there is."""
    async with stage() as playing:
        engines = {wire: Remote(playing.base_url, wire=wire) for wire in ("chat", "responses")}

        async def every_way(*names: str) -> None:
            for case in map(ROWS.__getitem__, names):
                engine = engines[case.wire]
                app = App(engine, Settings())
                for stream in (True, False):
                    await perform(playing, case, engine, stream=stream)
                    for protocol in engines:
                        await through_the_server.perform(
                            playing, case, app, protocol, stream=stream
                        )

        async with asyncio.timeout(60):
            yield every_way
        for engine in engines.values():
            await engine.close()


# ---- what is said --------------------------------------------------------------------------


async def test_r1_6_content_of_any_shape_is_one_text(hold: Hold) -> None:
    await hold("a JSON body with null content", "a JSON body with content in parts")
    await hold("content in parts")


async def test_r1_12_a_chunk_is_read_in_full(hold: Hold) -> None:
    await hold("call, content and finish reason in one chunk", "delta null or missing")
    await hold("choices missing or of the wrong kind", "noise among the calls")


async def test_r1_w3_reasoning_and_refusals_are_content_of_their_own(hold: Hold) -> None:
    await hold("reasoning_content", "reasoning", "reasoning_details", "a refusal")
    await hold("reasoning under all its names at once", "a JSON body with a refusal")


async def test_r1_w7_a_json_body_answers_a_stream(hold: Hold) -> None:
    await hold("a JSON body", "a JSON body that calls itself a stream", "responses: a JSON body")


async def test_r1_w8_two_events_with_no_blank_line_between(hold: Hold) -> None:
    await hold("two events with no blank line between")


async def test_r1_11_the_reader_takes_any_framing(hold: Hold) -> None:
    await hold("CRLF", "bare CR", "a byte order mark", "comments, ids, names and retry times")
    await hold("data over several lines", "the last event has no blank line", "one byte at a time")


async def test_v1_a_chunk_with_no_choices_disturbs_nothing(hold: Hold) -> None:
    await hold("choices null", "choices empty, first and last")


async def test_v2_a_finish_reason_is_not_overwritten(hold: Hold) -> None:
    await hold("null after the finish reason")


async def test_v3_text_beside_the_finish_reason_is_delivered(hold: Hold) -> None:
    await hold("text beside the finish reason")


async def test_v11_refusal_filter_and_calls_keep_their_meaning(hold: Hold) -> None:
    await hold("a refusal", "the content filter, with a hyphen", "calls with a hyphen")
    await hold("responses: the content filter", "responses: a refusal")


async def test_r2_28_finish_reasons_go_by_one_table(hold: Hold) -> None:
    await hold("an unknown finish reason", "an empty finish reason in every chunk", "the limit")


async def test_p5_think_tags_are_reasoning_however_they_are_cut(hold: Hold) -> None:
    await hold("think tags, cut anywhere", "think tags in one piece")
    await hold("think tags that are only talked about")


# ---- tool calls ----------------------------------------------------------------------------


async def test_r1_7_arguments_of_any_kind(hold: Hold) -> None:
    await hold("arguments empty, null, missing and blank", "arguments as an object")
    await hold("a JSON body with calls, an object for arguments among them")


async def test_r1_8_what_is_no_call_never_becomes_one(hold: Hold) -> None:
    await hold("a JSON body with calls, an object for arguments among them")
    await hold("a JSON body with a legacy function_call", "noise among the calls")


async def test_r1_w4_legacy_fragments_assemble(hold: Hold) -> None:
    await hold("a legacy function_call in pieces")


async def test_r1_w5_calls_without_an_index_stay_several(hold: Hold) -> None:
    await hold("calls without an index", "calls with a null index")
    await hold("calls with neither ids nor indices")


async def test_p1_a_fragment_without_index_finds_its_call(hold: Hold) -> None:
    await hold("calls without an index", "calls with a null index", "indices with gaps")


async def test_p2_one_index_for_all_calls(hold: Hold) -> None:
    await hold("all calls on index 0", "all calls on index 0, in pieces")


async def test_p3_an_orphan_belongs_to_the_open_call(hold: Hold) -> None:
    await hold("an orphan fragment on an index never seen")


async def test_p4_interleaved_fragments_reach_their_own_call(hold: Hold) -> None:
    await hold("interleaved calls", "interleaved calls told apart by id alone")
    await hold("responses: two calls, interleaved")


async def test_p7_all_parallel_calls_are_kept(hold: Hold) -> None:
    await hold("two calls, as the book says", "all calls on index 0", "calls without ids")


async def test_v4_a_call_is_announced_before_its_arguments(hold: Hold) -> None:
    await hold("arguments before the name", "an id that comes late")
    await hold("id, name and type in every fragment")


async def test_v10_text_beside_a_call_is_kept_in_its_order(hold: Hold) -> None:
    await hold("a call in the same chunk as content", "content after a call")
    await hold("a call in the same chunk as empty content")


async def test_v13_arguments_that_do_not_parse_stand_beside_good_ones(hold: Hold) -> None:
    await hold("arguments that are not JSON beside good ones")


async def test_v19_ids_are_the_servers_where_they_are_distinct(hold: Hold) -> None:
    await hold("two calls with the same id", "calls without ids")


async def test_r2_29_null_and_empty_lists_of_calls_are_none(hold: Hold) -> None:
    await hold("noise among the calls", "arguments that are not JSON beside good ones")


async def test_r2_32_text_first_and_then_the_calls(hold: Hold) -> None:
    await hold("a call in the same chunk as content")


async def test_r2_33_a_call_in_one_delta_is_a_call_in_pieces(hold: Hold) -> None:
    await hold("calls with a null index", "two calls, as the book says")
    await hold("a call cut short by the limit")


async def test_r2_34_arguments_that_precede_their_name_wait_for_it(hold: Hold) -> None:
    await hold("arguments before the name", "arguments empty, null, missing and blank")


# ---- usage ---------------------------------------------------------------------------------


async def test_r1_9_usage_under_all_its_names(hold: Hold) -> None:
    await hold("usage under other names, in strings and floats")


async def test_r1_w2_cached_tokens_are_read(hold: Hold) -> None:
    await hold("a JSON body", "responses: as the book says")


async def test_r1_w9_usage_in_every_chunk_is_not_added_up(hold: Hold) -> None:
    await hold("usage in every chunk")


async def test_p29_the_last_usage_that_is_not_null_counts(hold: Hold) -> None:
    await hold("usage null, then a number", "usage in every chunk", "usage after [DONE]")
    await hold("choices empty, first and last")


async def test_p30_no_usage_is_no_zero_and_a_zero_is_one(hold: Hold) -> None:
    await hold("usage of zero", "usage null to the end", "no [DONE]")


# ---- failures ------------------------------------------------------------------------------


async def test_r1_w6_an_error_in_a_stream_is_a_failure(hold: Hold) -> None:
    await hold("an error as the first event", "an error in mid-stream")
    await hold("an error as text in mid-stream", "an error under its own event name")
    await hold("responses: an error, then failed", "responses: Chat's error object in mid-stream")


async def test_r1_w11_a_broken_stream_is_no_finished_one(hold: Hold) -> None:
    await hold("cut between events, cleanly", "cut between events, by a reset", "cut in a call")
    await hold("responses: cut after every item was done", "a finish reason, then a reset")


async def test_r2_31_a_choice_without_a_message_is_a_fault(hold: Hold) -> None:
    await hold("a JSON body whose choice has no message", "a JSON body with null content")


async def test_p24_a_server_that_dies_after_200_is_a_failure(hold: Hold) -> None:
    await hold("cut in an event, cleanly", "cut after the role", "cut in reasoning")
    await hold("an empty stream", "an empty body", "cut after the headers")
    await hold("responses: cut between events", "responses: cut in an event, by a reset")
