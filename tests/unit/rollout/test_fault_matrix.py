"""Whatever breaks, a run goes on or ends with an error that names it, within a time. Never a hang.

Two rows are elsewhere: a reward that hangs is in ``test_reward.py``, a full disk for records in
``test_records.py``.
"""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from rollout_support import Calls, OneCall, executor, prompts
from scripted_server import KEY, as_json, error, scripted, until
from starlette.responses import Response, StreamingResponse

from areal_agent.config.rollout_limits import GroupConfig, LimitsConfig
from areal_agent.errors import RolloutError
from areal_agent.inference.http import HttpInferenceEngine, HttpTimeouts
from areal_agent.net.clients import HttpClients
from areal_agent.rollout import context
from areal_agent.testing.fakes import FakeEngine

DEADLINE = 15.0
QUICK = {
    "limits": LimitsConfig(seconds=0.1, grace_seconds=0.05),
    "group": GroupConfig(retries=0),
    "max_consecutive_failures": 3,
}


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Alarm(BaseException):
    """What a library that is not careful may raise."""


async def hung_tool(engine, data):
    await context.call_tool(asyncio.Event().wait, timeout_seconds=None)


async def blocking_tool(engine, data):
    await context.call_tool(time.sleep, (0.5,), timeout_seconds=None)


async def code_that_blocks_the_loop(engine, data):
    time.sleep(0.12)  # noqa: ASYNC251 - this is the point
    await asyncio.sleep(1)


async def never_returns(engine, data):
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def raises(error):
    async def work(engine, data):
        raise error

    return work


FAULTS = {
    "hung tool": (hung_tool, "timeout: TimeoutError: the episode took longer than 0.1 s"),
    "blocking tool": (blocking_tool, "timeout: TimeoutError: the episode took longer"),
    "blocked loop": (code_that_blocks_the_loop, "timeout: TimeoutError: the episode took longer"),
    "never returns": (never_returns, "timeout: TimeoutError: the episode took longer"),
    "BaseException": (raises(Alarm("ring")), "workflow_error: Alarm: ring"),
    "SystemExit": (raises(SystemExit(3)), "workflow_error: SystemExit: 3"),
    "GeneratorExit": (raises(GeneratorExit()), "workflow_error: GeneratorExit"),
    "no text": (raises(Unspeakable()), "workflow_error: Unspeakable: <its text could not be had"),
    "exception group": (
        raises(ExceptionGroup("two", [ValueError("first"), KeyError("second")])),
        "workflow_error: ValueError: first",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_workflow_that_always_fails_ends_the_run_by_name(fault):
    work, named = FAULTS[fault]
    async with asyncio.timeout(DEADLINE), executor(Calls(work), **QUICK) as running:
        with pytest.raises(RolloutError) as caught:
            await running.next_batch()
    assert "episodes in a row failed" in str(caught.value)
    assert named in str(caught.value)
    assert [task.get_name() for task in asyncio.all_tasks() if task.done()] == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_workflow_that_fails_once_costs_one_episode(fault):
    work, _ = FAULTS[fault]
    failing = iter([True])

    async def once(engine, data):
        if next(failing, False):
            return await work(engine, data)
        return await OneCall().arun_episode(engine, data)

    limits = LimitsConfig(seconds=0.4 if fault == "blocking tool" else 0.1, grace_seconds=0.05)
    async with (
        asyncio.timeout(DEADLINE),
        executor(Calls(once), prompts(4), group_size=3, **{**QUICK, "limits": limits}) as running,
    ):
        batch = await running.next_batch()
        assert sum(len(group.episodes) for group in batch.groups) >= 8


def broken(_):
    raise KeyError("no such field")


def leaves(_):
    raise SystemExit(0)


async def is_async():
    return False


FILTERS = [
    (broken, "should_accept failed: KeyError: 'no such field'"),
    (leaves, "should_accept failed: SystemExit: 0"),
    (
        lambda _: is_async(),
        "expected True or False from should_accept, got <coroutine",
    ),
    (lambda group: "no", "expected True or False from should_accept, got 'no'"),
]


@pytest.mark.parametrize(("broken", "message"), FILTERS)
async def test_the_filter_raises(broken, message):
    """Or gives no answer, which must not pass for one."""
    async with (
        asyncio.timeout(DEADLINE),
        executor(should_accept=broken, max_empty_rounds=1) as running,
    ):
        with pytest.raises(RolloutError, match=message):
            await running.next_batch()
        assert running.stats().dropped_why == {"filter_error": 4}


def half(_):
    async def body():
        yield b'{"choices": [{"text": "", "finish_re'
        raise ConnectionResetError("the server ends here")

    return StreamingResponse(body(), media_type="application/json")


ANSWERS = {
    "500": lambda _: error(500, "out of order"),
    "garbage": lambda _: Response(b"\x00\xffnot json", media_type="application/json"),
    "wrong shape": lambda _: as_json({"choices": [{"token_ids": "many"}]}),
    "half a body": half,
}
TIMES = HttpTimeouts(request_seconds=0.6, retry_seconds=0.2)


@asynccontextmanager
async def served(server, **kwargs):
    """A run whose engine is a server over HTTP."""
    settings = {"max_consecutive_failures": 4, "group": GroupConfig(retries=0), **kwargs}
    async with (
        asyncio.timeout(DEADLINE),
        HttpClients() as clients,
        HttpInferenceEngine(
            [server.url], clients=clients, model="fake", control_key=KEY, timeouts=TIMES
        ) as engine,
        executor(engine=engine, **settings) as running,
    ):
        yield running


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_server_that_answers_nonsense(answer):
    """For ever: the run ends by name. Once: the call is tried again, or the episode is."""
    async with scripted() as server, served(server) as running:
        server.next_answers += [ANSWERS[answer](n) for n in range(400)]
        with pytest.raises(RolloutError, match="inference_error"):
            await running.next_batch()
    patient = {"group": GroupConfig(retries=2), "max_consecutive_failures": 50}
    async with scripted() as server, served(server, **patient) as running:
        server.next_answers.append(ANSWERS[answer](0))
        assert len((await running.next_batch()).groups) == 4


async def test_a_server_that_answers_nothing():
    async with scripted() as server, served(server) as running:
        server.alive.clear()
        with pytest.raises(RolloutError, match="inference_error"):
            await running.next_batch()
        server.alive.set()


async def test_a_server_that_is_killed_in_the_midst_of_a_request():
    fake = FakeEngine()
    fake.hold()
    async with AsyncExitStack() as life:
        server = await life.enter_async_context(scripted(fake))
        async with served(server) as running:
            await until(lambda: fake.running)
            await life.aclose()
            with pytest.raises(RolloutError, match="inference_error"):
                await running.next_batch()


async def test_more_calls_than_the_pool_has_connections():
    """Waiting for a connection is no failure."""
    served_at_once = 0

    async def answer(reader, writer):
        nonlocal served_at_once
        served_at_once += 1
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    async def work(engine, data):
        client = await context.get_httpx_client()
        assert (await client.get(url)).text == "ok"
        return await OneCall().arun_episode(engine, data)

    limited = httpx.Limits(max_connections=2)
    async with (
        asyncio.timeout(DEADLINE),
        server,
        HttpClients() as clients,
        httpx.AsyncClient(limits=limited, timeout=None) as small,
    ):
        clients.external = lambda: small
        with context.use_clients(clients):
            async with executor(Calls(work), prompts(8), consumer_batch_size=8) as running:
                assert len((await running.next_batch()).groups) == 8
                assert running.stats().outcomes == {"ok": 16}
    assert served_at_once == 16


@pytest.mark.parametrize("hours", [-24, 24])
async def test_the_clock_is_set(hours, monkeypatch):
    """Limits follow a clock that nobody sets; only what is shown follows the other."""
    real = time.time
    async with (
        asyncio.timeout(DEADLINE),
        executor(limits=LimitsConfig(seconds=5), max_head_offpolicyness=1) as running,
    ):
        first = await running.next_batch()
        monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        running.on_version(0)
        second = await running.next_batch()
        assert len(first.groups) == len(second.groups) == 4
        assert {episode.outcome for episode in second.episodes} == {"ok"}
        assert all(0 <= episode.seconds < 5 for episode in second.episodes)
