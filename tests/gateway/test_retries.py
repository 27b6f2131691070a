"""Calls that are sent again, given up, or answered with an error: which are trained on."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from gateway_support import USER, Stage, rest, scene, stage, until
from openai import AsyncOpenAI
from test_conversation import check_rows, rows_of, sampled

from areal_agent.errors import EngineFault, RequestError, ServerError
from areal_agent.gateway.session import Session

RETRY = {"x-stainless-retry-count": "1"}


@asynccontextmanager
async def reached(
    way: str, playing: Stage, session: Session, **kwargs: Any
) -> AsyncGenerator[AsyncOpenAI]:
    if way == "inside":
        yield playing.gateway.client(session).with_options(**kwargs)
        return
    url = f"{playing.gateway.url}/v1"
    async with AsyncOpenAI(api_key=session.key, base_url=url, **kwargs) as client:
        yield client


WAYS = pytest.mark.parametrize("way", ["inside", "socket"])


@WAYS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_after_a_timeout_joins_the_call_in_flight(way: str, stream: bool) -> None:
    """S07."""
    async with scene("first", "second") as (playing, session), asyncio.TaskGroup() as group:
        playing.engine.hold()
        async with reached(way, playing, session, timeout=1.0, max_retries=1) as client:
            asked = client.chat.completions.create(model="m", messages=[USER], stream=stream)
            call = group.create_task(asked)
            await until(lambda: session.counts.get("joins", 0) == 1)
            playing.engine.release()
            made: Any = await call
            if stream:
                text = [c.choices[0].delta.content or "" async for c in made]
                assert "".join(text) == "first"
            else:
                assert made.choices[0].message.content == "first"
        rows = rows_of(session, 1)
        assert len(playing.engine.requests) == 1
        assert [(sampled([row]), row.reward) for row in rows] == [
            (playing.ids("first<|im_end|>"), 1.0)
        ]
        assert session.counts["undelivered"] == 0
        assert playing.engine.cancelled == 0


@WAYS
async def test_a_finished_exchange_is_replayed(way: str) -> None:
    async with scene("one", "two") as (playing, session):
        async with reached(way, playing, session) as client:
            asked: dict[str, Any] = {"model": "m", "messages": [USER]}
            first = await client.chat.completions.create(**asked)
            again = await client.chat.completions.create(**asked, extra_headers=RETRY)
            assert again == first
            # Not a retry: the same question is asked anew.
            new = await client.chat.completions.create(**asked)
            assert new.choices[0].message.content == "two"
            # A retry of something else is new, too.
            other = await client.chat.completions.create(
                **asked, max_tokens=30, extra_headers=RETRY
            )
            assert other.choices[0].message.content == "ok"
        assert session.counts["replays"] == 1
        assert len(playing.engine.requests) == 3
        check_rows(playing, rows_of(session), session.delivered_turns())


@WAYS
async def test_a_replayed_stream_has_the_same_words_and_name(way: str) -> None:
    async with scene("ab c") as (playing, session):
        async with reached(way, playing, session) as client:
            heard: list[list[Any]] = []
            for headers in ({}, RETRY):
                stream = await client.chat.completions.create(
                    model="m", messages=[USER], stream=True, extra_headers=headers
                )
                heard.append([chunk async for chunk in stream])
        assert heard[0] == heard[1]
        assert len(session.delivered_turns()) == len(playing.engine.requests) == 1


async def test_equal_calls_under_way_each_get_their_own_retry() -> None:
    async with asyncio.timeout(60), stage("one", "two") as playing:
        async with playing.session() as session, asyncio.TaskGroup() as group:
            playing.engine.hold()
            client = playing.gateway.client(session).with_options(timeout=0.5, max_retries=1)
            calls = [
                group.create_task(client.chat.completions.create(model="m", messages=[USER]))
                for _ in range(2)
            ]
            await until(lambda: session.counts.get("joins", 0) == 2)
            playing.engine.release()
            made = [await call for call in calls]
        texts = {answer.choices[0].message.content for answer in made}
        assert texts == {"one", "two"}
        assert len(playing.engine.requests) == 2


@WAYS
async def test_a_client_that_never_returns_frees_the_engine_and_is_not_trained(way: str) -> None:
    """S23."""
    async with scene("lost", "kept", abandoned_seconds=0.05) as (playing, session):
        playing.engine.hold()
        async with reached(way, playing, session, max_retries=0) as client:
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(model="m", messages=[USER], timeout=0.3)
            await until(lambda: playing.engine.running == 0)
            assert playing.engine.cancelled == 1
            assert session.counts["abandoned"] == 1
            playing.engine.release()
            assert session.delivered_turns() == []
            # Its retry, when it comes after all, starts again.
            made = await client.chat.completions.create(
                model="m", messages=[USER], extra_headers=RETRY
            )
            assert made.choices[0].message.content == "kept"
        assert sampled(rows_of(session)) == playing.ids("kept<|im_end|>")
        assert session.failure is None


async def test_a_reply_that_nobody_waited_for_is_kept_and_not_trained() -> None:
    async with scene("lost", "used") as (playing, session):
        client = playing.gateway.client(session).with_options(max_retries=0)
        playing.engine.hold()
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="m", messages=[USER], timeout=0.1)
        playing.engine.release()
        await until(lambda: playing.engine.running == 0)
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "else"}]
        )
        assert sampled(rows_of(session)) == playing.ids("used<|im_end|>")
        assert session.counts["undelivered"] == 1
        assert len(session.conversation.turns) == 2


async def test_a_retry_that_leaves_again_gets_as_long_as_the_first() -> None:
    async with scene("x", abandoned_seconds=1.0) as (playing, session):
        client = playing.gateway.client(session).with_options(max_retries=0)
        playing.engine.hold()
        for headers, seconds in (({}, 0.1), (RETRY, 0.9)):
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(
                    model="m", messages=[USER], timeout=seconds, extra_headers=headers
                )
        await asyncio.sleep(0.4)  # the first has been away for more than a second
        assert playing.engine.cancelled == 0
        playing.engine.release()
        made = await client.chat.completions.create(model="m", messages=[USER], extra_headers=RETRY)
        assert made.choices[0].message.content == "x"
        assert len(playing.engine.requests) == 1


@WAYS
async def test_a_stream_closed_after_two_chunks_is_not_trained(way: str) -> None:
    """S03."""
    async with scene("a b c d e f", abandoned_seconds=0.05) as (playing, session):
        async with reached(way, playing, session) as client:
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            if way == "socket":  # there, what is sent is out of our hands
                playing.engine.hold()
            else:  # here it is known, also when all of the reply was there
                await until(lambda: len(session.conversation.turns) == 1)
            events = aiter(stream)
            chunks = [await anext(events) for _ in range(2)]
            assert chunks[0].choices[0].delta.role == "assistant"
            await events.aclose()
            await stream.close()
            if way == "socket":
                await until(lambda: playing.engine.running == 0)
                assert playing.engine.cancelled == 1
        assert session.delivered_turns() == []
        assert rows_of(session) == []


async def test_a_stream_that_is_dropped_without_a_close_lets_the_gateway_end() -> None:
    async with asyncio.timeout(20), stage("a b c d e f") as playing:
        async with playing.session() as session:
            client = playing.gateway.client(session)
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            async for _ in stream:
                break
        assert session.delivered_turns() == []
    assert stream is not None


async def test_a_client_that_reads_up_to_the_finish_reason_has_all() -> None:
    async with scene("a b c") as (playing, session):
        client = playing.gateway.client(session)
        stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
        async for chunk in stream:
            if chunk.choices[0].finish_reason:
                break
        await stream.close()
        assert sampled(rows_of(session)) == playing.ids("a b c<|im_end|>")


@WAYS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "error", [ServerError("down"), EngineFault("broke"), ValueError("bug")], ids=type
)
async def test_an_engine_error_is_tried_again_by_the_sdk(
    way: str, stream: bool, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(error, "good") as (playing, session):
        async with reached(way, playing, session, max_retries=1) as client:
            made: Any = await client.chat.completions.create(
                model="m", messages=[USER], stream=stream
            )
            if stream:
                async for _ in made:
                    pass
        assert session.failure is None
        assert sampled(rows_of(session)) == playing.ids("good<|im_end|>")
        assert len(playing.engine.requests) == 2


@WAYS
async def test_a_failure_that_was_never_made_good_is_kept(way: str) -> None:
    async with scene(*[EngineFault("broke")] * 2, "good") as (playing, session):
        async with reached(way, playing, session, max_retries=1) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=[USER])
            assert caught.value.status_code == 503
            assert caught.value.code == "engine_fault"
            other = {"role": "user", "content": "something else"}
            await client.chat.completions.create(model="m", messages=[other])
        assert isinstance(session.failure, EngineFault)


async def test_a_failure_made_good_by_the_agents_own_retry_is_forgotten() -> None:
    async with scene(EngineFault("broke"), "good") as (playing, session):
        client = playing.gateway.client(session).with_options(max_retries=0)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=[USER])
        assert session.failure is not None
        await client.chat.completions.create(model="m", messages=[USER])
        assert session.failure is None


async def test_a_request_that_the_engine_refuses_is_a_400_and_no_failure() -> None:
    async with scene(RequestError("too odd")) as (playing, session):
        with pytest.raises(openai.BadRequestError, match="too odd"):
            await playing.gateway.client(session).chat.completions.create(
                model="m", messages=[USER]
            )
        assert session.failure is None
        assert len(playing.engine.requests) == 1


@WAYS
async def test_an_engine_that_dies_midway_breaks_the_stream_with_an_error(way: str) -> None:
    async with scene("a b c d e f") as (playing, session):
        async with reached(way, playing, session) as client:
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            playing.engine.hold()
            events = aiter(stream)
            await anext(events)
            playing.engine.die()
            with pytest.raises(openai.APIError, match="the engine broke"):
                await rest(events)
        assert isinstance(session.failure, EngineFault)
        assert rows_of(session) == []


async def test_choices_fail_together() -> None:
    async with scene("a", ServerError("down"), "b", "c") as (playing, session):
        client = playing.gateway.client(session).with_options(max_retries=1)
        made = await client.chat.completions.create(model="m", messages=[USER], n=2)
        assert [c.message.content for c in made.choices] == ["b", "c"]
        assert len(session.delivered_turns()) == 2
        assert session.failure is None
