"""What a run measures of itself while it trains: throughput, overlap, ages."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from areal_agent.evaluation.evaluator import EvalResult
from areal_agent.stats.display import StepProgress
from areal_agent.stats.outcomes import counts_under, outcome_facts
from areal_agent.stats.overlap import (
    Span,
    covered,
    covered_between,
    difference,
    intersection,
    overlap_possible,
    overlap_share,
    union,
)
from areal_agent.trainer.run import Run
from areal_agent.trainer.summary import RunSummary


@dataclass(frozen=True, slots=True)
class EndedStep:
    """A step as it was when it ended."""

    step: int
    """Steps done, this one included."""
    metrics: dict[str, float]
    trainer_busy: float
    """Seconds."""
    seconds: float
    """Since the step before ended."""


class Progress:
    """Follows one run, step by step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._counts: dict[str, dict[str, Any]] = {}
        self._live: dict[str, dict[str, Any]] = {}
        self._server_spans: list[Span] = []
        self._server_busy = 0.0
        self._active = 0.0
        self._evaluations: list[Span] = []
        self._server_tokens = 0.0
        self._trainer_calls = 0
        self._step_started = time.perf_counter()
        self._train: list[float] = []
        self._publish: list[float] = []
        self._staleness_max = 0
        self._versions_max = 0

    async def begin(self) -> None:
        """Start counting from here: what the servers did before is not training."""
        await self._poll_servers()
        self._trainer_calls = len(self._run.backend.busy_spans)
        self._step_started = time.perf_counter()

    def end_step(self, metrics: Mapping[str, float]) -> "EndedStep":
        """Take in that a step has just ended. Waits for nothing."""
        spans = self._run.backend.busy_spans[self._trainer_calls :]
        self._trainer_calls += len(spans)
        self._train.append(metrics["timeperf/update"])
        self._publish.append(metrics.get("timeperf/publish", 0.0))
        self._staleness_max = max(self._staleness_max, int(metrics["staleness/max"]))
        self._versions_max = max(self._versions_max, int(metrics["staleness/versions_in_batch"]))
        now = time.perf_counter()
        seconds, self._step_started = now - self._step_started, now
        return EndedStep(self._run.step, dict(metrics), covered(spans), seconds)

    async def measure(self, ended: "EndedStep") -> tuple[StepProgress, dict[str, float]]:
        """Ask the servers what they did since the last call; returns what to show, and metrics.

        Called once for each ended step, in order.
        """
        busy, tokens = await self._poll_servers()
        executor = self._run.executor
        limit = {} if executor is None else {"rollout/concurrency": executor.stats().limit}
        active = self._active_seconds()
        trained = ended.metrics.get("update/tokens", 0.0)
        progress = StepProgress(
            step=ended.step,
            reward=ended.metrics["rollout/reward"],
            staleness=ended.metrics["staleness/max"],
            server_tokens_per_second=tokens / ended.seconds,
            trainer_tokens_per_second=trained / ended.trainer_busy if ended.trainer_busy else 0.0,
            seconds=ended.seconds,
            outcomes=outcome_facts(
                counts_under(ended.metrics, "rollout/outcome/"),
                counts_under(ended.metrics, "rollout/dropped/"),
                wrong=ended.metrics.get("rollout/zero_rewards", 0.0),
            ),
        )
        return progress, ended.metrics | {
            "timeperf/step": ended.seconds,
            "timeperf/server_busy": busy,
            "timeperf/episodes_in_flight": active,
            "timeperf/trainer_busy": ended.trainer_busy,
            "throughput/server_tokens_per_second": progress.server_tokens_per_second,
            "throughput/trainer_tokens_per_second": progress.trainer_tokens_per_second,
            "servers/up": self._run.engine.fleet.n_up,
            "servers/restarts": self._run.engine.fleet.restarts,
            "servers/running": self._sum("running"),
            "servers/waiting": self._sum("waiting"),
            **limit,
        }

    def summary(
        self, before: EvalResult | None, after: EvalResult | None, greedy: EvalResult | None
    ) -> RunSummary:
        """Sum up the run."""
        run, config = self._run, self._run.config
        start, end = run.first_rollout_at or 0.0, run.last_update_at or 0.0
        stats = None if run.executor is None else run.executor.stats()
        return RunSummary(
            eval_before=None if before is None else before.mean,
            eval_before_stderr=None if before is None else before.stderr,
            eval_after=None if after is None else after.mean,
            eval_after_stderr=None if after is None else after.stderr,
            eval_after_greedy=None if greedy is None else greedy.mean,
            eval_problems=0 if after is None else after.n_scored,
            steps=run.step,
            version=run.version,
            train_seconds=max(end - start, 0.0),
            overlap_share=overlap_share(
                run.backend.busy_spans, self._server_spans, window=(start, end)
            ),
            overlap_possible=overlap_possible(
                covered_between(self._active_spans(), run.batches_ready_at[: len(self._train)]),
                self._train,
                self._publish,
                max_head_offpolicyness=config.rollout.max_head_offpolicyness,
                server_share=self._server_share(),
            ),
            versions_spanned_max=self._versions_max,
            staleness_max=self._staleness_max,
            max_head_offpolicyness=config.rollout.max_head_offpolicyness,
            episodes={} if stats is None else stats.outcomes,
            zero_rewards=0 if stats is None else stats.zero_rewards,
            groups_dropped={} if stats is None else stats.dropped_why,
            loop_lag_p99_ms=run.loop_lag_p99_ms,
            seed=config.seed,
            run_folder=str(run.folder.root),
            model_folder=str(run.folder.final),
        )

    def evaluated(self, start: float, end: float) -> None:
        """Note when an evaluation ran: what the servers did then is not training."""
        self._evaluations.append((start, end))

    def _active_spans(self) -> list[Span]:
        """When training episodes were in flight and no evaluation was."""
        executor = self._run.executor
        active = [] if executor is None else executor.active_spans()
        return difference(active, self._evaluations)

    def _active_seconds(self) -> float:
        """Seconds with episodes in flight since the last call."""
        total = covered(self._active_spans())
        new, self._active = total - self._active, total
        return new

    def _server_share(self) -> float:
        """Share of the time with episodes in flight in which a server was generating."""
        active = self._active_spans()
        seconds = covered(active)
        return covered(intersection(active, self._server_spans)) / seconds if seconds else 0.0

    def _sum(self, count: str) -> float:
        """A count over the servers that answered the last poll."""
        return sum(float(one[count]) for one in self._live.values())

    async def _poll_servers(self) -> tuple[float, float]:
        """Seconds that the servers were busy, and tokens they sampled, since the last call."""
        answers = await self._run.engine.stats()
        self._live = {name: one for name, one in answers.items() if one}  # {}: no answer
        self._counts |= self._live  # servers that are gone did what they did
        counts = self._counts.values()
        spans = [(float(a), float(b)) for one in counts for a, b in one["busy_spans"]]
        self._server_spans = union([*self._server_spans, *spans])
        busy = sum(float(one["busy_seconds"]) for one in counts) / self._run.parts.n_servers
        tokens = sum(float(one["generated_tokens"]) for one in counts)
        new_busy, self._server_busy = busy - self._server_busy, busy
        new_tokens, self._server_tokens = tokens - self._server_tokens, tokens
        return new_busy, new_tokens
