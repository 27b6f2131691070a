"""Puts a run under supervision: who watches it, who may ask, and what counts as progress."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from areal_agent.aio import task_group
from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.rollout.deadlines import Wait, Waits
from areal_agent.rollout.live import LiveEpisodes, list_episodes
from areal_agent.rollout.loop_watch import LoopWatch
from areal_agent.rollout.stall_report import Describe, StallReport
from areal_agent.rollout.stall_socket import StallSocket
from areal_agent.rollout.supervisor import Facts, Supervisor
from areal_agent.trainer.folder import RunFolder


@dataclass(slots=True)
class Supervision:
    """What a run tells its supervisor, and hears from it."""

    waits: Waits
    supervisor: Supervisor
    watch: LoopWatch
    facts: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    """What changes when there is progress, by what it then means."""

    def attend(
        self, parts: Mapping[str, Describe], engine: HttpInferenceEngine | None = None
    ) -> None:
        """Everything has been started: ask these parts for reports, and the engine's servers.

        Args:
            parts: who is asked for a report, by name.
            engine: whose servers may be asked whether they sample.
        """
        self.supervisor.parts |= parts
        if engine is not None:
            self.supervisor.sampled = partial(_tokens_sampled, engine)

    def closing(self) -> None:
        """All that is waited for from now on is the end of what was started."""
        self.waits.open.append(Wait("what was started", "its end", self.waits.clock(), None))

    def take_metrics(self) -> dict[str, float]:
        """Return how late the event loop was since the last call."""
        return self.watch.take_metrics()


@asynccontextmanager
async def supervised(config: SupervisorConfig, folder: RunFolder) -> AsyncGenerator[Supervision]:
    """Watch the body and the episodes that it starts; ``areal-agent stall`` may ask about it.

    Entered before anything is started and left when all is closed, so that it may be asked then.

    Args:
        config: when what is done.
        folder: of the run.

    Raises:
        StallError: it made no progress for too long.
    """
    episodes, waits = LiveEpisodes(), Waits()
    facts: dict[str, Callable[[], object]] = {}

    def now() -> Facts:
        return {name: value() for name, value in facts.items()}

    supervisor = Supervisor(config, path=folder.stall, episodes=episodes, waits=waits, facts=now)

    def asked() -> StallReport:
        loop, seconds = watch.blocked()
        return supervisor.report("asked from outside", loop=loop, blocked=seconds)

    with list_episodes(episodes), StallSocket(folder.root, asked) as listening:
        watch = LoopWatch(
            config,
            episodes=episodes,
            asked=listening,
            tell=lambda why, loop, seconds: supervisor.tell(why, loop=loop, blocked=seconds),
        )
        async with watch, task_group() as group:
            watching = group.create_task(supervisor.watch(), name="supervisor")
            try:
                yield Supervision(waits, supervisor, watch, facts)
            finally:
                watching.cancel()


async def _tokens_sampled(engine: HttpInferenceEngine) -> int | None:
    """How many tokens the servers that answer have sampled."""
    load = await engine.load()
    return None if load is None else load.tokens
