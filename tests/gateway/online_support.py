"""Online episodes on a stage, and the HTTP client of an agent that lives elsewhere."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gateway_support import GCONFIG, USER, Stage, stage

from areal_agent.config.inference import GatewayConfig
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.gateway.keys import AdminKey
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.online import OnlineWorkflow

ADMIN = "an-admin-key-of-the-tests"


@dataclass
class Elsewhere:
    """What an agent sees: the gateway's address and the admin key."""

    playing: Stage
    workflow: OnlineWorkflow
    http: httpx.AsyncClient
    group: asyncio.TaskGroup
    episode_seconds: float
    tasks: list[asyncio.Task[EpisodeRun]] = field(default_factory=list)

    def offer(self, n: int = 1, *, is_eval: bool = False, **row: Any) -> None:
        """Start the episodes of one group."""
        for sample in range(n):
            spec = EpisodeSpec(
                id=f"0:{len(self.tasks)}:{sample}",
                prompt_id=f"0:{len(self.tasks) - sample}",
                seed=1,
                epoch=0,
                index=0,
                sample=sample,
                is_eval=is_eval,
            )
            self.tasks.append(
                self.group.create_task(
                    run_episode(
                        self.workflow,
                        self.playing.engine,
                        row,
                        spec,
                        limits=LimitsConfig(seconds=self.episode_seconds),
                    )
                )
            )

    async def post(self, path: str, body: Any = None, key: str = ADMIN) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.post(path, json=body, headers=headers)

    async def start(self) -> dict[str, Any]:
        """Start a session as soon as one is on offer."""
        async with asyncio.timeout(20):
            while (answer := await self.post("/rl/start_session")).status_code == 429:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ask(self, session: dict[str, Any], text: str = "hi") -> httpx.Response:
        body = {"model": "m", "messages": [{**USER, "content": text}]}
        return await self.post("/v1/chat/completions", body, session["api_key"])


@asynccontextmanager
async def elsewhere(
    *says: Any,
    key_file: Path | None = None,
    admin: str = ADMIN,
    max_requests: int | None = None,
    episode_seconds: float = 30.0,
    **config: Any,
) -> AsyncGenerator[Elsewhere]:
    """A stage with an online workflow; episodes that are left open end with it."""
    key = AdminKey(admin, "the test")
    async with (
        asyncio.timeout(60),
        stage(*says, admin_key=AdminKey() if key_file else key, max_requests=max_requests) as here,
    ):
        here.gateway.desk.key_file = key_file
        workflow = OnlineWorkflow(here.gateway, GCONFIG, GatewayConfig(**config))
        async with (
            httpx.AsyncClient(base_url=here.gateway.url) as http,
            asyncio.TaskGroup() as group,
        ):
            there = Elsewhere(here, workflow, http, group, episode_seconds)
            try:
                yield there
            finally:
                for task in there.tasks:
                    task.cancel()
