"""JSON with a field gone or nonsense in its place, at any depth: what a fuzzer makes of it."""

from typing import Any

from hypothesis import strategies as st

from tests import strategies as values

nonsense = values.json | st.none() | st.sampled_from(["\ud83d", "\x00", 10**400, -1, 1e300])


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """The value, now and then with one thing wrong with it."""
    if draw(st.booleans()):
        return draw(nonsense)
    if isinstance(value, dict) and value:
        name = draw(st.sampled_from(sorted(value)))
        rest = {field: each for field, each in value.items() if field != name}
        return rest if draw(st.booleans()) else {**value, name: draw(damaged(value[name]))}
    if isinstance(value, list) and value:
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(damaged(value[at])), *value[at + 1 :]]
    return value
