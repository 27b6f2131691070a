"""S34: null padding goes, JSON text is read, contents stay as they are."""

import json
from typing import Any

import pytest

from areal_agent.data.messages import clean_messages, clean_tools, row_messages
from areal_agent.errors import DataError

PADDED: list[dict[str, Any]] = [
    {"role": "user", "content": " a\r\n ", "tool_calls": None, "name": None},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": {"x": 0, "other_tools_argument": None}},
            }
        ],
    },
]
CLEAN = [
    {"role": "user", "content": " a\r\n "},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 0}}}
        ],
    },
]


def test_null_padding_is_removed_and_nothing_else() -> None:
    before = json.dumps(PADDED)
    assert clean_messages(PADDED) == CLEAN
    assert clean_messages(before) == CLEAN
    assert json.dumps(PADDED) == before


def test_arguments_as_json_text_become_dicts_unless_they_are_broken() -> None:
    def cleaned(arguments: str) -> Any:
        call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "tool_calls": [call]}
        return clean_messages([message])[0]["tool_calls"][0]["function"]["arguments"]

    assert cleaned('{"x": null, "y": [1]}') == {"x": None, "y": [1]}
    for broken in ('{"x": ', "[1]", "null", '"x"', ""):
        assert cleaned(broken) == broken


def test_text_parts_are_joined_and_others_are_left_alone() -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    image = [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}]
    got = clean_messages([{"role": "user", "content": text}, {"role": "user", "content": image}])
    assert [m["content"] for m in got] == ["ab", image]


def test_empty_call_lists_vanish() -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": []}
    assert clean_messages([message]) == [{"role": "assistant", "content": "a"}]


def test_tools_of_different_shape_lose_each_others_columns() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"x": {"a": 1}, "y": None}}},
        {"type": "function", "function": {"name": "g", "parameters": {"x": None, "y": {"a": 0}}}},
    ]
    cleaned = clean_tools(tools)
    assert cleaned is not None
    assert [t["function"]["parameters"] for t in cleaned] == [{"x": {"a": 1}}, {"y": {"a": 0}}]
    assert clean_tools([json.dumps(tool) for tool in tools]) == cleaned
    assert clean_tools(json.dumps(tools)) == cleaned
    assert clean_tools(None) is None
    assert clean_tools([]) is None


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "expected messages as a list or JSON text, got 'hello'"),
        ({"role": "user"}, "expected messages as a list of dicts"),
        (["hello"], r"expected messages\[0\] to be a dict, got 'hello'"),
        ([{"role": "user"}, {"content": "x"}], r"expected messages\[1\] to have a role"),
        ([{"role": "assistant", "tool_calls": ["f"]}], r"messages\[0\]\.tool_calls"),
    ],
)
def test_malformed_messages_are_named(messages: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        clean_messages(messages)


def test_malformed_tools_are_named() -> None:
    with pytest.raises(DataError, match=r"tools\[0\] to be a dict, got 3"):
        clean_tools([3])


def test_a_row_without_messages_says_which_columns_it_has() -> None:
    assert row_messages({"messages": PADDED, "answer": 1}) == CLEAN
    with pytest.raises(DataError, match=r"column 'messages', got \['answer', 'question'\]"):
        row_messages({"question": "?", "answer": 1})
