"""Episodes in, batches out: start groups as the gate admits, hand the finished ones over.

One task feeds, one task runs each group, and `next_batch` takes. All belong to the executor's task
group and end with it.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from areal_agent.aio import first_error
from areal_agent.config.inference import RolloutConfig
from areal_agent.errors import RolloutError
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.batch import Fate, GroupBatch, GroupFate, Prompt, RolloutStats
from areal_agent.rollout.budget import Budget
from areal_agent.rollout.buffer import Finished, GroupBuffer, PromptItem
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec
from areal_agent.rollout.filters import GroupFilter
from areal_agent.rollout.gate import Gate
from areal_agent.rollout.grouped import GroupedRolloutWorkflow, GroupRun
from areal_agent.rollout.tally import Tally
from areal_agent.rollout.waits import waits_for
from areal_agent.types import TRAINABLE_OUTCOMES, Episode

logger = logging.getLogger(__name__)


class RolloutExecutor:
    """Runs groups of episodes ahead of training, within the bound on staleness.

    Lifetime: an async context manager. Leaving it cancels every episode.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        workflow: GroupedRolloutWorkflow,
        sampler: Iterator[Prompt],
        *,
        config: RolloutConfig,
        seed: int,
        accepts: GroupFilter | None = None,
        on_episode: Callable[[Episode], None] | None = None,
        on_fate: Callable[[GroupFate], None] | None = None,
    ) -> None:
        """Wire things up; nothing starts before the executor is entered.

        Args:
            engine: entered by the caller, and left by the caller afterwards.
            workflow: what the episodes of one prompt do.
            sampler: prompts in the order of training; its end ends the run.
            config: bounds and budgets.
            seed: of the run.
            accepts: says which finished groups may be trained on.
            on_episode: hears of each episode as soon as it ends, cancelled ones included.
            on_fate: hears what becomes of those that may be trained on, once for each.
        """
        self._engine = engine
        self._sampler = sampler
        self._config = config
        self._seed = seed
        self._filter = GroupFilter() if accepts is None else accepts
        self._on_episode = on_episode
        self._on_fate = on_fate
        self._grouped = workflow
        self._gate = Gate(
            max_concurrent=config.max_concurrent_rollouts,
            batch_size=config.consumer_batch_size,
            max_offpolicyness=config.max_head_offpolicyness,
            group_size=workflow.group_size,
        )
        self._budget = Budget(
            max_consecutive_failures=config.max_consecutive_failures,
            max_empty_groups=config.max_empty_rounds * config.consumer_batch_size,
        )
        self._buffer = GroupBuffer()
        self._again: deque[PromptItem] = deque()
        self._progress = asyncio.Event()
        self._exhausted = False
        self._held: PromptItem | None = None
        self._more = asyncio.Event()
        self._error: RolloutError | None = None
        self._tally = Tally()
        self._unbegun: set[tuple[int, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._entered = False

    async def __aenter__(self) -> Self:
        """Start feeding; the first episodes start at the engine's version."""
        if self._entered:
            raise RuntimeError("an executor runs once: make a new one")
        self._entered = True
        self._gate.recover(self._engine.version)
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._start(self._feed())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel every episode and wait until it has ended."""
        assert self._group is not None
        group, self._group = self._group, None
        for task in list(self._tasks):
            task.cancel()
        try:
            await group.__aexit__(exc_type, exc, traceback)
        except BaseExceptionGroup as error:
            first = first_error(error)
            if first is not exc:
                raise first from error
        finally:
            for left in self._buffer.take(len(self._buffer)):
                self._settle("dropped", left.run.survivors, "run_ended")

    async def next_batch(self) -> GroupBatch | None:
        """Wait for a batch of groups that are fresh enough, and take it.

        Returns:
            The batch; a shorter one when the data has ended; None when nothing is left.

        Raises:
            RolloutError: a budget is used up (groups that were finished before are handed out
                first), or the data ended without a single usable group.
        """
        size = self._config.consumer_batch_size
        while True:
            if len(self._buffer) >= size:
                return self._take(size)
            if self._error is not None:
                raise self._error
            if self._ended:
                return self._last(size)
            self._progress.clear()
            await self._progress.wait()

    def _last(self, size: int) -> GroupBatch | None:
        if len(self._buffer):
            return self._take(size)
        if self._tally.groups["dropped"] and not self._tally.groups["consumed"]:
            head = (
                f"the data ended and none of its {self._tally.groups['dropped']} groups was usable"
            )
            raise self._budget.error(head)
        return None

    def on_version(self, version: int) -> None:
        """New weights are served everywhere: admit more, sweep what is now too old."""
        self._gate.advance(version)
        self._sweep()
        self._progress.set()

    def untrained(self, n_groups: int) -> None:
        """Give back the places of groups that were taken without making new weights."""
        for _ in range(n_groups):
            self._gate.sweep()

    def pause(self) -> None:
        """Start no more groups; what runs goes on."""
        self._gate.pause()

    def resume(self) -> None:
        """Start groups again, unless a budget was used up."""
        if self._error is None:
            self._gate.resume()

    def limit(self, episodes: int) -> None:
        """Have at most so many episodes in flight from now on; see `Gate.limit`."""
        self._gate.limit = episodes

    def active_spans(self) -> list[tuple[float, float]]:
        """When episodes were in flight, as pairs of ``time.time()``."""
        return self._gate.active_spans()

    def take_metrics(self) -> dict[str, float]:
        """Return what became of episodes and groups since the last call; see `Tally`."""
        return self._tally.take_metrics()

    def stats(self) -> RolloutStats:
        """Return counts for the display."""
        gate = self._gate
        return RolloutStats(
            version=gate.version,
            running=gate.running_groups,
            running_episodes=gate.running_episodes,
            limit=gate.limit,
            buffered=len(self._buffer),
            accepted=self._tally.groups["accepted"],
            consumed=self._tally.groups["consumed"],
            swept=self._tally.groups["swept"],
            dropped=self._tally.groups["dropped"],
            dropped_why=dict(self._tally.dropped),
            episodes=self._tally.episodes,
            output_tokens=self._tally.output_tokens,
            outcomes=dict(self._tally.outcomes),
            zero_rewards=self._tally.zero_rewards,
            waiting_for=waits_for(
                gate,
                self._grouped.workflow,
                missing=self._config.consumer_batch_size - len(self._buffer),
                has_prompts=not self._ended,
            ),
        )

    @property
    def _ended(self) -> bool:
        return (
            self._exhausted and not self._again and not self._held and not self._gate.running_groups
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _never_begun(self, item: PromptItem, _: asyncio.Task[None]) -> None:
        """Give back the places of a group that was cancelled before its first step."""
        if (item.order, item.attempt) in self._unbegun:
            self._unbegun.discard((item.order, item.attempt))
            self._free(self._grouped.group_size)
            self._gate.reject()

    async def _feed(self) -> None:
        orders = itertools.count()
        while True:
            if self._held is None and not self._exhausted:
                self._held = self._next_item(orders)
            if self._held is None and not self._again:
                self._progress.set()
                self._more.clear()
                await self._more.wait()
                continue
            await self._gate.admit()
            item = self._chosen()
            self._unbegun.add((item.order, item.attempt))
            self._start(self._run_group(item)).add_done_callback(partial(self._never_begun, item))
            # Many may be admitted at once: the first ones are to reach the servers before the
            # last ones have been started.
            await asyncio.sleep(0)

    def _next_item(self, orders: Iterator[int]) -> PromptItem | None:
        prompt = next(self._sampler, None)
        if prompt is None:
            self._exhausted = True
            return None
        prompt_id, epoch, index, data = prompt
        return PromptItem(next(orders), prompt_id, epoch, index, data)

    def _chosen(self) -> PromptItem:
        """Return what is issued again before what is new."""
        if self._again:
            return self._again.popleft()
        item, self._held = self._held, None
        assert item is not None
        return item

    async def _run_group(self, item: PromptItem) -> None:
        freed = 0
        ended_well: list[EpisodeRun] = []

        def on_free() -> None:
            nonlocal freed
            freed += 1
            self._gate.episode_done()

        def on_end(run: EpisodeRun) -> None:
            self._count(run)
            if run.episode.outcome in TRAINABLE_OUTCOMES:
                ended_well.append(run)

        spec = EpisodeSpec(
            id=f"{item.prompt_id}:{item.attempt}" if item.attempt else item.prompt_id,
            prompt_id=item.prompt_id,
            seed=self._seed,
            epoch=item.epoch,
            index=item.index,
        )
        run = None
        self._unbegun.discard((item.order, item.attempt))
        try:
            run = await self._grouped.run(
                self._engine, item.data, spec, on_end=on_end, on_free=on_free
            )
        finally:
            self._free(self._grouped.group_size - freed)
            if run is None:
                self._gate.reject()
                self._settle("dropped", ended_well, "run_ended")
        assert run is not None
        self._finish(item, run)

    def _free(self, episodes: int) -> None:
        for _ in range(episodes):
            self._gate.episode_done()

    def _count(self, run: EpisodeRun) -> None:
        self._tally.ended(run)
        if not run.for_another:
            is_first = run.attempt == 0 and not run.is_given_up
            self._budget.episode(run.episode, is_tried_again=is_first)
        if self._on_episode is not None:
            self._on_episode(run.episode)
        if run.episode.outcome not in TRAINABLE_OUTCOMES:
            self._tally.settled(run.episode)
        self._judge()

    def _settle(self, fate: Fate, runs: Sequence[EpisodeRun], why: str) -> None:
        """What becomes of these episodes of a group is known: their outcomes are final."""
        for run in runs:
            self._tally.settled(run.episode, is_stale=fate == "swept")
        if self._on_fate is not None and runs:
            ids = [run.episode.id for run in runs]
            self._on_fate(GroupFate(fate, runs[0].episode.prompt_id, ids, why))

    def _finish(self, item: PromptItem, run: GroupRun) -> None:
        group = run.group
        refusal = None if group is None else self._filter.refusal(group)
        if group is not None and refusal is None:
            self._gate.accept()
            self._tally.groups["accepted"] += 1
            self._budget.usable()
            finished = Finished(item, run, group, time.time())
            if finished.age(self._gate.version) > self._config.max_head_offpolicyness:
                self._give_back(finished)
            else:
                self._buffer.put(finished)
        else:
            self._gate.reject()
            reason = run.why_dropped if refusal is None else refusal.reason
            self._tally.drop(reason)
            self._settle("dropped", run.survivors, reason)
            self._budget.empty(refusal)
            self._judge()
        self._progress.set()

    def _judge(self) -> None:
        if self._error is None:
            self._error = self._budget.verdict()
            if self._error is not None:
                self._gate.pause()
                self._progress.set()

    def _sweep(self) -> None:
        version, bound = self._gate.version, self._config.max_head_offpolicyness
        for old in self._buffer.sweep(version, bound):
            self._give_back(old)

    def _give_back(self, old: Finished) -> None:
        """Too old to be consumed: free its place and issue its prompt again."""
        logger.info(
            "prompt %s is %d versions old, issued again",
            old.item.prompt_id,
            old.age(self._gate.version),
        )
        self._gate.sweep()
        self._tally.groups["accepted"] -= 1
        self._tally.groups["swept"] += 1
        self._settle("swept", old.run.survivors, f"{old.age(self._gate.version)} versions old")
        self._again.append(replace(old.item, attempt=old.item.attempt + 1))
        self._more.set()

    def _take(self, n: int) -> GroupBatch:
        taken = self._buffer.take(n)
        self._tally.groups["consumed"] += len(taken)
        for finished in taken:
            self._settle("trained", finished.run.survivors, "")
        version = self._gate.version
        return GroupBatch(
            groups=[finished.group for finished in taken],
            episodes=[run.episode for finished in taken for run in finished.run.runs],
            ages=[finished.age(version) for finished in taken],
            version=version,
            ready_at=max(finished.at for finished in taken),
        )
