"""Random JSON schemas of the kind that grammars enforce, every length in them bounded.

Made for tests of constrained answers: a model with random weights must come to an end in them.
"""

import random
from typing import Any

_PATTERNS = [
    "^[a-z]{1,6}$",
    "^(yes|no)$",
    "^[A-Z][0-9]{2}-[0-9]{2}$",
    "^\\d{1,3}(\\.\\d)?$",
    "^é?[^a-f\\n]{1,4}$",
]
_ENUMS: list[list[Any]] = [["a", "b"], [1, "one", None], ["C", "°F"], [True, 2.5, {"k": [1]}]]
_KEYS = ["city", "n", "x_y", "größe", "a b", 'q"t', "list", "inner"]


def schema(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema for an object, at most `depth` levels deep, with definitions it may refer to."""
    definitions = {
        "leaf": _scalar(chance),
        "node": {
            "type": "object",
            "properties": {
                "v": _scalar(chance),
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tail"}]},
            },
            "required": ["v"],
            "additionalProperties": False,
        },
        "tail": _object(chance, 0),
    }
    return {**_object(chance, depth), "$defs": definitions}


def _any(chance: random.Random, depth: int) -> dict[str, Any]:
    made = chance.random()
    if depth <= 0 or made < 0.4:
        return _scalar(chance)
    if made < 0.6:
        return _object(chance, depth - 1)
    if made < 0.75:
        low = chance.randrange(3)
        array = {"type": "array", "items": _any(chance, depth - 1), "minItems": low}
        return {**array, "maxItems": low + chance.randrange(3)}
    if made < 0.9:
        return {"anyOf": [_any(chance, depth - 1) for _ in range(chance.randint(1, 3))]}
    return {"$ref": f"#/$defs/{chance.choice(['leaf', 'node'])}"}


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    keys = chance.sample(_KEYS, chance.randint(1, 4))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {key: _any(chance, depth) for key in keys},
        "required": [key for key in keys if chance.random() < 0.7],
    }
    if chance.random() < 0.7:
        made["additionalProperties"] = False
    return made


def _scalar(chance: random.Random) -> dict[str, Any]:
    match chance.randrange(8):
        case 0:
            low = chance.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + chance.randrange(6)}
        case 1:
            return {"type": "string", "pattern": chance.choice(_PATTERNS)}
        case 2:
            return {"enum": chance.choice(_ENUMS)}
        case 3:
            low = chance.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 300)}
        case 4:
            return {"type": "integer", "exclusiveMinimum": -9, "maximum": 99, "multipleOf": 3}
        case 5:
            return {"type": ["boolean", "null"]}
        case 6:
            return {"type": "string", "format": chance.choice(["date", "uuid", "ipv4", "time"])}
        case _:
            return {"const": chance.choice(["only", 7, None, "zwölf"])}
