"""CPU cost of one small POST to a local server: plain httpx, and httpx over aiohttp.

The server runs in a process of its own; the figures are the client's CPU time per request, with
`--concurrent` requests in flight, interleaved over `--repeats` rounds in one run.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import time

import aiohttp
import httpx
import httpx_aiohttp
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ANSWER = orjson.dumps(
    {"choices": [{"token_ids": list(range(48)), "logprobs": {"token_logprobs": [-0.5] * 48}}]}
)


async def answer(request: Request) -> Response:
    """Read the body, send a fixed answer."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


def serve(listener: socket.socket) -> None:
    """Serve in a child process."""
    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    config = uvicorn.Config(app, log_level="error", timeout_keep_alive=600, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


async def through_httpx(client: httpx.AsyncClient, url: str, body: bytes) -> None:
    """One request."""
    response = await client.post(url, content=body)
    orjson.loads(response.content)


async def through_aiohttp(client: aiohttp.ClientSession, url: str, body: bytes) -> None:
    """One request, without httpx: the floor."""
    async with client.post(url, data=body) as response:
        orjson.loads(await response.read())


async def measure(call, n: int, concurrent: int) -> dict[str, float]:
    """Client CPU microseconds per request, and requests per second."""
    left = iter(range(n))

    async def worker() -> None:
        for _ in left:
            await call()

    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrent):
            group.create_task(worker())
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_us": cpu / n * 1e6, "per_second": n / wall}


async def run(url: str, n: int, concurrent: int, repeats: int) -> dict[str, dict[str, float]]:
    """Measure each client in turn, several times; return each one's best."""
    body = orjson.dumps({"prompt": list(range(64)), "max_tokens": 48})
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    results: dict[str, dict[str, float]] = {}
    async with (
        httpx.AsyncClient(trust_env=False, limits=limits, timeout=60) as plain,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        httpx.AsyncClient(
            transport=httpx_aiohttp.AiohttpTransport(
                client=lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            ),
            trust_env=False,
            timeout=60,
        ) as mixed,
    ):
        calls = {
            "httpx": lambda: through_httpx(plain, url, body),
            "httpx over aiohttp": lambda: through_httpx(mixed, url, body),
            "aiohttp": lambda: through_aiohttp(session, url, body),
        }
        for _ in range(repeats):
            for name, call in calls.items():
                await measure(call, concurrent, concurrent)
                figures = await measure(call, n, concurrent)
                if name not in results or figures["cpu_us"] < results[name]["cpu_us"]:
                    results[name] = figures
    return results


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    server = multiprocessing.get_context("fork").Process(
        target=serve, args=(listener,), daemon=True
    )
    server.start()
    try:
        results = asyncio.run(run(url, args.n, args.concurrent, args.repeats))
    finally:
        server.terminate()
        server.join()
    for name, figures in results.items():
        print(f"{name:20} {figures['cpu_us']:8.0f} us CPU {figures['per_second']:8.0f} requests/s")
    if args.json:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"concurrent": args.concurrent, "clients": results, "peak_mb": peak}))


if __name__ == "__main__":
    main()
