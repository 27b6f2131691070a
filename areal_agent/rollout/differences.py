"""Where two things differ, for people: texts, settings of sampling, rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_BEFORE, _AFTER = 24, 48
"""Tokens shown before and after the first that differs."""

Decode = Callable[[Sequence[int]], str]


def ids_differ(recorded: Sequence[int], now: Sequence[int], decode: Decode) -> tuple[str, str]:
    """The texts around the first token that differs."""
    pairs = enumerate(zip(recorded, now, strict=False))
    shorter = min(len(recorded), len(now))
    place = next((i for i, (one, other) in pairs if one != other), shorter)
    start = max(0, place - _BEFORE)
    return _around(recorded, start, place, decode), _around(now, start, place, decode)


def _around(ids: Sequence[int], start: int, place: int, decode: Decode) -> str:
    end = place + _AFTER
    head = "" if start == 0 else "…"
    tail = "" if end >= len(ids) else "…"
    return f"{head}{decode(list(ids[start:end]))!r}{tail} ({len(ids)} tokens)"


def settings_differ(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """The settings that differ, with their values."""
    names = [name for name in {**recorded, **now} if recorded.get(name) != now.get(name)]
    return _told(recorded, names), _told(now, names)


def _told(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    return "sampling with " + ", ".join(f"{name} {settings.get(name)!r}" for name in names)


def rows_differ(
    recorded: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], decode: Decode
) -> tuple[str, str] | None:
    """Where rows differ; None when they do not."""
    if len(recorded) != len(now):
        return f"{len(recorded)} rows", f"{len(now)} rows"
    for n, (one, other) in enumerate(zip(recorded, now, strict=True)):
        if one["input_ids"] != other["input_ids"]:
            return ids_differ(one["input_ids"], other["input_ids"], decode)
        for name in one:
            if one[name] != other.get(name):
                told = (_first(one[name]), _first(other.get(name)))
                return f"row {n}: {name} {told[0]}", f"row {n}: {name} {told[1]}"
    return None


def _first(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
