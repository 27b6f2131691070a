"""Parsers by name, and which of them a model's chat template speaks of."""

from collections.abc import Callable

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolParser
from areal_agent.data.parsers.json_calls import (
    HERMES_MARKERS,
    LLAMA3_MARKERS,
    LLAMA3_STARTS,
    TAGS,
    parse_hermes,
    parse_llama3,
)
from areal_agent.data.parsers.python_calls import (
    BRACKET_MARKERS,
    PYTHONIC_STARTS,
    PYTHONIC_TAGS,
    parse_bracket,
    parse_pythonic,
)
from areal_agent.data.parsers.xml_calls import parse_qwen3_coder
from areal_agent.errors import DataError

SCHEMA = "response_template"
"""Name of the parser that is the tokenizer's own."""


def _parse_nothing(text: str, tools: Tools) -> ParsedReply:
    return ParsedReply(text)


TOOL_PARSERS: dict[str, ToolParser] = {
    "bracket": ToolParser(parse_bracket, markers=BRACKET_MARKERS),
    "hermes": ToolParser(parse_hermes, markers=HERMES_MARKERS, tags=TAGS),
    "llama3_json": ToolParser(
        parse_llama3, markers=LLAMA3_MARKERS, starts=LLAMA3_STARTS, tags=LLAMA3_MARKERS
    ),
    "none": ToolParser(_parse_nothing),
    "pythonic": ToolParser(parse_pythonic, starts=PYTHONIC_STARTS, tags=PYTHONIC_TAGS),
    "qwen3_coder": ToolParser(parse_qwen3_coder, markers=HERMES_MARKERS, tags=TAGS),
}
"""Parsers by the name that settings and model folders use."""

_SIGNS: dict[str, Callable[[str], bool]] = {
    "hermes": lambda t: (
        "<tool_call>" in t and not any(s in t for s in ("<function=", "<arg_key>", "<tool_sep>"))
    ),
    "llama3_json": lambda t: (
        "<|python_tag|>" in t or ('"parameters"' in t and "<|start_header_id|>" in t)
    ),
    "pythonic": lambda t: "[func_name1(" in t or "<|python_start|>[" in t,
    "qwen3_coder": lambda t: "<function=" in t and "<parameter=" in t,
}


def get_tool_parser(name: str) -> ToolParser:
    """Return the parser called `name`.

    Raises:
        DataError: there is none of that name.
    """
    if name not in TOOL_PARSERS:
        known = sorted([*TOOL_PARSERS, SCHEMA])
        raise DataError(
            f"expected a tool parser, one of {known}, got {name!r}: correct tool_parser in the "
            'settings or "tool_parser" in the model\'s tokenizer_config.json'
        )
    return TOOL_PARSERS[name]


def detect_tool_parsers(template: str) -> list[str]:
    """Return the names of the parsers whose calls a chat template writes."""
    return [name for name, speaks in _SIGNS.items() if speaks(template)]
