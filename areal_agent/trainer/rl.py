"""Reinforcement learning: the loop of `Run`, with evaluation, saving, logging and a summary."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal

from areal_agent.aio import task_group
from areal_agent.checkpoint.freq import FrequencyControl
from areal_agent.checkpoint.saver import Saver
from areal_agent.errors import RolloutError
from areal_agent.evaluation.evaluator import EvalResult
from areal_agent.rollout.filters import ShouldAccept
from areal_agent.rollout.online import OnlineWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.stats.display import Display, make_display
from areal_agent.stats.logger import StatsLogger
from areal_agent.stats.summary import SampleDialogue
from areal_agent.trainer.build import Settings, as_loaded, open_run
from areal_agent.trainer.progress import EndedStep, Progress
from areal_agent.trainer.run import Run
from areal_agent.trainer.summary import RunSummary
from areal_agent.types import Episode

SHOWN_EVERY_SECONDS = 0.25

_EVALUATION = "evaluation"


class RLTrainer:
    """Trains a policy as the settings say.

    `train` may be called once per trainer; each call is a run of its own, with a run folder.
    """

    def __init__(self, settings: Settings, *, display: Display | None = None) -> None:
        """Take settings; nothing is started.

        Args:
            settings: a settings file, or what `load_config` gave, or an `ExperimentConfig`.
            display: where progress is shown. None chooses: live on a terminal, lines elsewhere.
        """
        self.loaded = as_loaded(settings)
        self.display = make_display() if display is None else display

    async def train(
        self,
        workflow: object = None,
        eval_workflow: object = None,
        *,
        should_accept: ShouldAccept | None = None,
    ) -> RunSummary:
        """Run the whole training.

        Args:
            workflow: an instance, a class or a name. None takes the settings' own.
            eval_workflow: the same for evaluation. None makes a second one from `workflow`
                with `eval_gconfig`; an instance given as `workflow` is used as it is.
            should_accept: gets each finished group and says whether it may be trained on. None
                takes the settings' own.

        Raises:
            ConfigError: the settings are wrong; nothing was started.
            ArealAgentError: the run ended early, with the cause.
        """
        what = workflow if workflow is not None else self.loaded.config.workflow
        with self.display as display:
            display.waiting("servers and trainer to start")
            async with open_run(self.loaded) as run:
                session = _Session(run, display, what, eval_workflow or what)
                session.should_accept = should_accept
                return await session.train()


class _Session:
    """One training run from its first evaluation to its summary."""

    def __init__(self, run: Run, display: Display, workflow: object, eval_workflow: object) -> None:
        config = run.config
        self.run = run
        self.display = display
        self.workflow = run.parts.workflow(workflow, config.gconfig)
        self.eval_workflow = run.parts.workflow(eval_workflow, config.eval_gconfig)
        greedy = config.eval_gconfig.new(greedy=True)
        self.greedy_workflow = run.parts.workflow(eval_workflow, greedy)
        self.evaluator = run.evaluator()
        self.eval_due = FrequencyControl.of(config.evaluator)
        self.saver = Saver(config.saver, run.folder.checkpoints, export=run.export)
        self.progress = Progress(run)
        self.should_accept: ShouldAccept | None = None
        self._doing = ""

    async def train(self) -> RunSummary:
        """Evaluate, train, evaluate, sum up."""
        await self.run.parts.agents.check()
        settings = self.run.config.evaluator
        held_out = bool(self.run.parts.eval_rows)
        if isinstance(self.workflow, OnlineWorkflow):
            self.display.note(self.workflow.open())
        before = after = greedy = None
        async with self._waits_shown():
            if held_out and settings.before_train:
                before = await self._evaluate("before training", self.eval_workflow)
            async with StatsLogger(self.run.folder.metrics) as log:
                await self._loop(log)
            await self.run.export(self.run.folder.final)
            if held_out:
                after = await self._evaluate("after training", self.eval_workflow)
                if settings.greedy_after:
                    greedy = await self._evaluate("after training, greedy", self.greedy_workflow)
        summary = self.progress.summary(before, after, greedy)
        summary.write(self.run.folder.summary)
        self.display.summary(summary.table(self.run.folder), self._dialogues(before, after))
        return summary

    async def _loop(self, log: StatsLogger) -> None:
        run = self.run
        self.display.start(run.total_steps)
        await self.progress.begin()
        noting: asyncio.Task[None] | None = None
        async with (
            aclosing(run.rollouts(self.workflow, should_accept=self.should_accept)) as batches,
            task_group() as notes,
        ):
            async for batch in batches:
                self._doing = "the trainer"
                metrics = await run.update(batch)
                ended = self.progress.end_step(metrics)
                if noting is not None:
                    await self._noted(noting)
                epoch_ended = run.step % run.steps_per_epoch == 0
                last = run.step == run.total_steps
                await self.saver.save(run.step, epoch_ended=epoch_ended, last=last)
                due = self._eval_is_due(epoch_ended)
                # Without an evaluation the next update starts at once, beside these notes.
                noting = notes.create_task(self._note(log, ended, evaluate=due))
                if due:
                    await self._noted(noting)
                self._doing = ""

    async def _noted(self, noting: asyncio.Task[None]) -> None:
        """Wait until the notes of a step are made."""
        async with self.run.waits.until("the log", f"notes of step {self.run.step}"):
            await noting

    async def _note(self, log: StatsLogger, ended: EndedStep, *, evaluate: bool) -> None:
        """Measure, evaluate, log and show a step that has ended."""
        shown, metrics = await self.progress.measure(ended)
        if evaluate:
            n_problems = self.run.config.evaluator.n_problems
            result = await self._evaluate(
                f"at step {ended.step}", self.eval_workflow, n_problems=n_problems
            )
            metrics |= result.metrics("eval")
            shown = replace(shown, accuracy=result.mean)
        epoch, step = divmod(ended.step - 1, self.run.steps_per_epoch)
        await log.commit(epoch, step, ended.step - 1, metrics)
        self.display.update(shown)

    def _eval_is_due(self, epoch_ended: bool) -> bool:
        due = self.eval_due.check(epochs=int(epoch_ended), steps=1)
        return due and bool(self.run.parts.eval_rows) and self.run.step < self.run.total_steps

    async def _evaluate(
        self,
        when: str,
        workflow: RolloutWorkflow,
        *,
        n_problems: int | Literal["final"] | None = "final",
    ) -> EvalResult:
        if n_problems == "final":
            n_problems = self.run.config.evaluator.n_problems_final

        def progress(done: int, total: int) -> None:
            self._doing = f"{_EVALUATION} {when}: {done} of {total} problems"

        progress(0, len(self.run.parts.eval_rows[:n_problems]))
        started = time.time()
        async with self.run.waits.until(_EVALUATION, when):
            result = await self.evaluator.evaluate(
                workflow,
                n_problems=n_problems,
                progress=progress,
                on_episode=lambda episode: self.run.record(episode, split=f"eval {when}"),
            )
        self.progress.evaluated(started, time.time())
        self._doing = ""
        if result.n_scored == 0:
            raise RolloutError(
                f"evaluation {when}: none of {result.n_failed} episodes could be scored: "
                f"{dict(result.outcomes)}; see {self.run.folder.episodes}"
            )
        self.display.note(
            f"held-out accuracy {when}: {result.mean:.3f} ± {result.stderr:.3f} "
            f"({result.n_scored} problems, {result.n_failed} failed, {result.seconds:.1f} s)"
        )
        return result

    @asynccontextmanager
    async def _waits_shown(self) -> AsyncGenerator[None]:
        """Keep the display told of what the run waits for while the body runs."""

        async def tell() -> None:
            while True:
                executor = self.run.executor
                waits = "" if executor is None else executor.stats().waiting_for
                agents = self.workflow.waits_for() if self._doing.startswith(_EVALUATION) else ""
                servers = self.run.engine.fleet.waits_for()
                waits = servers or self._doing or waits
                self.display.waiting("; ".join(filter(None, (waits, agents))))
                await asyncio.sleep(SHOWN_EVERY_SECONDS)

        async with task_group() as group:
            teller = group.create_task(tell(), name="display")
            try:
                yield
            finally:
                teller.cancel()

    def _dialogues(
        self, before: EvalResult | None, after: EvalResult | None
    ) -> list[SampleDialogue]:
        n = self.run.config.sample_dialogues
        if after is None:
            return []
        pairs = zip_longest(before.episodes[:n] if before else [], after.episodes[:n])
        return [
            SampleDialogue(
                before=[] if old is None else self._messages(old),
                after=[] if new is None else self._messages(new),
                reward_before=None if old is None else old.reward,
                reward_after=None if new is None else new.reward,
            )
            for old, new in pairs
        ]

    def _messages(self, episode: Episode) -> list[Mapping[str, Any]]:
        if not episode.interactions:
            failure = episode.failure
            return [] if failure is None else [{"role": failure.place, "content": failure.message}]
        last = episode.interactions[-1]
        response = last.response
        reply = self.run.parts.chat.parse_reply(
            response.output_tokens, prompt_ids=response.input_tokens
        )
        return [*last.messages, reply]
