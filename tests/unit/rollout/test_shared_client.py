"""The HTTP client that episodes share: the run's, or the loop's where there is no run (S24)."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import textwrap

import httpx

from areal_agent.aio import PerLoop, collect
from areal_agent.net.clients import HttpClients, connections_for
from areal_agent.rollout import context


class Held:
    """Says that it was closed."""

    def __init__(self):
        self.closed_in = None

    async def close(self):
        self.closed_in = asyncio.get_running_loop()


def test_a_loop_has_one_value_and_closes_it():
    made = []
    per_loop = PerLoop(lambda: made.append(Held()) or made[-1], Held.close)
    loops = []

    async def twice():
        loops.append(asyncio.get_running_loop())
        first, second = await collect([per_loop.get(), per_loop.get()])
        assert first is second
        assert first.closed_in is None

    asyncio.run(twice())
    asyncio.run(twice())
    assert [held.closed_in for held in made] == loops
    assert len(per_loop._held) == 0


async def test_the_runs_client_stands_before_the_loops():
    outside = await context.get_httpx_client()
    assert await context.get_httpx_client() is outside
    async with HttpClients() as clients:
        with context.use_clients(clients):
            assert await context.get_httpx_client() is clients.external() is not outside
    assert await context.get_httpx_client() is outside
    assert not outside.is_closed


async def test_more_calls_than_connections_wait_and_none_fails():
    n = 130
    answered = 0

    open_now, most = 0, 0

    async def serve(reader, writer):
        nonlocal answered, open_now, most
        open_now += 1
        most = max(most, open_now)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(0.001)
                answered += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        open_now -= 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30), server, HttpClients(max_episodes=9) as clients:
        client = clients.external()
        answers = await collect(client.get(f"http://127.0.0.1:{port}/") for _ in range(n))
        await clients.external().aclose()
        while open_now:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    assert {answer.status_code for answer in answers} == {200}
    assert answered == n
    assert most <= connections_for(9) < n


def test_the_pool_grows_with_the_episodes():
    assert connections_for(1) == 100
    assert connections_for(2_000) == 4_000


def test_suites_and_scripts_without_a_run_see_no_warning():
    """One loop after the other, as in test suites; Python's own checks are all on."""
    script = """
        import asyncio
        from areal_agent.rollout import context

        async def answer(reader, writer):
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def main():
            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                client = await context.get_httpx_client()
                assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
                assert await context.get_httpx_client() is client

        asyncio.run(main())
        asyncio.run(main())
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert told == []  # what is left out is asyncio's note on a slow machine


async def test_a_client_that_nobody_holds_is_left_alone():
    client = await context.get_httpx_client()
    assert isinstance(client, httpx.AsyncClient)
    del client
    gc.collect()
    assert not (await context.get_httpx_client()).is_closed
