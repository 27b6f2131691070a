"""Prompts as text or ids, continued: the OpenAI SDK against the gateway."""

from typing import Any

import openai
import pytest
from gateway_support import stage

from areal_agent.testing.fakes import Reply


async def test_text_is_continued_whole_and_in_pieces() -> None:
    async with stage("ab c", "ab c") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        whole = await client.completions.create(model="m", prompt="so ", logprobs=1)
        stream = await client.completions.create(
            model="m", prompt="so ", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        first, second = session.delivered_turns()
        assert list(first.response.input_tokens) == playing.ids("so ")
    assert whole.choices[0].text == "ab c"
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "ab c"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert first.response == second.response
    logprobs = whole.choices[0].logprobs
    assert logprobs.token_logprobs == list(first.response.output_logprobs)
    assert "".join(logprobs.tokens) == "ab c<|im_end|>"


async def test_text_behind_a_stop_string_extends_the_tokens_that_were_sampled() -> None:
    """The tokenizer would write "ab" as one token; the engine sampled two."""

    def split(request: Any) -> Reply:
        return Reply([playing.ids(c)[0] for c in "ab"] + playing.ids(" Obs:"))

    async with stage(split, "done") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        made = await client.completions.create(model="m", prompt="q ", stop=["Obs:"])
        assert made.choices[0].text == "ab "
        await client.completions.create(model="m", prompt="q ab Obs: 5\n", stop=["Obs:"])
        first, second = session.delivered_turns()
        before = [*first.response.input_tokens, *first.response.output_tokens]
        assert list(second.response.input_tokens) == before + playing.ids(" 5\n")
        assert second.parent is first


async def test_ids_extend_what_they_begin_with() -> None:
    async with stage("a", "b") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        prompt = playing.ids("so ")
        await client.completions.create(model="m", prompt=prompt)
        [first] = session.delivered_turns()
        longer = [*prompt, *first.response.output_tokens, *playing.ids("on ")]
        await client.completions.create(model="m", prompt=longer)
        assert session.delivered_turns()[1].parent is first
        assert list(playing.engine.requests[1].input_ids) == longer


@pytest.mark.parametrize("prompt", ["so b", "so a b"])
async def test_text_that_no_turn_begins_is_a_row_of_its_own(prompt: str) -> None:
    """Also behind an end-of-sequence token, which text does not have."""
    async with stage("a", "b") as playing, playing.session() as session:
        client = playing.gateway.client(session)
        await client.completions.create(model="m", prompt="so ")
        await client.completions.create(model="m", prompt=prompt)
        assert [turn.parent for turn in session.delivered_turns()] == [None, None]
        assert list(playing.engine.requests[1].input_ids) == playing.ids(prompt)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 10**9]}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 5}, "logprobs"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with stage() as playing, playing.session() as session:
        client = playing.gateway.client(session)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(**{"model": "m", "prompt": "so"} | body)
        assert caught.value.param == param
        assert playing.engine.requests == []
