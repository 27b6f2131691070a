"""Sessions know nothing of each other, end for good, and leave nothing behind."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import psutil
import pytest
from gateway_support import USER, Stage, rest, scene, stage, until
from openai import AsyncOpenAI
from test_conversation import check_rows, rows_of, sampled

from areal_agent.errors import ServerError
from areal_agent.gateway.session import Session
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import ModelRequest

N_SESSIONS = 300
N_CONNECTIONS = 8
BODY = {"model": "m", "messages": [USER]}


@asynccontextmanager
async def http(playing: Stage) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=playing.gateway.url, trust_env=False) as client:
        yield client


def bearer(session: Session) -> dict[str, str]:
    return {"authorization": f"Bearer {session.key}"}


def check_error(answer: httpx.Response, status: int, code: str | None) -> None:
    """OpenAI's shape, whatever it is about."""
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert isinstance(error["message"], str)


CALLS = [
    ("POST", "/v1/chat/completions", BODY),
    ("GET", "/v1/models", None),
    ("POST", "/rl/set_reward", {"reward": 1.0}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_an_ended_session_answers_410_by_key_and_by_path_a_stranger_401(
    method: str, path: str, body: Any
) -> None:
    async with asyncio.timeout(20), stage() as playing, http(playing) as client:
        async with playing.session() as session:
            made = await client.post("/v1/chat/completions", json=BODY, headers=bearer(session))
            assert made.status_code == 200
        sealed, unknown = (410, "session_sealed"), (401, "invalid_api_key")
        for url, headers, error in [
            (path, bearer(session), sealed),
            (path, {"x-api-key": session.key}, sealed),
            (f"/s/{session.path_name}{path}", {}, sealed),
            (path, {}, unknown),
            (path, {"authorization": "Basic abc"}, unknown),
            ("/s/nobody" + path, {}, unknown),
        ]:
            answer = await client.request(method, url, json=body, headers=headers)
            check_error(answer, *error)
            assert session.key not in answer.text
            assert session.path_name not in answer.text
        assert len(playing.engine.requests) == 1


@pytest.mark.parametrize(("method", "path", "body"), [CALLS[0], CALLS[2]])
async def test_a_sealed_session_that_is_still_known_answers_410(
    method: str, path: str, body: Any
) -> None:
    async with scene() as (playing, session), http(playing) as client:
        await client.post("/v1/chat/completions", json=BODY, headers=bearer(session))
        await session.seal()
        before = session.counts
        answer = await client.request(method, path, json=body, headers=bearer(session))
        check_error(answer, 410, "session_sealed")
        # A retry finds nothing to replay either.
        retry = {**bearer(session), "x-stainless-retry-count": "1"}
        answer = await client.request(method, path, json=body, headers=retry)
        check_error(answer, 410, "session_sealed")
        assert session.counts == before
        assert [turn.reward for turn in session.delivered_turns()] == [None]


async def test_the_sdk_does_not_try_an_ended_session_again() -> None:
    async with asyncio.timeout(20), stage() as playing, http(playing) as client:
        async with playing.session() as session:
            url = f"{playing.gateway.url}/v1"
            async with AsyncOpenAI(api_key=session.key, base_url=url) as sdk:
                await session.seal()
                with pytest.raises(openai.APIStatusError) as sealed:
                    await sdk.chat.completions.create(**BODY)
                playing.gateway.sessions.remove(session)
                with pytest.raises(openai.APIStatusError) as forgotten:
                    await sdk.chat.completions.create(**BODY)
        assert forgotten.value.status_code == 410
        assert sealed.value.status_code == 410
        assert sealed.value.code == "session_sealed"
        assert playing.engine.requests == []
        assert client is not None


@pytest.mark.parametrize("way", ["inside", "socket"])
@pytest.mark.parametrize("stream", [False, True])
async def test_calls_in_flight_end_with_their_session_and_change_nothing(
    way: str, stream: bool
) -> None:
    async with asyncio.timeout(30), stage("done", "late") as playing, asyncio.TaskGroup() as group:
        async with playing.session() as session:
            sdk = playing.gateway.client(session)
            if way == "socket":
                url = f"{playing.gateway.url}/v1"
                sdk = AsyncOpenAI(api_key=session.key, base_url=url)
            sdk = sdk.with_options(max_retries=0)
            await sdk.chat.completions.create(**BODY)
            turns, counts = list(session.delivered_turns()), session.counts
            playing.engine.hold()
            call = group.create_task(caught(sdk, stream))
            await until(lambda: playing.engine.running == 1)
        assert playing.engine.running == 0
        assert playing.engine.cancelled == 1
        error = await call
        assert isinstance(error, openai.APIStatusError)
        assert error.status_code == 410
        assert error.code == "session_sealed"
        playing.engine.release()
        assert list(session.delivered_turns()) == turns == session.conversation.turns
        assert session.counts == counts
        assert len(playing.gateway.sessions) == 0
        if way == "socket":
            await sdk.close()


async def caught(sdk: AsyncOpenAI, stream: bool) -> Exception | None:
    try:
        await sdk.chat.completions.create(**BODY, stream=stream)
    except openai.APIError as error:
        return error
    return None


async def test_a_stream_under_way_is_broken_off_when_its_session_ends() -> None:
    async with asyncio.timeout(20), stage("a b c d e f g") as playing:
        async with playing.session() as session:
            client = playing.gateway.client(session)
            stream = await client.chat.completions.create(**BODY, stream=True)
            playing.engine.hold()
            events = aiter(stream)
            await anext(events)
        with pytest.raises(openai.APIError, match="sealed"):
            await rest(events)
        assert session.delivered_turns() == []
        assert playing.engine.running == 0


async def test_an_answer_that_arrives_after_the_end_changes_nothing() -> None:
    async with asyncio.timeout(20), stage("a b c d e f g") as playing:
        async with playing.session() as session:
            client = playing.gateway.client(session)
            stream = await client.chat.completions.create(**BODY, stream=True)
            await until(lambda: len(session.conversation.turns) == 1)
            before = session.counts
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text) == "a b c d e f g"
        assert session.delivered_turns() == []
        assert session.counts == before


async def test_keys_are_in_no_log_and_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "openai"):  # the client's own, which name their URLs
        logging.getLogger(name).setLevel(logging.WARNING)
    bodies: list[str] = []
    async with (
        scene(ValueError("bug"), ServerError("no")) as (playing, session),
        http(playing) as client,
    ):
        inside = playing.gateway.client(session).with_options(max_retries=0)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as error:
                await inside.chat.completions.create(**BODY)
            bodies.append(str(error.value) + str(error.value.body))
        for prefix, headers in [("", bearer(session)), (f"/s/{session.path_name}", {})]:
            for method, path, body in [
                ("POST", "/v1/chat/completions", {"model": session.key}),
                ("POST", "/v1/chat/completions", []),
                ("GET", "/v1/chat/completions", None),
                ("POST", "/v1/none", {}),
                ("POST", "/none", {}),
                ("POST", "/rl/set_reward", {"reward": "x"}),
                ("POST", "/rl/set_reward", {"reward": 1, "interaction_id": "z"}),
                ("DELETE", "/v1/models", None),
            ]:
                answer = await client.request(method, prefix + path, json=body, headers=headers)
                assert answer.status_code >= 400
                assert set(answer.json()) == {"error"}
                bodies.append(answer.text)
        await session.seal()
        late = await client.post("/v1/chat/completions", json=BODY, headers=bearer(session))
        bodies.append(late.text)
    told = "\n".join([*bodies, *map(logging.Formatter().format, caplog.records)])
    assert "bug" in told
    assert session.key not in told
    assert session.path_name not in told
    assert session.key.removeprefix("sk-areal-") not in told


def open_sockets() -> int:
    return len(psutil.Process().net_connections(kind="tcp"))


def open_files() -> int:
    return psutil.Process().num_fds()


class Crowd:
    """300 agents that share 8 connections; some leave, some are cancelled, some hear errors."""

    def __init__(self, playing: Stage, pool: httpx.AsyncClient) -> None:
        self.playing = playing
        self.pool = pool
        self.most_sockets = 0
        self.turns = 0
        self.most_files = 0
        self.asked: dict[str, asyncio.Event] = {}
        self.failed: set[str] = set()

    def sample(self, request: ModelRequest) -> Reply | BaseException:
        """Say back what only this session knows; fail where it asks for that, once."""
        messages = request.metadata["messages"]
        secret = messages[0]["content"]
        first = not self.asked[secret].is_set()
        self.asked[secret].set()
        if secret.startswith("cancel") and first:
            return Reply(self.playing.ids("so ") * 1000)
        if secret.startswith("error") and secret not in self.failed:
            self.failed.add(secret)
            return ServerError("down")
        return Reply(self.playing.ids(f"{secret} {len(messages)}<|im_end|>"))

    async def agent(self, i: int) -> None:
        kind = ("plain", "stream", "abandon", "cancel", "error")[i % 5]
        secret = f"{kind} {i}"
        user = {"role": "user", "content": secret}
        self.asked[secret] = asyncio.Event()
        async with self.playing.session() as session:
            client = self.client(session, by_path=i % 2 == 0)
            ask = client.chat.completions.create
            if kind == "abandon":
                stream = await ask(model="m", messages=[user], stream=True)
                async for _ in stream:
                    break
                await stream.close()
            if kind == "cancel":
                async with asyncio.TaskGroup() as group:
                    call = group.create_task(ask(model="m", messages=[user]))
                    await self.asked[secret].wait()
                    call.cancel()
            messages: list[Any] = [user]
            for turn in range(1, 3):
                made: Any = await ask(model="m", messages=messages, stream=kind == "stream")
                if kind == "stream":
                    parts = [chunk.choices[0].delta.content or "" async for chunk in made]
                    text = "".join(parts)
                else:
                    text = made.choices[0].message.content
                assert text == f"{secret} {2 * turn - 1}"
                messages += [{"role": "assistant", "content": text}, user]
            if i % 7 == 0:
                self.most_sockets = max(self.most_sockets, open_sockets())
                self.most_files = max(self.most_files, open_files())
            self.check(session, secret, kind)

    def client(self, session: Session, *, by_path: bool) -> AsyncOpenAI:
        gateway = self.playing.gateway
        url = gateway.base_url(session) if by_path else f"{gateway.url}/v1"
        key = "none" if by_path else session.key
        return AsyncOpenAI(api_key=key, base_url=url, http_client=self.pool, max_retries=2)

    def check(self, session: Session, secret: str, kind: str) -> None:
        turns = session.delivered_turns()
        self.turns += len(turns)
        rows = rows_of(session)
        assert session.failure is None
        for turn in turns:
            assert turn.messages[0]["content"] == secret
            assert self.playing.chat.decode(turn.response.input_tokens).count(secret) >= 1
        check_rows(self.playing, rows, turns)
        words = self.playing.chat.decode(sampled(rows))
        if kind != "abandon":  # over a socket a closed stream may have been sent whole
            assert words == f"{secret} 1<|im_end|>{secret} 3<|im_end|>"


async def test_hundreds_of_sessions_share_few_connections() -> None:
    limits = httpx.Limits(max_connections=N_CONNECTIONS)
    async with (
        asyncio.timeout(100),
        stage(abandoned_seconds=0.05) as playing,
        httpx.AsyncClient(limits=limits, timeout=90, trust_env=False) as pool,
    ):
        crowd = Crowd(playing, pool)
        playing.engine = FakeEngine(crowd.sample)
        assert playing.gateway.url  # it listens from here
        gc.collect()
        sockets, files = open_sockets(), open_files()
        async with asyncio.TaskGroup() as group:
            for i in range(N_SESSIONS):
                group.create_task(crowd.agent(i))
        assert len(playing.gateway.sessions) == 0
        assert len(crowd.failed) == N_SESSIONS // 5
        assert crowd.turns >= 2 * N_SESSIONS
        # Each connection has two ends in this process; some are on their way out.
        assert crowd.most_sockets > sockets
        assert crowd.most_sockets - sockets <= 6 * N_CONNECTIONS
        assert crowd.most_files - files <= 6 * N_CONNECTIONS
        assert playing.engine.running == 0
        await until(lambda: open_sockets() - sockets <= 2 * N_CONNECTIONS)
