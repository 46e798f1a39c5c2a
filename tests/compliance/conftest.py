"""The servers under test: Dragoman as it is started, before its demo and before llama.cpp."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.oracle import Document
from tests.product import Product, configured, dragoman
from tests.upstream.llamacpp import Llamacpp, llamacpp

__all__ = ["llamacpp"]


@dataclass(frozen=True)
class Target:
    """A running server: the model it serves, and the document it speaks by."""

    product: Product
    model: str
    document: Document

    @property
    def is_demo(self) -> bool:
        """Whether there is no model, so that what is said is no answer."""
        return self.model == "script"


@dataclass(frozen=True)
class Setup:
    """How a target is started: before llama.cpp over this wire, or else before nothing."""

    wire: str | None = None
    document: Document = "openai"


TARGETS = {
    "demo": Setup(),
    "demo-open": Setup(document="openresponses"),
    "llamacpp-auto": Setup("auto"),
    "llamacpp-responses": Setup("responses"),
}


@pytest.fixture(scope="session", params=TARGETS)
def target(request, tmp_path_factory) -> Iterator[Target]:
    """Each of the servers in turn."""
    setup = TARGETS[request.param]
    words, model = ["script"], "script"
    if setup.wire is not None:
        upstream: Llamacpp = request.getfixturevalue("llamacpp")
        words, model = ["--upstream", upstream.base_url, "--wire", setup.wire], upstream.model
    if setup.document == "openresponses":
        folder = tmp_path_factory.mktemp(request.param)
        words += configured(folder, '[server]\ndialect = "open-responses"\n')
    with dragoman(*words) as product:
        yield Target(product, model, setup.document)
