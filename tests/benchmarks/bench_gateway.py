"""CPU cost of a chat completion at the gateway: 64 tokens with logprobs, sampled by a stub.

Over HTTP the server's CPU time per request is measured, beside a bare starlette handler that sends
an answer of the same size; both are served by one child process and asked by one client. In process
it is the OpenAI SDK against the gateway, beside the SDK against a canned answer.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import resource
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import httpx
import orjson
import psutil
import uvicorn
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.gateway import Gateway
from areal_agent.models.load import resolve_model
from areal_agent.types import GenerationHyperparameters, ModelRequest, ModelResponse

N_TOKENS = 64
GCONFIG = GenerationHyperparameters(max_new_tokens=N_TOKENS, max_tokens=4096)
MESSAGES = [{"role": "user", "content": "Zoe has 27 eggs. Zoe buys 36 jars of 9 eggs. How many?"}]
BODY = {"model": "policy", "messages": MESSAGES, "logprobs": True}


class Stub:
    """An engine that answers at once."""

    version = 0

    async def agenerate(self, request: ModelRequest, *, on_tokens: Any = None) -> ModelResponse:
        """Return 64 tokens."""
        ids = [10 + i % 10 for i in range(N_TOKENS)]
        return ModelResponse(request.input_ids, ids, [-0.5] * N_TOKENS, [0] * N_TOKENS, "length")


def make_gateway() -> Gateway:
    """Make a gateway for the built-in model's dialogues."""
    return Gateway(ChatFormat.from_folder(resolve_model("builtin:calculator")), model="policy")


def serve(pipe: Connection, listener: socket.socket, canned: bytes, sessions: int) -> None:
    """Serve both in a child process, until the pipe is closed."""
    asyncio.run(_serve(pipe, listener, canned, sessions))


async def _serve(pipe: Connection, listener: socket.socket, canned: bytes, sessions: int) -> None:
    async def bare(request: Request) -> Response:
        orjson.loads(await request.body())
        return Response(canned, media_type="application/json")

    app = Starlette(routes=[Route("/v1/chat/completions", bare, methods=["POST"])])
    config = uvicorn.Config(
        app, http="httptools", log_level="error", access_log=False, timeout_keep_alive=600
    )
    server = uvicorn.Server(config)
    engine: Any = Stub()
    async with make_gateway() as gateway, asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener]))
        opened = [gateway.session(engine, GCONFIG, trained=True) for _ in range(sessions)]
        keys = [(await session.__aenter__()).key for session in opened]
        pipe.send((gateway.url, keys))
        await asyncio.to_thread(pipe.recv)
        for session in opened:
            await session.__aexit__(None, None, None)
        server.should_exit = True


async def load(url: str, keys: list[str], n: int, pid: int) -> float:
    """Ask n times from as many callers as there are keys; return the server's CPU-ms a request."""
    left = iter(range(n))

    async def caller(session: aiohttp.ClientSession, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        for i in left:
            body = orjson.dumps({**BODY, "user": str(i)})  # no call is the same as another
            async with session.post(url, data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    process = psutil.Process(pid)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = sum(process.cpu_times()[:2])
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(caller(session, key))
        return (sum(process.cpu_times()[:2]) - before) / n * 1000


async def over_http(urls: dict[str, str], keys: list[str], n: int, pid: int) -> dict[str, float]:
    """Best of three rounds each."""
    best: dict[str, float] = {}
    for _ in range(3):
        for name, url in urls.items():
            got = await load(f"{url}/v1/chat/completions", keys, n, pid)
            best[name] = min(got, best.get(name, got))
    return best


async def in_process(n: int, callers: int, canned: bytes) -> dict[str, float]:
    """CPU-ms per call of the SDK, on the gateway and on a canned answer.

    Best of many short rounds, each with sessions of its own: on a machine that does other things as
    well, some of them are undisturbed.
    """

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)  # without it the callers would come one after the other
        return httpx.Response(200, content=canned, headers={"content-type": "application/json"})

    async def measure(clients: list[AsyncOpenAI]) -> float:
        left = iter(range(n // 4))

        async def caller(client: AsyncOpenAI) -> None:
            for i in left:
                await client.chat.completions.create(**BODY, user=str(i))

        started = time.process_time()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(caller(client))
        return (time.process_time() - started) / (n // 4) * 1000

    best: dict[str, float] = {}
    engine: Any = Stub()
    mock: Any = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with make_gateway() as gateway, mock:
        for _ in range(16):
            opened = [gateway.session(engine, GCONFIG, trained=True) for _ in range(callers)]
            sessions = [await session.__aenter__() for session in opened]
            kinds = {
                "canned": [
                    AsyncOpenAI(api_key="x", base_url="http://x/v1", http_client=mock)
                    for _ in range(callers)
                ],
                "gateway": [gateway.client(session) for session in sessions],
            }
            for name, clients in kinds.items():
                got = await measure(clients)
                best[name] = min(got, best.get(name, got))
            for session in opened:
                await session.__aexit__(None, None, None)
    return best


async def example_answer() -> bytes:
    """What the gateway answers, for the controls to send."""
    engine: Any = Stub()
    async with (
        make_gateway() as gateway,
        gateway.session(engine, GCONFIG, trained=True) as session,
    ):
        url = f"{gateway.base_url(session)}/chat/completions"
        return (await gateway.http_client.post(url, json=BODY)).content


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    gc.collect()
    gc.freeze()  # as a run's driver does
    canned = asyncio.run(example_answer())
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(
        target=serve, args=(there, listener, canned, args.callers), daemon=True
    )
    server.start()
    try:
        url, keys = here.recv()
        urls = {"bare": f"http://127.0.0.1:{listener.getsockname()[1]}", "gateway": url}
        http = asyncio.run(over_http(urls, keys, args.n, server.pid or 0))
        here.send("stop")
    finally:
        server.join(10)
        server.kill()
    inside = asyncio.run(in_process(args.n, args.callers, canned))
    print(f"over HTTP:  bare {http['bare']:.3f} ms, gateway {http['gateway']:.3f} ms CPU a request")
    print(
        f"in process: SDK on a canned answer {inside['canned']:.3f} ms, "
        f"SDK on the gateway {inside['gateway']:.3f} ms CPU a call"
    )
    if args.json:
        facts = {
            "gateway_ms_over_bare": http["gateway"] - http["bare"],
            "inprocess_ms": inside["gateway"] - inside["canned"],
            "bare_ms": http["bare"],
            "sdk_ms": inside["canned"],
            "callers": args.callers,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
