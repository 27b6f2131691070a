"""Values as JSON: exactly or not at all, for what is read back; somehow in any case, for people."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

_MAX_DEPTH = 32
_MAX_SHOWN = 200
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class Json:
    """A value that is JSON already."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


def exact_json(value: object) -> bytes | None:
    """Return JSON that reads back as the very same value, or None when there is none."""
    if not _is_plain(value, 0):
        return None
    try:
        return orjson.dumps(value)
    except TypeError:  # such as a whole number of more than 64 bits, or half a surrogate pair
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def any_json(value: Mapping[str, Any]) -> bytes:
    """Return JSON of anything: what JSON does not know becomes null or text. Never fails."""
    try:
        return orjson.dumps(value, default=_known, option=_OPTIONS)
    except Exception:  # noqa: BLE001 - users' values may do anything when they are looked at
        tame = _tamed(value, 0)
        return json.dumps(tame, separators=(",", ":"), allow_nan=False).encode("ascii")


def shown(value: object) -> str:
    """Say what a value is, briefly, whatever it is."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - see above
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def error_facts(error: BaseException) -> dict[str, Any]:
    """What is needed to raise an equal error again, where that can be done."""
    args = list(error.args)
    try:
        message = str(error)
    except Exception as inner:  # noqa: BLE001 - str() of a user's exception may do anything
        message = f"<its text could not be had: {type(inner).__name__}>"
    return {
        "type": type(error).__qualname__,
        "module": type(error).__module__,
        "message": message,
        "args": args if _is_plain(args, 0) else None,
    }


def _is_plain(value: object, depth: int) -> bool:
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is int:
        return True
    if kind is float:
        return math.isfinite(cast("float", value))
    if depth >= _MAX_DEPTH:
        return False
    if kind is list:
        return all(_is_plain(one, depth + 1) for one in cast("list[object]", value))
    if kind is dict:
        items = cast("dict[object, object]", value).items()
        return all(type(key) is str and _is_plain(one, depth + 1) for key, one in items)
    return False


def _known(value: object) -> object:
    """What orjson asks for when it does not know a type itself."""
    if isinstance(value, Json):
        return orjson.Fragment(value.text)
    to_list = getattr(value, "tolist", None)  # torch's; numpy's where it is not contiguous
    if callable(to_list):
        return to_list()
    if isinstance(value, set | frozenset):
        return list(cast("set[object]", value))
    return shown(value)


def _tamed(value: object, depth: int) -> Any:
    """A value of plain types that resembles this one; for the rare one that orjson refuses."""
    if isinstance(value, Json):
        return json.loads(value.text)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            return {
                key if isinstance(key, str) else shown(key): _tamed(one, depth + 1)
                for key, one in items
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [_tamed(one, depth + 1) for one in cast("Sequence[object]", value)]
    return shown(value)
