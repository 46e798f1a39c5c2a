"""Keys are taken out of what servers quote, whatever else is in it."""

import pytest

from dragoman.core.error import Fault
from dragoman.core.interfaces import Secret
from dragoman.engines.upstream import without


def test_half_a_character_in_a_refusal_does_no_harm() -> None:
    fault = Fault("upstream_refused", "bad \ud800 thing", "client", status=400)
    assert without(fault, Secret("sk-123456789")) is fault
    quoted = Fault("upstream_refused", "\ud800 sk-123456789", "client", status=400)
    assert without(quoted, Secret("sk-123456789")).message == "\ufffd ***"


@pytest.mark.parametrize("key", ["plain-key-1", 'with"quote', "back\\slash"])
def test_a_key_is_found_in_every_field_however_json_spells_it(key: str) -> None:
    fault = Fault("upstream_refused", f"No key {key}.", extra={"error": {"given": [key]}})
    shown = without(fault, Secret(key))
    assert shown.message == "No key ***."
    assert shown.extra == {"error": {"given": ["***"]}}
