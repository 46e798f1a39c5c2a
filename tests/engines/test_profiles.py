"""What is known of servers: values only, found by address or by answer and by nothing else."""

from __future__ import annotations

import pytest

from dragoman.core.lower import UNLIMITED, UpstreamLimits
from dragoman.engines.profiles import BY_NAME, GENERIC, PROFILES, by_answers, by_url


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://mine.openai.azure.com/openai/v1", "azure"),
        ("https://mine.services.ai.azure.com/openai/v1", "azure"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.deepseek.com/beta", "deepseek"),
        ("https://API.OpenAI.com/v1", "openai"),
        ("http://127.0.0.1:11434/v1", None),
        ("http://localhost:8000/v1", None),
        ("https://notapi.openai.com.example/v1", None),
        ("https://fakeopenrouter.ai/api/v1", None),
        ("https://example.com/api.openai.com/v1", None),
    ],
)
def test_profile_of_an_address(base_url, name) -> None:
    profile = by_url(base_url)
    assert (profile and profile.name) == name
    assert profile is None or profile.wires, "a known address needs no question"


@pytest.mark.parametrize(
    ("server", "listing", "name"),
    [
        ("llama.cpp", [], "llama.cpp"),
        ("Llama.cpp/b1234", [], "llama.cpp"),
        ("dragoman/0.1.0", [], "dragoman"),
        (None, [{"id": "m", "owned_by": "library"}], "ollama"),
        (None, [{"id": "m", "owned_by": "organization_owner"}], "lmstudio"),
        ("uvicorn", [{"id": "m", "owned_by": "vllm"}], "vllm"),
        ("uvicorn", [{"id": "m", "owned_by": "sglang"}], "sglang"),
        (None, [{"id": "m", "owned_by": "llamacpp"}], "llama.cpp"),
        (None, [{"id": "m", "owned_by": "deepseek"}], "deepseek"),
        (None, [{"id": "a", "owned_by": "me"}, {"id": "b", "owned_by": "vllm"}], "vllm"),
        (None, [], None),
        ("", [{}], None),
        ("nginx", [{"id": "m", "owned_by": "me"}], None),
        ("uvicorn", [{"id": "vllm", "owned_by": None}], None),
        (None, [{"id": "m", "owned_by": ["unhashable"]}], None),
    ],
)
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
        assert set(profile.wires) <= {"chat", "responses"}


def test_every_limit_is_some_servers() -> None:
    others = {"images", "audio", "files", "hosted_tools"}  # of a model, or of a bare prompt
    limited = {
        name
        for profile in BY_NAME.values()
        for name in UpstreamLimits.__struct_fields__
        if getattr(profile.limits, name) != getattr(UNLIMITED, name)
    }
    assert limited == set(UpstreamLimits.__struct_fields__) - others
