"""The client of the servers: loops, closing, cancellation (S24)."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from http_support import ask, engine_for, pair
from scripted_server import KEY, scripted, until

from areal_agent.errors import (
    ServerError,
)
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.net.clients import HttpClients

# Lifetimes (S24)


async def test_leaving_ends_what_is_in_flight():
    async with scripted() as server:
        server.fake.hold()
        async with asyncio.TaskGroup() as group, engine_for(server) as engine:
            waiting = group.create_task(swallow(engine))
            await until(lambda: server.fake.running)
        assert "the engine was closed" in waiting.result()
        server.fake.release()


async def swallow(engine):
    try:
        await engine.agenerate(ask())
    except ServerError as error:
        return str(error)


def test_one_engine_in_two_loops():
    clients = HttpClients()

    async def once():
        async with scripted() as server:
            engine = HttpInferenceEngine(
                [server.url], clients=clients, model="fake", control_key=KEY
            )
            async with clients, engine:
                return list((await engine.agenerate(ask())).output_tokens)

    assert asyncio.run(once()) == [7, 8, 9]
    assert asyncio.run(once()) == [7, 8, 9]


def test_clients_say_which_loop_they_belong_to():
    clients = HttpClients()

    async def leak():
        await clients.__aenter__()

    async def use():
        clients.internal()

    async def close():
        await clients.__aexit__(None, None, None)

    asyncio.run(leak())
    with pytest.raises(RuntimeError, match="belong to another event loop"):
        asyncio.run(use())
    asyncio.run(close())
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(use())


def test_nothing_is_left_open_under_strict_warnings(tmp_path):
    script = tmp_path / "twice.py"
    script.write_text(
        f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from scripted_server import KEY, scripted
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.net.clients import HttpClients
from areal_agent.types import ModelRequest

async def main():
    async with scripted() as server, HttpClients() as clients:
        async with HttpInferenceEngine(
            [server.url], clients=clients, model="fake", control_key=KEY
        ) as engine:
            reply = await engine.agenerate(ModelRequest(input_ids=[1]))
            print(list(reply.output_tokens))

asyncio.run(main())
asyncio.run(main())
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "[7, 8, 9]\n[7, 8, 9]\n"
    assert done.returncode == 0
    assert "Warning" not in done.stderr
    assert "unclosed" not in done.stderr.lower()


async def test_cancelling_the_caller_cancels_on_the_server():
    async with pair() as (server, engine):
        server.fake.hold()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(engine.agenerate(ask()))
            await until(lambda: server.fake.running)
            work.cancel()
        await until(lambda: not server.fake.running)
        assert server.fake.cancelled == 1
