"""A real server on a socket of its own, in the test's loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tiny_models import HeldModel, byte_tokenizer, load

from areal_agent.inference.embedded import ServeSettings, make_engine, make_state
from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.load import LoadedModel
from areal_agent.inference.server.app import make_app
from areal_agent.net.serve import ServerHandle, base_url, bind, serve

CONTROL_KEY = "control-key"
CONTROL = {"Authorization": f"Bearer {CONTROL_KEY}"}


@dataclass
class Served:
    url: str
    client: httpx.AsyncClient
    engine: Engine
    model: HeldModel
    handle: ServerHandle

    @property
    def command_waits(self) -> bool:
        """Whether something was posted to the engine's thread that it has not yet obeyed."""
        return bool(self.engine._core._commands)

    async def complete(self, **body: Any) -> dict[str, Any]:
        answer = await self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def control(self, name: str, body: dict[str, Any] | None = None) -> httpx.Response:
        if body is None:
            return await self.client.get(f"/control/{name}", headers=CONTROL)
        return await self.client.post(f"/control/{name}", json=body, headers=CONTROL)


@asynccontextmanager
async def served(
    folder: Path, *, api_key: str | None = None, host: str = "127.0.0.1", **fields: Any
) -> AsyncGenerator[Served]:
    """Serve a folder; yields once it answers, stops it afterwards."""
    model = load(folder)
    loaded = LoadedModel(model, byte_tokenizer(), 256, frozenset({1}))
    byte_tokenizer().save_pretrained(folder)
    settings = ServeSettings(model=folder, served_model_name="tiny", instance_id="me", **fields)
    sock = bind(host, 0)
    url = base_url(host, sock.getsockname()[1])
    ready = asyncio.Event()
    handles: list[ServerHandle] = []

    def on_ready(handle: ServerHandle) -> None:
        handles.append(handle)
        ready.set()

    async with make_engine(settings, loaded) as engine:
        state = make_state(settings, loaded, engine, control_key=CONTROL_KEY, api_key=api_key)

        async def finish() -> None:
            if engine.fault is None:
                await engine.abort()

        async with asyncio.TaskGroup() as group:
            group.create_task(
                serve(make_app(state), sock, on_ready=on_ready, before_exit=finish, signals=False)
            )
            async with asyncio.timeout(20):
                await ready.wait()
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                yield Served(url, client, engine, model, handles[0])
            handles[0].stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that gives no event of its own: the engine's queue, mostly."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
