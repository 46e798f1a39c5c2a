"""What is known of servers: values only, found by address or by answer and by nothing else."""

from __future__ import annotations

import pytest

from dragoman.core.lower import UNLIMITED, UpstreamLimits
from dragoman.engines.profiles import BY_NAME, GENERIC, PROFILES, by_answers, by_url
from dragoman.wire.registry import WIRES
from tests.cases import cases

CASES = cases(__file__, "profiles")


@pytest.mark.parametrize(("base_url", "name"), CASES["addresses"])
def test_profile_of_an_address(base_url, name) -> None:
    profile = by_url(base_url)
    assert (profile and profile.name) == name
    assert profile is None or profile.wires, "a known address needs no question"


@pytest.mark.parametrize(("server", "listing", "name"), CASES["answers"])
def test_profile_of_an_answer(server, listing, name) -> None:
    profile = by_answers(server, listing)
    assert (profile and profile.name) == name


def test_every_server_that_was_promised_has_its_entry() -> None:
    promised = {"ollama", "lmstudio", "vllm", "sglang", "llama.cpp", "openai", "azure"}
    assert promised | {"openrouter", "deepseek", "generic"} <= BY_NAME.keys()
    assert len(BY_NAME) == len(PROFILES) + 1
    assert BY_NAME["generic"] is GENERIC


def test_every_profile_but_the_generic_one_can_be_recognised() -> None:
    for profile in PROFILES:
        assert profile.hosts or profile.server or profile.owned_by, profile.name
        assert WIRES.keys() >= set(profile.wires)


def test_every_limit_is_some_servers() -> None:
    others = {"images", "files", "hosted_tools"}  # of a model, or of a bare prompt
    limited = {
        name
        for profile in BY_NAME.values()
        for name in UpstreamLimits.__struct_fields__
        if getattr(profile.limits, name) != getattr(UNLIMITED, name)
    }
    assert limited == set(UpstreamLimits.__struct_fields__) - others
