"""The inference servers of a run and the engine that asks them, kept working together."""

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from areal_agent.aio import collect, task_group
from areal_agent.config.inference import ServerConfig
from areal_agent.inference.fleet import Fleet
from areal_agent.inference.http import HttpInferenceEngine, HttpTimeouts
from areal_agent.launch.keep import keep_running
from areal_agent.launch.local import ServerGroup, launch_embedded_servers
from areal_agent.net.clients import HttpClients
from areal_agent.trainer.folder import RunFolder
from areal_agent.trainer.parts import Parts

LOOK_SECONDS = 2.0
"""Between two health checks of a server."""


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Random for each run: nobody else on the machine can use its servers."""

    control: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    api: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


def launch_servers(
    parts: Parts, folder: RunFolder, keys: ServerKeys
) -> AbstractAsyncContextManager[ServerGroup]:
    """The servers that the settings describe; entered, they answer."""
    return launch_embedded_servers(
        parts.config.rollout.server,
        parts.model,
        n_servers=parts.n_servers,
        log_dir=folder.logs,
        control_key=keys.control,
        api_key=keys.api,
        options={
            "--tool-parser": parts.config.tool_parser,
            "--reasoning-parser": parts.config.reasoning_parser,
        },
    )


def make_engine(
    parts: Parts, servers: ServerGroup, clients: HttpClients, keys: ServerKeys
) -> HttpInferenceEngine:
    """The engine over servers that answer; not yet entered."""
    engine = HttpInferenceEngine(
        [endpoint.url for endpoint in servers.endpoints],
        clients=clients,
        model=parts.model.name,
        control_key=keys.control,
        api_key=keys.api,
        weights=parts.model,
        instance_ids=[endpoint.instance_id for endpoint in servers.endpoints],
        timeouts=HttpTimeouts(
            request_seconds=parts.config.rollout.request_timeout_seconds,
            update_seconds=parts.config.rollout.server.update_timeout_seconds,
        ),
    )
    if parts.config.rollout.server.max_restarts:
        engine.fleet.expect_back()
    return engine


async def keep_servers(servers: ServerGroup, fleet: Fleet, config: ServerConfig) -> None:
    """Replace servers that die or hang, for as long as the settings allow.

    Raises:
        LaunchError: none is left.
    """
    async with task_group() as group:
        looking = group.create_task(_look_after(servers, fleet, config.silence_timeout_seconds))
        await keep_running(servers, fleet, max_restarts=config.max_restarts)
        looking.cancel()


async def _look_after(servers: ServerGroup, fleet: Fleet, silence_seconds: float) -> None:
    """Kill what is of no use: its death is noticed as any other is.

    Each by itself: one that does not answer, or waits for new weights, hides no other.
    """

    async def look_after(index: int) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            error = await fleet.look_at(index, silence_seconds=silence_seconds)
            if error is not None:
                servers.kill(index, str(error))

    await collect(look_after(index) for index in range(len(servers.servers)))
