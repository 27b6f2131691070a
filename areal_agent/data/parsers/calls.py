"""What a reply is read as: reasoning, text and calls; and what a parser of calls must tell."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from areal_agent.data.messages import Tools


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply's text beside the calls, and the calls in order."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    is_malformed: bool = False
    """The text looks like a call, but is none that can be run: it is all content."""
    reasoning: str = ""
    """What the model thought before; no part of `content`."""


@dataclass(frozen=True, slots=True)
class ToolParser:
    """Reads calls from the text of a reply, all or nothing.

    One malformed call makes the whole reply plain text, so a broken call never runs with guessed
    arguments. Text before the first marker is content in either case, up to the white space at its
    end: that much may be streamed.
    """

    parse: Callable[[str, Tools], ParsedReply]
    """Reads a whole text; never raises."""
    markers: tuple[str, ...] = ()
    """Where a call may begin, anywhere in a reply."""
    starts: tuple[str, ...] = ()
    """With what a reply may begin that is nothing but calls."""
    tags: tuple[str, ...] = ()
    """Special tokens that it looks for; others are left out of the text."""


def make_call(name: object, arguments: object) -> ToolCall | None:
    """Return a call that can be run and told of; None if it cannot.

    The name must be text that is not empty, and the arguments an object. What no text in UTF-8 can
    hold, a half of a surrogate pair, can be told to nobody.
    """
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    call = ToolCall(name, cast("dict[str, Any]", arguments))
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return call
