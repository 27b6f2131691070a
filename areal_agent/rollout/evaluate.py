"""Run one episode on each of many rows: evaluation, without gate and without training seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_agent.aio import collect
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.types import Episode


async def run_all(
    engine: InferenceEngine,
    workflow: RolloutWorkflow,
    rows: Sequence[Mapping[str, Any]],
    *,
    max_concurrent: int,
    limits: LimitsConfig,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run the rows, at most `max_concurrent` at once, and return the episodes in the rows' order.

    Seeds derive from `seed` and a row's place: the same call on the same weights repeats.
    `progress` hears of each episode's end: how many are done, and how many there are.
    `on_episode` hears of each as soon as it ends, also when it is cancelled.
    """
    pending = enumerate(rows)
    episodes: dict[int, Episode] = {}

    def ended(run: EpisodeRun) -> None:
        if on_episode is not None:
            on_episode(run.episode)

    async def work() -> None:
        for i, row in pending:
            spec = EpisodeSpec(
                id=f"eval:{i}", prompt_id=f"eval:{i}", seed=seed, epoch=0, index=i, is_eval=True
            )
            run = await run_episode(workflow, engine, row, spec, limits=limits, on_end=ended)
            episodes[i] = run.episode
            if progress is not None:
                progress(len(episodes), len(rows))

    await collect([work() for _ in range(min(max_concurrent, len(rows)))])
    return [episodes[i] for i in range(len(rows))]
