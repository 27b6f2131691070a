"""Whatever a model writes: no parser fails, what was written is read back, and text that came in
pieces is the text that came whole (S03, S04, S05)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agent.data.messages import Tools
from areal_agent.data.parsers.calls import ParsedReply, ToolCall
from areal_agent.data.parsers.names import TOOL_PARSERS
from areal_agent.data.parsers.reasoning import REASONING_PARSERS
from areal_agent.data.parsers.splitter import ReplySplitter

THINK = REASONING_PARSERS["think"]
SHARDS = [
    *("<tool_call>", "</tool_call>", "<tool", "_call>", "<function=f>", "</function>"),
    *("<parameter=x>", "</parameter>", "<think>", "</think>", "<th", "ink>", "</thi"),
    *('{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {}}', '{"name"'),
    *("<|python_tag|>", "<|python", "<|python_start|>", "<|python_end|>", "[f(x=1)]", "[f(", ")]"),
    *("[", "]", "{", "}", ";", "1+1", " ", "\n", "a", "é", "日", "\x00", '"', "'", "\\", "=", "("),
]
GARBAGE = st.lists(st.sampled_from(SHARDS) | st.text(max_size=3), max_size=14).map("".join)
TOOLS: Tools = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}
]


def read(name: str, text: str, opened: bool, may_call: bool) -> ParsedReply:
    thought, content = THINK.split(text, opened=opened) if THINK else ("", text)
    parsed = TOOL_PARSERS[name].parse(content, TOOLS) if may_call else ParsedReply(content)
    return ParsedReply(parsed.content, parsed.calls, parsed.is_malformed, thought)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=GARBAGE)
def test_garbage_is_text(name: str, text: str) -> None:
    parsed = TOOL_PARSERS[name].parse(text, TOOLS)
    if parsed.calls:
        assert not parsed.is_malformed
        assert parsed.content == parsed.content.rstrip()
        for call in parsed.calls:
            assert call.name
            assert isinstance(json.loads(json.dumps(call.arguments)), dict)
    else:
        assert parsed.content == text


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=GARBAGE, data=st.data(), opened=st.booleans(), may_call=st.booleans())
def test_pieces_are_the_whole(
    name: str, text: str, data: st.DataObject, opened: bool, may_call: bool
) -> None:
    splitter = ReplySplitter(THINK, TOOL_PARSERS[name] if may_call else None, opened=opened)
    thought, content = "", ""
    rest = text
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        piece = splitter.push(rest[:n])
        thought, content, rest = thought + piece.reasoning, content + piece.content, rest[n:]
    whole = read(name, text, opened, may_call)
    assert whole.reasoning.startswith(thought)
    assert whole.content.startswith(content)
    last = splitter.rest(whole.reasoning, whole.content)
    assert (thought + last.reasoning, content + last.content) == (whole.reasoning, whole.content)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>\r"), max_size=12)
SCALAR = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXT
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    SCALAR | NUMBER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEY = st.from_regex(r"[a-z][a-z_0-9]{0,6}x", fullmatch=True)
CALLS = st.lists(
    st.builds(ToolCall, KEY, st.dictionaries(KEY, VALUE, max_size=3)), min_size=1, max_size=3
)


def as_hermes(calls: list[ToolCall]) -> str:
    bodies = [json.dumps({"name": c.name, "arguments": c.arguments}) for c in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def as_llama3(calls: list[ToolCall]) -> str:
    return "; ".join(json.dumps({"name": c.name, "parameters": c.arguments}) for c in calls)


def as_python(calls: list[ToolCall]) -> str:
    inner = [", ".join(f"{k}={v!r}" for k, v in c.arguments.items()) for c in calls]
    return f"[{', '.join(f'{c.name}({i})' for c, i in zip(calls, inner, strict=True))}]"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(calls=CALLS)
def test_json_and_python_are_read_back(calls: list[ToolCall]) -> None:
    """S05: all of them, in order, with the very values."""
    for name, text in (
        ("hermes", as_hermes(calls)),
        ("llama3_json", as_llama3(calls)),
        ("llama3_json", "<|python_tag|>" + as_llama3(calls)),
        ("pythonic", as_python(calls)),
    ):
        parsed = TOOL_PARSERS[name].parse(text, None)
        assert (parsed.content, repr(parsed.calls)) == ("", repr(tuple(calls)))


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "integer": st.integers(-(2**70), 2**70),
    "number": NUMBER,
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(VALUE, max_size=3),
    "object": st.dictionaries(TEXT, VALUE, max_size=3),
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), kinds=st.dictionaries(KEY, st.sampled_from(sorted(KINDS)), max_size=4))
def test_xml_is_read_back_with_the_schema(data: st.DataObject, kinds: dict[str, str]) -> None:
    arguments = {key: data.draw(KINDS[kind]) for key, kind in kinds.items()}
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    tools: Tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
    text = f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"
    parsed = TOOL_PARSERS["qwen3_coder"].parse(text, tools)
    assert repr(parsed.calls) == repr((ToolCall("f", arguments),))
