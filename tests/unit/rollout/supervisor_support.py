"""A supervised executor whose clock the test moves."""

import time
from contextlib import asynccontextmanager

from rollout_support import executor

from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.rollout.deadlines import Waits
from areal_agent.rollout.live import LiveEpisodes, list_episodes
from areal_agent.rollout.supervisor import Supervisor


class Clock:
    """`time.monotonic`, and what the test adds."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


class Supervised:
    """A supervisor that looks when the test says so."""

    def __init__(self, path, **config):
        self.clock = Clock()
        self.episodes = LiveEpisodes()
        self.waits = Waits(self.clock)
        settings = {"report_seconds": 100, "cancel_seconds": 300, "end_seconds": 1000, **config}
        self.supervisor = Supervisor(
            SupervisorConfig(**settings), path=path, episodes=self.episodes, waits=self.waits
        )

    async def look_after(self, seconds):
        self.clock.ahead += seconds
        await self.supervisor.look()

    @asynccontextmanager
    async def running(self, workflow, **kwargs):
        """An executor from which a batch is awaited."""
        with list_episodes(self.episodes):
            waiting = self.waits.until("rollouts", "batch 0")
            async with executor(workflow, **kwargs) as running, waiting:
                yield running
