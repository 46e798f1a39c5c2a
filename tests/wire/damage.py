"""JSON values with one place replaced by nonsense or removed, for fuzzing decoders."""

import copy
from typing import Any

from hypothesis import strategies as st

from tests import strategies as values

nonsense = st.one_of(
    values.json,
    st.none(),
    st.dictionaries(st.sampled_from(["type", "text", "id", "name", "index"]), values.json),
    st.sampled_from(["", "text", "function", "stop", "\ud83d", "\x00", 10**400, -1, 1e300]),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with every key in it."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    return [(value, key) for key in keys] + [p for key in keys for p in places(value[key])]


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """The value with something else in one place, or nothing."""
    value = copy.deepcopy(value)
    container, key = draw(st.sampled_from(places(value)))
    if draw(st.booleans()):
        container[key] = draw(nonsense)
    else:
        del container[key]
    return value
