"""Messages to ids and back: only new text is tokenised, rewriting templates are refused."""

import json
from typing import Any

import pytest
from data_support import CHATML, make_tokenizer
from transformers import PreTrainedTokenizerFast

from areal_agent.data.chat import ChatFormat
from areal_agent.data.tokenizer import build_word_tokenizer
from areal_agent.errors import DataError


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def chat(tokenizer: PreTrainedTokenizerFast) -> ChatFormat:
    return ChatFormat(tokenizer, "hermes")


USER = {"role": "user", "content": "ab?"}
TOOL = {"role": "tool", "content": "7", "tool_call_id": "c"}
SCHEMA = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_a_prompt_is_the_template_up_to_the_reply(chat: ChatFormat) -> None:
    ids = chat.prompt_ids([USER])
    assert chat.decode(ids) == "<|im_start|>user\nab?<|im_end|>\n<|im_start|>assistant\n"
    assert ids == chat.tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    assert chat.decode(chat.prompt_ids([USER], [SCHEMA])).startswith("<|im_start|>system\n{")


def test_a_prompt_asked_for_again_is_rendered_once(chat: ChatFormat) -> None:
    once = chat.prompt_ids([USER])
    chat.tokenizer.chat_template = "changed"
    assert chat.prompt_ids([dict(USER)]) == once
    assert chat.prompt_ids([{**USER, "content": "b?"}]) != once


def test_a_template_that_tells_the_time_is_rendered_anew() -> None:
    chat = ChatFormat(make_tokenizer("{{ strftime_now('%Y') }}" + CHATML))
    once = chat.prompt_ids([USER])
    chat.tokenizer.chat_template = CHATML
    assert chat.prompt_ids([USER]) != once


def test_what_json_cannot_say_reaches_the_template() -> None:
    chat = ChatFormat(make_tokenizer(CHATML.replace("m.content", "m.content | string", 1)))
    assert "<complex>" in chat.decode(chat.prompt_ids([{**USER, "content": 3 + 4j}]))


def test_a_continuation_is_what_comes_after_the_reply(chat: ChatFormat) -> None:
    ids = chat.continuation_ids([USER], [TOOL, USER])
    text = "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>user\nab?<|im_end|>\n"
    assert chat.decode(ids) == text + "<|im_start|>assistant\n"
    open_ids = chat.continuation_ids([USER], [TOOL, USER], closed=False)
    assert chat.decode(open_ids) == "<|im_end|>" + chat.decode(ids)


def test_sampled_ids_are_never_cut_anew(chat: ChatFormat) -> None:
    """S01: the engine sampled "a","b" where the tokenizer would write "ab"."""
    split = [chat.tokenizer.convert_tokens_to_ids(t) for t in ("a", "b", "<|im_end|>")]
    assert chat.tokenizer.encode("ab", add_special_tokens=False) != split[:2]
    reply = chat.parse_reply(split)
    assert reply == {"role": "assistant", "content": "ab"}
    dialogue = [*chat.prompt_ids([USER]), *split, *chat.continuation_ids([USER], [USER])]
    assert chat.decode(dialogue) == chat.decode(chat.prompt_ids([USER, reply, USER]))


def test_the_whole_of_a_long_dialogue_adds_up_to_its_rendering(chat: ChatFormat) -> None:
    messages: list[dict[str, Any]] = [USER]
    ids = chat.prompt_ids(messages)
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>'
    for text, new in [(call, [TOOL]), ("no<|im_end|>", [USER]), (call, [TOOL, TOOL])]:
        output = chat.tokenizer.encode(text, add_special_tokens=False)
        ids = [*ids, *output, *chat.continuation_ids(messages, new)]
        messages = [*messages, chat.parse_reply(output), *new]
    assert chat.decode(ids) == chat.decode(chat.prompt_ids(messages)).replace(
        '{"arguments": {"x": 1}, "name": "f"}', '{"name": "f", "arguments": {"x": 1}}'
    )


def test_a_template_that_rewrites_history_is_refused() -> None:
    """Shows how many messages there are: every turn changes the first line."""
    tokenizer = make_tokenizer("{{ messages | length }}\n" + CHATML)
    with pytest.raises(DataError, match="writes earlier messages differently"):
        ChatFormat(tokenizer)


def test_a_template_that_drops_old_thoughts_is_refused_where_it_does() -> None:
    strip = "m.content.split('</t>')[-1] if not loop.last and m.role == 'assistant' else m.content"
    chat = ChatFormat(make_tokenizer(CHATML.replace("m.content", f"({strip})", 1)))
    thought = {"role": "assistant", "content": "<t>hm</t>yes"}
    assert chat.continuation_ids([USER], [USER])
    assert chat.continuation_ids([USER, thought, USER], [USER])
    with pytest.raises(DataError, match=r"roles \['user', 'assistant', 'user'\]"):
        chat.continuation_ids([USER, thought], [USER])


def test_what_the_template_refuses_is_an_error_with_its_reason() -> None:
    template = (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tool first') }}{% endif %}"
    )
    chat = ChatFormat(make_tokenizer(template + CHATML))
    with pytest.raises(DataError, match=r"roles \['tool'\]: no tool first"):
        chat.prompt_ids([TOOL])


def test_without_a_template_there_is_no_chat(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"no chat template: put one into chat_template\.jinja"):
        ChatFormat(tokenizer)


def test_a_reply_with_calls_becomes_calls_with_ids_of_their_own(chat: ChatFormat) -> None:
    text = 'so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>' * 2
    ids = chat.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    replies = [chat.parse_reply(ids), chat.parse_reply(ids)]
    calls = [call for reply in replies for call in reply["tool_calls"]]
    assert [json.loads(c["function"]["arguments"]) for c in calls] == [{"x": 1}] * 4
    assert len({c["id"] for c in calls}) == 4
    assert replies[0]["content"] == "so so"


def test_a_malformed_call_is_text_and_can_be_echoed(chat: ChatFormat) -> None:
    ids = chat.tokenizer.encode('<tool_call>{"name": "f", <|im_end|>', add_special_tokens=False)
    reply = chat.parse_reply(ids)
    assert reply == {"role": "assistant", "content": '<tool_call>{"name": "f", '}
    assert chat.continuation_ids([USER, reply, USER], [USER])
    broken = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": '}}
    assert chat.prompt_ids([USER, {"role": "assistant", "tool_calls": [broken]}])


def test_malformed_calls_are_warned_of_ever_less_often(
    chat: ChatFormat, caplog: pytest.LogCaptureFixture
) -> None:
    ids = chat.tokenizer.encode('<tool_call>{"name": "f", <|im_end|>', add_special_tokens=False)
    for _ in range(150):
        assert chat.parse(ids).is_malformed
    counts = [record.getMessage().split()[0] for record in caplog.records]
    assert counts == ["1", "10", "100"]


def test_ends_of_turn_come_from_tokenizer_template_and_caller(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    ids = {tokenizer.convert_tokens_to_ids("<eos>"), tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert ChatFormat(tokenizer).eos_token_ids == ids
    assert ChatFormat(tokenizer, eos_token_ids=[2]).eos_token_ids == ids | {2}
    # A character is no end of turn, even when the template always writes one.
    plain = build_word_tokenizer(
        [], chat_template="{% for m in messages %}{{ m.content }}.{% endfor %}"
    )
    assert ChatFormat(plain).eos_token_ids == {plain.eos_token_id}
    assert plain.decode(ChatFormat(plain).continuation_ids([USER], [USER])) == ".ab?."


def test_a_tool_parser_may_be_named_by_the_model(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("[1+1]", add_special_tokens=False)
    assert "tool_calls" not in ChatFormat(tokenizer).parse_reply(ids)
    tokenizer.init_kwargs["tool_parser"] = "bracket"
    assert "tool_calls" in ChatFormat(tokenizer).parse_reply(ids)
    assert "tool_calls" not in ChatFormat(tokenizer, "hermes").parse_reply(ids)
    with pytest.raises(DataError, match="got 'brackets'"):
        ChatFormat(tokenizer, "brackets")


def test_supervised_ids_are_those_of_a_rollout(chat: ChatFormat) -> None:
    replies = ["one", "two"]
    messages = [USER, {"role": "assistant", "content": "one"}, TOOL, USER]
    ids, mask = chat.supervised_ids([*messages, {"role": "assistant", "content": "two"}])
    rollout: list[int] = chat.prompt_ids([USER])
    learnt = [False] * len(rollout)
    for reply, new in zip(replies, ([TOOL, USER], None), strict=True):
        output = chat.tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False)
        rollout += output
        learnt += [True] * len(output)
        if new:
            more = chat.continuation_ids([USER], new)
            rollout += more
            learnt += [False] * len(more)
    assert ids == rollout
    assert mask == learnt
    with pytest.raises(DataError, match="with an assistant message"):
        chat.supervised_ids([USER])
