"""Calls in each model's own writing are read all or nothing (S04), in order (S05)."""

import json
from typing import Any

import pytest
from data_support import make_tokenizer

from areal_agent.data.chat import ChatFormat
from areal_agent.data.parsers.calls import ParsedReply, ToolCall
from areal_agent.data.parsers.names import detect_tool_parsers, get_tool_parser
from areal_agent.errors import DataError


def read(name: str, text: str, tools: Any = None) -> ParsedReply:
    return get_tool_parser(name).parse(text, tools)


F = ToolCall("f", {"x": 1})
G = ToolCall("g", {"a": [1, {"b": None}], "c": "d"})


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', ""),
        ('\n {"name": "f", "arguments": {"x": 1}} ;\n', ""),
        ('<|python_tag|>{"name": "f", "parameters": {"x": 1}}', ""),
        ('Let me see.\n<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "Let me see."),
    ],
)
def test_llama3_reads_a_call(text: str, content: str) -> None:
    assert read("llama3_json", text) == ParsedReply(content, (F,))


def test_llama3_reads_several_in_order() -> None:
    text = '{"name": "f", "parameters": {"x": 1}}; {"name": "f", "parameters": {"x": "a;b"}};'
    assert read("llama3_json", text).calls == (F, ToolCall("f", {"x": "a;b"}))


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {',
        '{"name": "f", "parameters": null}',
        '{"name": "f"}',
        '{"name": 3, "parameters": {}}',
        '{"name": "f", "parameters": {}} and more',
        '{"name": "f", "parameters": {}};[]',
        '{"name": "f", "parameters": {}};{"x": 1}',
        '{"name": "f", "parameters": {}};;',
        '{"name": "\\ud800", "parameters": {}}',
        '{"name": "f", "parameters": {"x": "\\ud800"}}',
        "<|python_tag|>print(1)",
        "<|python_tag|>",
    ],
)
def test_llama3_takes_malformed_calls_as_text(text: str) -> None:
    assert read("llama3_json", text) == ParsedReply(text, is_malformed=True)


@pytest.mark.parametrize("text", ["", "no", '{"answer": 4}', "{broken", 'see {"name": "f"}'])
def test_llama3_leaves_other_text_alone(text: str) -> None:
    assert read("llama3_json", text) == ParsedReply(text)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(x=1)]", (F,)),
        (" [ f ( x = 1 ) ,\n g(a=[1, {'b': None}], c='d') ]\n", (F, G)),
        ('<|python_start|>[g(a=[1,{"b":null}], c="d"), f(x=1)]<|python_end|>', (G, F)),
        (
            "[a.b.c(x=-1.5, y=true, z=(1,2))]",
            (ToolCall("a.b.c", {"x": -1.5, "y": True, "z": [1, 2]}),),
        ),
        (r"[f(x='\d \'é日')]", (ToolCall("f", {"x": r"\d 'é日"}),)),
    ],
)
def test_pythonic_reads_calls(text: str, calls: tuple[ToolCall, ...]) -> None:
    assert read("pythonic", text) == ParsedReply("", calls)


@pytest.mark.parametrize(
    "text",
    [
        "[f(x=1)",
        "[f(1)]",
        "[f(**{'x': 1})]",
        "[f(x=1, x=2)]",
        "[f(x=g())]",
        "[f(x=y)]",
        "[f(x=1+1)]",
        "[f(x=b'1')]",
        "[f(x=1j)]",
        "[f(x={1: 2})]",
        "[f(x={**{}})]",
        "[f(x=...)]",
        "[f(x='\\ud800')]",
        "[f(x=__import__('os').abort())]",
        "[f(x=1), 2]",
        "[f(x=1)][0]",
        "[f(x=1) for f in g]",
        "[f()(x=1)]",
        "[f(x=1\x00)]",
        "[f(x=" + "[" * 5000 + "]" * 5000 + ")]",
        "[f(x=" + "-" * 5000 + "1)]",
        "[f(x=" + "9" * 5000 + ")]",
        "[f(x=0x" + "f" * 5000 + ")]",
    ],
)
def test_pythonic_evaluates_nothing(text: str) -> None:
    assert read("pythonic", text) == ParsedReply(text, is_malformed=True)


@pytest.mark.parametrize("text", ["", "[1, 2]", "[]", "f(x=1)", "so: [f(x=1)]", "[link](url)"])
def test_pythonic_leaves_other_text_alone(text: str) -> None:
    assert read("pythonic", text) == ParsedReply(text)


def tool(**properties: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": properties}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def xml(*pairs: tuple[str, str], name: str = "f") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, " a\n\nb ", " a\n\nb "),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "null"}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, "[1]", "[1]"),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "[1]", [1]),
        ({"type": "object"}, '{"a": [1, "é"]}', {"a": [1, "é"]}),
        ({"type": "object"}, "{broken", "{broken"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": "2"}, "2", "2"),
        ({}, "2", "2"),
        ({"type": 3, "anyOf": 4}, "2", "2"),
    ],
)
def test_qwen3_coder_reads_values_as_the_schema_says(
    schema: dict[str, Any], text: str, value: Any
) -> None:
    parsed = read("qwen3_coder", f"So.\n{xml(('x', text))}", tool(x=schema))
    assert parsed == ParsedReply("So.", (ToolCall("f", {"x": value}),))
    assert type(parsed.calls[0].arguments["x"]) is type(value)


def test_qwen3_coder_reads_several_calls_also_of_unknown_tools() -> None:
    text = xml(("x", "1")) + "\n" + xml(("y", "1"), ("z", "<b>"), name="g") + xml(name="h")
    assert read("qwen3_coder", text, tool(x={"type": "integer"})).calls == (
        F,
        ToolCall("g", {"y": "1", "z": "<b>"}),
        ToolCall("h", {}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<function=f></function>",
        "<tool_call><function=f><parameter=x>1</function></tool_call>",
        "<tool_call><function=f>words</function></tool_call>",
        "<tool_call><function=></function></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        xml(("x", "1"), ("x", "2")),
        xml(("x", "1")) + "<tool_call>",
        xml(("x", "1")) + "</tool_call>",
    ],
)
def test_qwen3_coder_takes_malformed_calls_as_text(text: str) -> None:
    assert read("qwen3_coder", text) == ParsedReply(text, is_malformed=True)


SIGNS = {
    "hermes": "<tool_call>\n{{ call | tojson }}\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function={{ f.name }}>\n<parameter={{ k }}>",
    "llama3_json": '<|start_header_id|>{{ \'{"name": "f", "parameters": {}}\' }}',
    "pythonic": "calls look like [func_name1(params_name1=value), ...]",
}


def plain_chat(comment: str) -> ChatFormat:
    """A chat whose template holds some text that it does not write."""
    said = comment.replace("{{", "").replace("}}", "")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{# " + said + " #}"
    return ChatFormat(make_tokenizer(template))


@pytest.mark.parametrize("name", SIGNS)
def test_a_template_shows_its_parser(name: str) -> None:
    assert detect_tool_parsers(SIGNS[name]) == [name]
    chat = plain_chat(SIGNS[name])
    assert chat.replies.tool_parser == name
    assert ChatFormat(chat.tokenizer, "bracket").replies.tool_parser == "bracket"


@pytest.mark.parametrize("text", ["", "<tool_call>f<arg_key>x</arg_key>", "<tool_calls>"])
def test_other_templates_show_none(text: str) -> None:
    assert detect_tool_parsers(text) == []
    assert "it is not known how" in plain_chat(text).replies.advice


def test_two_signs_are_no_choice() -> None:
    both = SIGNS["pythonic"] + "<|python_tag|>"
    chat = plain_chat(both)
    assert chat.replies.parser is None
    assert "(llama3_json, pythonic): name one under tool_parser" in chat.replies.advice


def test_a_parser_that_the_tokenizer_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="ships no response_template"):
        ChatFormat(make_tokenizer(), "response_template")
    with pytest.raises(DataError, match=r"expected a reasoning parser, one of .*got 'deep'"):
        ChatFormat(make_tokenizer(), reasoning_parser="deep")


SPEC = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "[[", "close": "]]", "content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}


def test_a_tokenizer_that_describes_its_replies_reads_them_itself() -> None:
    tokenizer = make_tokenizer()
    tokenizer.response_template = SPEC
    chat = ChatFormat(tokenizer)
    assert chat.replies.tool_parser == "response_template"
    call = '<call>{"name": "f", "arguments": {"x": 1}}</call>'
    assert chat.replies.read(f"[[ hm ]]\n{call}{call}", None) == ParsedReply(
        "", (F, F), reasoning="hm"
    )
    assert chat.replies.read(f"so {call}", None) == ParsedReply("so", (F,))
    for bad in ("<call>{</call>", "<call>[]</call>", '<call>{"name": "f"}</call>', "<call>"):
        assert chat.replies.read(f"ab {bad}", None) == ParsedReply(f"ab {bad}", is_malformed=True)
    assert chat.replies.read("a plain text", None) == ParsedReply("a plain text")


def test_special_tokens_are_text_only_where_a_parser_looks_for_them() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|python_tag|>", "<|x|>"]})
    text = 'ab<|x|> <|python_tag|>{"name": "f", "parameters": {"x": 1}}<|im_end|>'
    ids = tokenizer.encode(text, add_special_tokens=False)
    message = ChatFormat(tokenizer, "llama3_json").parse_reply(ids)
    assert message["content"] == "ab"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert "python_tag" not in ChatFormat(tokenizer, "hermes").parse_reply(ids)["content"]
