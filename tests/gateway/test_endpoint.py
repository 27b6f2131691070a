"""The same agents at an endpoint of others: a server that answers as each test says."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import openai
import orjson
import pytest
from anthropic import AsyncAnthropic
from gateway_support import USER, until
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from areal_agent.aio import task_group
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.errors import ConfigError, RequestError, ServerError
from areal_agent.gateway.endpoint import Endpoint
from areal_agent.gateway.endpoint_gateway import EndpointGateway
from areal_agent.inference.absent import AbsentEngine
from areal_agent.net.clients import HttpClients
from areal_agent.net.serve import ServerHandle, bind, serve
from areal_agent.rollout.endpoint import EndpointWorkflow
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.types import Episode, GenerationHyperparameters

KEY = "sk-the-endpoints-own"
SPEC = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0, is_eval=True)
ERROR = {"message": "no", "type": "t", "param": None, "code": None}


@dataclass
class Call:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Server:
    """Answers with what `script` gives, one after the other, and then with "ok"."""

    script: list[Any]
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    left: int = 0

    async def answer(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refusal(401)
        if request.method == "GET":
            return Response(b'{"object":"list","data":[]}', media_type="application/json")
        body = orjson.loads(await request.body())
        call = Call(request.url.path, dict(request.headers), body, time.monotonic())
        self.calls.append(call)
        said = self.script.pop(0) if self.script else "ok"
        if isinstance(said, Response):
            return said
        if callable(said):
            return await said(self, request)
        return stream(said) if body.get("stream") else Response(orjson.dumps(whole(said)))


def whole(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return b"data: " + orjson.dumps(body | {"choices": [choice]}) + b"\n\n"


def stream(text: str) -> Response:
    async def chunks() -> AsyncGenerator[bytes]:
        for word in text.split():
            yield chunk(word)
        yield b"data: [DONE]\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


def refusal(status: int, *, headers: dict[str, str] | None = None, **fields: Any) -> Response:
    return Response(orjson.dumps({"error": ERROR | fields}), status, headers, "application/json")


async def never(server: Server, request: Request) -> Response:
    """Wait until the caller has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    server.left += 1
    return refusal(500)


@asynccontextmanager
async def served(*script: Any) -> AsyncGenerator[Server]:
    server = Server(list(script))
    app = Starlette(routes=[Route("/v1/{path:path}", server.answer, methods=["GET", "POST"])])
    sock = bind("127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    ready = asyncio.Future[ServerHandle]()
    async with asyncio.timeout(60), task_group() as group:
        group.create_task(serve(app, sock, on_ready=ready.set_result, signals=False))
        handle = await ready
        try:
            yield server
        finally:
            handle.stop()


@asynccontextmanager
async def gateway_to(url: str, **facts: Any) -> AsyncGenerator[EndpointGateway]:
    endpoint = Endpoint(url, "their-model", **{"api_key": KEY, **facts})
    async with HttpClients() as clients, EndpointGateway(endpoint, clients) as gateway:
        yield gateway


async def episode(agent: Any, *script: Any, **facts: Any) -> tuple[Episode, Server]:
    """What one episode of an agent comes to."""
    async with served(*script) as server, gateway_to(server.url, **facts) as gateway:
        workflow = EndpointWorkflow(agent, gateway)
        run = await run_episode(workflow, AbsentEngine(), {}, SPEC, limits=LimitsConfig(seconds=30))
    return run.episode, server


async def ask(client: AsyncOpenAI, **said: Any) -> Any:
    return await client.chat.completions.create(model="policy", messages=[USER], **said)


class Asks:
    """Asks once with these parameters; 1 for "ok"."""

    def __init__(self, retries: int = 0, **said: Any) -> None:
        self.retries, self.said = retries, said

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        answer = await ask(client.with_options(max_retries=self.retries), **self.said)
        return float(answer.choices[0].message.content == "ok")


class Returns:
    """Asks, if it can, and returns something."""

    def __init__(self, value: Any, n_calls: int = 1) -> None:
        self.value, self.n_calls = value, n_calls

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> Any:
        for _ in range(self.n_calls):
            with suppress(openai.APIStatusError):
                await ask(client.with_options(max_retries=0))
        return self.value


@pytest.mark.parametrize("way", ["inside", "key", "path"])
async def test_calls_go_on_with_the_endpoints_model_and_key(way: str) -> None:
    gconfig = GenerationHyperparameters(max_new_tokens=9, temperature=0.5, max_tokens=99)
    async with (
        served("ab", "a b c") as server,
        gateway_to(server.url, gconfig=gconfig) as gateway,
        gateway.session() as session,
    ):
        client = {
            "inside": lambda: gateway.client(session),
            "key": lambda: AsyncOpenAI(api_key=session.key, base_url=f"{gateway.url}/v1"),
            "path": lambda: AsyncOpenAI(api_key="none", base_url=gateway.base_url(session)),
        }[way]()
        answer = await ask(client)
        pieces = [piece async for piece in await ask(client, stream=True, max_tokens=3)]
        if way != "inside":
            await client.close()
    assert answer.choices[0].message.content == "ab"
    assert [piece.choices[0].delta.content for piece in pieces] == ["a", "b", "c"]
    first, second = server.calls
    assert first.body == {
        "model": "their-model",
        "messages": [USER],
        "temperature": 0.5,
        "max_completion_tokens": 9,
    }
    assert (second.body["max_tokens"], "max_completion_tokens" in second.body) == (3, False)
    assert session.key not in str(server.calls)
    assert session.counts == {"calls": 2, "failed_calls": 0, "retries": 0}


async def test_other_dialects_go_on_to_their_own_routes() -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    answer = Response(orjson.dumps(message), media_type="application/json")
    async with (
        served(answer) as server,
        gateway_to(server.url) as gateway,
        gateway.session() as session,
        AsyncAnthropic(api_key=session.key, base_url=gateway.base_url(session)) as client,
    ):
        await client.messages.create(model="policy", max_tokens=5, messages=[USER])
    [call] = server.calls
    assert (call.path, call.headers["x-api-key"]) == ("/v1/messages", KEY)
    assert (call.body["model"], call.body["max_tokens"]) == ("their-model", 5)


async def test_an_answer_is_worth_what_the_agent_says() -> None:
    ended, server = await episode(Asks(), "ok")
    assert (ended.outcome, ended.reward, ended.versions) == ("ok", 1.0, None)
    assert ended.metrics == {"calls": 1, "failed_calls": 0, "retries": 0}
    assert server.calls[0].body["temperature"] == 1.0


async def test_429_is_tried_again_when_the_endpoint_says() -> None:
    ended, server = await episode(Asks(retries=1), refusal(429, headers={"retry-after": "1"}))
    assert (ended.outcome, ended.reward) == ("ok", 1.0)
    assert ended.metrics == {"calls": 1, "failed_calls": 1, "retries": 1}
    first, second = server.calls
    assert second.at - first.at >= 0.95
    assert second.body == first.body


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
@pytest.mark.parametrize("agent", [Asks(), Returns(1.0)], ids=["raises", "swallows"])
async def test_failures_of_the_endpoint_say_nothing_about_the_policy(
    agent: Any, status: int
) -> None:
    ended, _ = await episode(agent, refusal(status))
    assert (ended.outcome, ended.reward) == ("inference_error", None)
    assert ended.failure is not None
    assert f"the endpoint answered {status}" in ended.failure.message


async def test_what_the_agent_asks_wrongly_is_its_own_failure() -> None:
    ended, _ = await episode(Asks(), refusal(400, param="messages"))
    assert (ended.outcome, ended.reward) == ("workflow_error", None)
    ended, _ = await episode(Returns(0.5), refusal(400, code="context_length_exceeded"))
    assert (ended.outcome, ended.reward) == ("truncated", 0.5)


async def test_the_endpoints_key_is_in_no_failure() -> None:
    ended, _ = await episode(Asks(), refusal(403, message=f"the key {KEY} may not"))
    assert "the key *** may not" in str(ended.failure)
    assert KEY not in str(ended)
    assert KEY not in repr(Endpoint("http://x/v1", "m", KEY))


async def test_what_an_agent_leaves_is_given_up_at_the_endpoint() -> None:
    """S23."""
    async with (
        served(never) as server,
        gateway_to(server.url) as gateway,
        gateway.session() as session,
        asyncio.TaskGroup() as group,
    ):
        call = group.create_task(ask(gateway.client(session)))
        await until(lambda: len(server.calls) == 1)
        call.cancel()
        await until(lambda: server.left == 1)


async def test_silence_of_the_endpoint_is_a_failure() -> None:
    ended, server = await episode(Asks(), never, request_seconds=0.2)
    assert ended.outcome == "inference_error"
    assert "said nothing for 0.2 s (rollout.request_timeout_seconds)" in str(ended.failure)
    assert server.left == 1


async def test_an_endpoint_that_breaks_off_is_a_failure() -> None:
    async def breaks(server: Server, request: Request) -> Response:
        return Response(b"{}", headers={"content-length": "100"}, media_type="application/json")

    ended, _ = await episode(Asks(), breaks)
    assert ended.outcome == "inference_error"
    assert "broke off" in str(ended.failure)


@pytest.mark.parametrize(
    ("value", "n_calls", "outcome", "reward"),
    [
        (True, 1, "ok", 1.0),
        (float("nan"), 1, "reward_error", None),
        (None, 1, "reward_error", None),
        ([1.0], 1, "reward_error", None),
        ({"c": 1.0}, 1, "reward_error", None),
        (1.0, 0, "rejected", None),
    ],
)
async def test_what_an_agent_may_return(
    value: Any, n_calls: int, outcome: str, reward: float | None
) -> None:
    ended, _ = await episode(Returns(value, n_calls))
    assert (ended.outcome, ended.reward) == (outcome, reward)


class Posts:
    """Posts a reward after each of its calls."""

    def __init__(self, rewards: Sequence[float]) -> None:
        self.rewards = rewards
        self.statuses: list[int] = []

    async def run(self, data: dict[str, Any], client: AsyncOpenAI, http_client: Any) -> None:
        for reward in self.rewards:
            await ask(client)
            headers = {"authorization": f"Bearer {client.api_key}"}
            url = "http://any/rl/set_reward"
            posted = await http_client.post(url, json={"reward": reward}, headers=headers)
            self.statuses.append(posted.status_code)


async def test_a_reward_may_be_posted_and_only_one() -> None:
    once, twice = Posts([0.25]), Posts([0.25, 1.0])
    ended, _ = await episode(once)
    assert (ended.outcome, ended.reward, once.statuses) == ("ok", 0.25, [200])
    await episode(twice)
    assert twice.statuses == [200, 400]


async def test_a_key_opens_nothing_after_its_episode() -> None:
    async with served() as server, gateway_to(server.url) as gateway:
        async with gateway.session() as session:
            client = gateway.client(session)
            await ask(client)
        with pytest.raises(openai.AuthenticationError):
            await ask(client)
    assert len(server.calls) == 1


async def test_what_would_fail_every_episode_fails_before_the_first() -> None:
    async with served() as server:
        with pytest.raises(RequestError, match=r"answered 401: the key was refused.*api_key_env"):
            async with gateway_to(server.url, api_key="sk-wrong"):
                pass
        with pytest.raises(RequestError, match="no key was sent"):
            async with gateway_to(server.url, api_key=None):
                pass
    with pytest.raises(ServerError, match=r"cannot reach .*inference\.base_url"):
        async with gateway_to(server.url):
            pass


async def test_sampling_that_the_protocol_has_no_word_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"eval_gconfig\.top_k cannot be asked of an endpoint"):
        Endpoint("http://x/v1", "m", gconfig=GenerationHyperparameters(top_k=5))


class NeedsEngine:
    async def run(self, data: dict[str, Any], engine: Any) -> float:
        return 1.0


async def test_an_agent_that_needs_token_ids_is_refused_at_once() -> None:
    gateway = EndpointGateway(Endpoint("http://x/v1", "m"), HttpClients())
    with pytest.raises(ConfigError, match="an endpoint gives no token ids"):
        EndpointWorkflow(NeedsEngine(), gateway)
