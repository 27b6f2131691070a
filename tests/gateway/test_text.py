"""Characters that are spread over several tokens, where streams, stop strings and limits cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
from gateway_support import CHATML, USER, Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversation import check_rows, rows_of, sampled
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.gateway import Gateway
from areal_agent.gateway.reply import ReplyText, read_reply
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import GenerationHyperparameters, ModelRequest, ModelResponse

WORDS = "né 日本 😀👍🏽 ok"
END = "<|im_end|>"


@cache
def byte_chat() -> ChatFormat:
    """A token a byte, as byte-level vocabularies fall back to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    return ChatFormat(tokenizer)


def ids(text: str) -> list[int]:
    return byte_chat().tokenizer.encode(text, add_special_tokens=False)


@asynccontextmanager
async def byte_stage(*texts: str) -> AsyncGenerator[Stage]:
    says = list(texts)

    def script(request: ModelRequest) -> Reply:
        return Reply(ids(says.pop(0) + END))

    async with asyncio.timeout(60), Gateway(byte_chat(), model="policy") as gateway:
        yield Stage(byte_chat(), gateway, FakeEngine(script))


async def both(playing: Stage, session: Any, **kwargs: Any) -> tuple[str, list[str], set[str]]:
    """The reply whole, in pieces, and why both ended."""
    client = playing.gateway.client(session)
    asked = {"model": "m", "messages": [USER], **kwargs}
    whole = (await client.chat.completions.create(**asked)).choices[0]
    stream = await client.chat.completions.create(**asked, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    pieces = [chunk.delta.content for chunk in chunks if chunk.delta.content]
    return whole.message.content, pieces, {whole.finish_reason, chunks[-1].finish_reason}


def test_the_tokenizer_splits_characters() -> None:
    assert len(ids("😀")) == 4
    assert byte_chat().decode(ids("😀")) == "😀"


async def test_pieces_are_whole_characters() -> None:
    async with byte_stage(WORDS, WORDS) as playing, playing.session() as session:
        whole, pieces, reasons = await both(playing, session)
        assert whole == WORDS
        assert pieces == list(WORDS)
        assert reasons == {"stop"}
        assert [list(t.response.output_tokens) for t in session.delivered_turns()] == [
            ids(WORDS + END)
        ] * 2


@pytest.mark.parametrize(
    ("stop", "shown"),
    [(["本"], "né 日"), (["é 日"], "n"), (["👍🏽"], "né 日本 😀"), (["🏽", "ok"], "né 日本 😀👍")],
)
async def test_stop_strings_of_such_characters(stop: list[str], shown: str) -> None:
    async with byte_stage(WORDS, WORDS) as playing, playing.session() as session:
        whole, pieces, _ = await both(playing, session, stop=stop)
        assert whole == "".join(pieces) == shown


@pytest.mark.parametrize("n_bytes", range(1, 4))
async def test_a_limit_inside_a_character_cuts_text_but_no_token(n_bytes: int) -> None:
    async with byte_stage("a😀", "a😀", "b") as playing, playing.session() as session:
        whole, pieces, reasons = await both(playing, session, max_tokens=1 + n_bytes)
        assert whole == "".join(pieces)
        assert whole == "a\ufffd"
        assert reasons == {"length"}
        client = playing.gateway.client(session)
        history = [USER, {"role": "assistant", "content": whole}, USER]
        await client.chat.completions.create(model="m", messages=history)
        rows = rows_of(session)
        check_rows(playing, rows, session.delivered_turns())
        assert session.counts["prefix_hits"] == 1
        part = ids("a😀")[: 1 + n_bytes]
        assert sorted(sampled(rows)) == sorted([*part, *part, *ids("b" + END)])
        sent = list(playing.engine.requests[2].input_ids)
        before = list(playing.engine.requests[0].input_ids)
        assert sent[: len(before) + len(part)] == before + part
        assert sent[len(before) + len(part)] == ids(END)[0]


async def test_a_part_of_a_character_has_no_bytes_of_its_own() -> None:
    async with byte_stage("aé") as playing, playing.session() as session:
        made = await playing.gateway.client(session).chat.completions.create(
            model="m", messages=[USER], logprobs=True
        )
        content = made.choices[0].logprobs.content
        assert [entry.bytes for entry in content] == [[97], None, None, list(END.encode())]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    text=st.text("aé日😀\ufffd ", max_size=12),
    n=st.integers(0, 40),
    stop=st.sampled_from(["", "é", "日😀", "a ", "aa", "😀"]),
)
def test_streamed_text_is_the_text(text: str, n: int, stop: str) -> None:
    cut = ids(text + END)[:n]
    gconfig = GenerationHyperparameters(stop=(stop,) if stop else ())
    growing = ReplyText(byte_chat(), gconfig)
    pieces = [growing.push([token]) for token in cut] + [growing.rest()]
    response = ModelResponse([1], cut, [0.0] * len(cut), [0] * len(cut), "stop")
    whole = read_reply(byte_chat(), gconfig, response, tools=None).message["content"]
    assert "".join(pieces) == whole
    shown = text.encode()[:n].decode(errors="replace")
    assert whole == (shown[: shown.index(stop)] if stop and stop in shown else shown)
