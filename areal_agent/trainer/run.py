"""A run: batches come out of `rollouts`, go into `update`, and the servers get new weights."""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from areal_agent.aio import task_group
from areal_agent.algorithms.build import build_algorithm
from areal_agent.backends.base import LossSpec
from areal_agent.backends.process import ProcessBackend
from areal_agent.data.sampler import PromptSampler
from areal_agent.data.seeds import derive_seed
from areal_agent.errors import ConfigError
from areal_agent.evaluation.evaluator import Evaluator
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.launch.reward_pool import RewardPool
from areal_agent.rollout.audit import CaptureAudit
from areal_agent.rollout.batch import GroupFate
from areal_agent.rollout.concurrency import LoadLimit, follow_load
from areal_agent.rollout.executor import Prompt, RolloutExecutor
from areal_agent.rollout.filters import GroupFilter, ShouldAccept
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.rollout.reshaped import ReshapedTurns
from areal_agent.rollout.waits import told
from areal_agent.rollout.watched import WatchedEngine
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trainer.batch_metrics import rollout_metrics
from areal_agent.trainer.first_step import FirstStep
from areal_agent.trainer.folder import RunFolder
from areal_agent.trainer.parts import Parts
from areal_agent.trainer.publish import WeightPublisher
from areal_agent.trainer.supervised import Supervision
from areal_agent.trainer.update import update_policy
from areal_agent.trajectory import RolloutBatch, collate
from areal_agent.types import Episode

logger = logging.getLogger(__name__)

FRUITLESS_WARNED = 5
"""After so many batches in a row without a signal there is a warning."""


class Run:
    """What `open_run` gives: servers that answer, a trainer that is loaded, and the loop's halves.

    ::

        async with open_run("config.yaml") as run:
            async for batch in run.rollouts(MyWorkflow()):
                metrics = await run.update(batch)
    """

    def __init__(  # noqa: PLR0913 - all that the composition root has made
        self,
        parts: Parts,
        folder: RunFolder,
        *,
        engine: HttpInferenceEngine,
        backend: ProcessBackend,
        recorder: EpisodeRecorder,
        audit: CaptureAudit,
        rewards: RewardPool,
        supervision: Supervision,
        stack: AsyncExitStack,
    ) -> None:
        self.parts = parts
        self.config = parts.config
        self.folder = folder
        self.engine = engine
        self.backend = backend
        self.step = 0
        """Batches trained on so far."""
        self.executor: RolloutExecutor | None = None
        """Runs the episodes; there once `rollouts` has been called."""
        self.first_rollout_at: float | None = None
        """``time.time()`` at the start of the first training episode."""
        self.last_update_at: float | None = None
        """``time.time()`` at the end of the last update."""
        self.batches_ready_at: list[float] = []
        """For each batch so far, ``time.time()`` when its last group was finished."""
        name, settings = self.config.algorithm.type, self.config.algorithm.model_dump(mode="json")
        self._algorithm = build_algorithm(name, settings)
        self._loss = LossSpec(name, settings)
        self._recorder = recorder
        self._audit = audit
        self._rewards = rewards
        self.waits = supervision.waits
        """What it waits for: whoever waits for something within a run says so here."""
        self._supervision = supervision
        supervision.facts |= self._facts()
        self._reshaped = ReshapedTurns()
        self._stack = stack
        self._publisher = WeightPublisher(
            backend,
            engine,
            folder.weights,
            max_probe_difference=self.config.actor.max_update_probe_difference,
            waits=self.waits,
            export_seconds=2 * self.config.actor.call_timeout_seconds,
            load_seconds=self.config.rollout.server.update_timeout_seconds,
        )
        self._first = FirstStep(
            backend,
            folder.first_step,
            tolerance=self.config.actor.max_update_probe_difference,
            is_done=not self.config.actor.check_first_step,
        )
        self._rollout_metrics: dict[str, float] = {}
        self._fruitless = 0

    @property
    def version(self) -> int:
        """Version of the weights that the servers serve."""
        return self.engine.version

    @property
    def total_steps(self) -> int:
        """Batches to train on in all."""
        return self.parts.total_steps

    @property
    def steps_per_epoch(self) -> int:
        """Batches that the training data fill once, rounded up."""
        return -(-len(self.parts.train_rows) // self.config.rollout.consumer_batch_size)

    async def rollouts(
        self, workflow: object = None, *, should_accept: ShouldAccept | None = None
    ) -> AsyncGenerator[RolloutBatch]:
        """Yield batches until `total_steps` are trained on, or the data has ended.

        Episodes run ahead of training within `rollout.max_head_offpolicyness`.

        Args:
            workflow: an instance, a class or a name. None takes the settings' own.
            should_accept: gets each finished group and says whether it may be trained on. None
                takes the settings' own.

        Raises:
            ConfigError: there is no workflow, `should_accept` is no function of a group, or
                rollouts are running already.
            RolloutError: episodes keep failing, or none gives anything to train on.
        """
        if self.executor is not None:
            raise ConfigError("this run has its rollouts already: open another run")
        agent = self._workflow(workflow)
        await self.parts.agents.check()
        executor = await self._start(agent, should_accept or self.parts.should_accept)
        temperature = self.config.gconfig.effective_temperature
        while self.step < self.total_steps:
            async with self.waits.until("rollouts", f"batch {self.step}"):
                groups = await executor.next_batch()
            if groups is None:
                return
            self.batches_ready_at.append(groups.ready_at)
            batch = collate(groups.groups, temperature=temperature)
            self._rollout_metrics = rollout_metrics(groups, batch) | executor.take_metrics()
            yield batch

    async def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Train on a batch and publish the new weights to every server; returns metrics.

        Without a single applied optimiser step there is nothing to publish: the version stays.

        Raises:
            FirstStepError: see `actor.check_first_step`.
            NonFiniteError: too many gradients in a row were not finite.
            WeightUpdateError: a server did not take the new weights.
        """
        call = self.config.actor.call_timeout_seconds
        calls = self.config.actor.ppo_n_minibatches + 3  # each has its deadline, and a margin
        async with self.waits.until("the trainer", f"update {self.step}", call * calls):
            checked = {} if self._first.is_done else await self._first.check_batch(batch)
            result = await update_policy(
                self.backend,
                self._algorithm,
                self._loss,
                batch,
                version=self.version,
                n_minibatches=self.config.actor.ppo_n_minibatches,
                seed=derive_seed("minibatches", self.config.seed, self.step),
            )
        if not self._first.is_done:
            checked |= self._first.check_step(result.first_step)
        metrics = self._rollout_metrics | checked | result.metrics
        await self._audit.settle()  # only the present weights can judge what they sampled
        metrics |= self._audit.take_metrics() | self._reshaped.take_metrics()
        metrics |= self._recorder.take_metrics() | self._rewards.take_metrics()
        metrics |= self._supervision.take_metrics()
        if result.applied_steps:
            metrics |= await self._publisher.publish(self.version + 1, batch)
        if self.executor is not None:
            if result.applied_steps:
                self.executor.on_version(self.version)
            else:
                self.executor.untrained(int(batch.group_ids.unique().numel()))
        self._tell_fruitless(rows=metrics["update/rows"])
        self.step += 1
        self.last_update_at = time.time()
        return metrics

    @property
    def loop_lag_p99_ms(self) -> float:
        """How late the event loop was since the first rollout: 99th percentile over time."""
        return self._supervision.watch.lag_p99_ms

    async def export(self, folder: Path) -> None:
        """Write the trained model as an ordinary Hugging Face folder."""
        seconds = 2 * self.config.actor.call_timeout_seconds  # it has its deadline, and a margin
        async with self.waits.until("the trainer", f"an export to {folder}", seconds):
            await self.backend.export(folder)

    def evaluator(self) -> Evaluator:
        """Make an evaluator on the held-out problems."""
        return Evaluator.of(self.engine, self.parts.eval_rows, self.config)

    def record(self, episode: Episode, *, split: str) -> None:
        """Append an episode to the run's records."""
        self._recorder.record(episode, split=split, step=self.step)

    def _record_fate(self, told: GroupFate) -> None:
        self._recorder.fate(
            told.fate,
            told.episodes,
            prompt_id=told.prompt_id,
            step=self.step,
            version=self.version,
            why=told.why,
        )

    def _tell_fruitless(self, *, rows: float) -> None:
        self._fruitless = 0 if rows else self._fruitless + 1
        if self._fruitless and self._fruitless % FRUITLESS_WARNED == 0:
            logger.warning(
                "%d batches in a row had no group with different rewards, so nothing was learnt "
                "from them: the problems are too hard or too easy, or the reward is constant",
                self._fruitless,
            )

    def _facts(self) -> dict[str, Callable[[], object]]:
        """What changes when the run makes progress."""
        return {
            "a step was finished": lambda: self.step,
            "a batch was taken": lambda: len(self.batches_ready_at),
            "weights were published": lambda: self.version,
            "the trainer answered": lambda: len(self.backend.busy_spans),
        }

    def _workflow(self, workflow: object) -> RolloutWorkflow:
        what = self.config.workflow if workflow is None else workflow
        if what is None:
            raise ConfigError("no workflow: set workflow.use, or hand one to rollouts() or train()")
        return self.parts.workflow(what, self.config.gconfig)

    async def _start(
        self, workflow: RolloutWorkflow, should_accept: ShouldAccept | None
    ) -> RolloutExecutor:
        executor = RolloutExecutor(
            WatchedEngine(self._audit.watched, self._reshaped.hear),
            GroupedRolloutWorkflow(
                workflow,
                self.config.gconfig.n_samples,
                limits=self.config.rollout.limits,
                policy=self.config.rollout.group,
                vocab_size=self.parts.vocab_size,
            ),
            self._prompts(),
            config=self.config.rollout,
            seed=self.config.seed,
            accepts=GroupFilter(
                should_accept, dynamic_sampling=self.config.rollout.dynamic_sampling
            ),
            on_episode=lambda episode: self.record(episode, split="train"),
            on_fate=self._record_fate,
        )
        self.first_rollout_at = time.time()
        self._supervision.watch.begin()
        self.executor = await self._stack.enter_async_context(executor)
        self._supervision.supervisor.parts["rollouts"] = lambda: told(executor.stats())
        await self._follow_load(executor)
        return executor

    async def _follow_load(self, executor: RolloutExecutor) -> None:
        """Have fewer episodes in flight while the servers have a queue, until the run is closed."""
        rollout = self.config.rollout
        law = LoadLimit(
            floor=rollout.min_concurrent_rollouts,
            ceiling=rollout.max_concurrent_rollouts,
            group_size=self.config.gconfig.n_samples,
        )
        if law.floor == law.ceiling:
            return
        group = await self._stack.enter_async_context(task_group())
        following = follow_load(
            law,
            ask=self.engine.load,
            in_flight=lambda: executor.stats().running_episodes,
            apply=executor.limit,
        )
        self._stack.callback(group.create_task(following, name="follow the load").cancel)

    def _prompts(self) -> "PromptSource":
        return PromptSource(self.parts, epochs=self.config.total_train_epochs)


class PromptSource:
    """The training problems in the order that seed and epoch give."""

    def __init__(self, parts: Parts, *, epochs: int | None) -> None:
        self._rows = parts.train_rows
        self._sampler = PromptSampler(len(self._rows), parts.config.seed, epochs=epochs)

    def __iter__(self) -> "PromptSource":
        """Return itself."""
        return self

    def __next__(self) -> Prompt:
        """Return the next occurrence of a prompt."""
        epoch, index = next(self._sampler)
        return f"{epoch}:{index}", epoch, index, self._rows[index]
