"""The decoding loop: one thread that admits, prefills, decodes and obeys between steps."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from areal_agent.config.inference import WeightUpdateMode
from areal_agent.errors import EngineFault
from areal_agent.inference.engine.meters import Meters
from areal_agent.inference.engine.request import FinishReason, Sequence
from areal_agent.inference.engine.runner import Runner
from areal_agent.inference.engine.sampler import SamplingBatch, sample
from areal_agent.inference.engine.scheduler import Scheduler, Wave, cut

Command = Callable[[], None]


class DecodeLoop:
    """Owns the runner and the scheduler. `run` blocks a thread until `stop`.

    Other threads speak to it through `post` alone; what they post runs between two steps.
    """

    def __init__(
        self, runner: Runner, *, max_running: int, version: int, flush: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._flush = flush
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._batch: SamplingBatch | None = None
        self._stopping = False
        self.scheduler = Scheduler(runner, max_running)
        self.meters = Meters()
        self.version = version
        self.paused = False
        self.fault: BaseException | None = None

    # --- from any thread --------------------------------------------------------------------------

    def post(self, command: Command) -> None:
        """Have `command` run between steps.

        Raises:
            EngineFault: the loop has ended; it will never run.
        """
        with self._wake:
            if self.fault is not None:
                raise EngineFault(f"the engine has broken: {self.fault}") from self.fault
            if self._stopping:
                raise EngineFault("the engine has been stopped")
            self._commands.append(command)
            self._wake.notify()

    def stop(self) -> None:
        """Make `run` return after the current step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    # --- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped. An error ends it and is kept as `fault`.

        Raises:
            BaseException: whatever broke it.
        """
        try:
            with torch.inference_mode():
                while self._obey():
                    if self._has_work():
                        self._step()
                    self._flush()
        except BaseException as error:
            with self._wake:
                self.fault = error
            raise

    def _obey(self) -> bool:
        """Run what was posted; sleep while there is nothing else to do. False to end."""
        with self._wake:
            while not self._commands and not self._stopping and not self._has_work():
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
            stopping = self._stopping
        for command in commands:
            command()
        return not stopping

    def _has_work(self) -> bool:
        return not self.paused and bool(self.scheduler.running or self.scheduler.waiting)

    def _step(self) -> None:
        started = time.perf_counter()
        wave = self.scheduler.admit()
        if wave is not None:
            self._prefill(wave)
        if self.scheduler.running:
            self._decode()
        self.meters.steps += 1
        self.meters.busy(time.perf_counter() - started)

    def _prefill(self, wave: Wave) -> None:
        self._batch = None
        logits: dict[int, Tensor] = {}
        for piece in self.scheduler.pieces(wave):
            found = self._runner.prefill(piece.first_slot, piece.rows, piece.starts)
            logits.update(enumerate(found.unbind(), piece.first_slot - wave.first_slot))
        self.scheduler.copy_twins(wave)
        new = wave.leaders + [twin for twin, _ in wave.twins]
        rows = [*range(len(wave.leaders)), *(leader for _, leader in wave.twins)]
        for sequence in new:
            sequence.valid = sequence.prompt_length
            self.meters.prompt_tokens += sequence.prompt_length
            self.meters.prefix_hit_tokens += sequence.cached
        stacked = torch.stack([logits[row] for row in rows])
        batch = SamplingBatch.of(new, stacked.device)
        self._sample(stacked, batch, np.array([s.valid for s in new]), wave.first_slot)

    def _decode(self) -> None:
        running = self.scheduler.running
        tokens = np.array([s.tokens[-1] for s in running])
        positions = np.array([s.valid for s in running])
        logits = self._runner.decode(tokens, positions)
        for sequence in running:
            sequence.valid += 1
        if self._batch is None:
            self._batch = SamplingBatch.of(list(running), logits.device)
        self._sample(logits, self._batch, positions + 1, 0)

    def _sample(
        self, logits: Tensor, batch: SamplingBatch, positions: np.ndarray, first_slot: int
    ) -> None:
        tokens, logprobs = sample(logits, batch, positions)
        version = self.version
        ended: list[tuple[int, FinishReason]] = []
        for i, sequence in enumerate(batch.sequences):
            reason = sequence.append(tokens[i], logprobs[i], version)
            if reason is not None:
                ended.append((first_slot + i, reason))
        self.meters.generated_tokens += len(tokens)
        for slot, reason in reversed(ended):  # from behind: release moves the last one forward
            self._end(slot, reason)

    def _end(self, slot: int, reason: FinishReason) -> None:
        sequence = self.scheduler.release(slot)
        self._batch = None
        self.meters.requests += 1
        sequence.finish(reason)

    # --- commands: call these in the thread only --------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Queue a request, unless its caller has left meanwhile."""
        if not sequence.cancelled:
            self.scheduler.waiting.append(sequence)

    def abort(self, ids: frozenset[str] | None = None, *, waiting: bool = True) -> int:
        """End requests with what they have; None means all. Returns how many."""
        chosen = [
            slot
            for slot, s in enumerate(self.scheduler.running)
            if ids is None or s.request.id in ids
        ]
        for slot in reversed(chosen):
            self._end(slot, "abort")
        if not waiting:
            return len(chosen)
        queued = [s for s in self.scheduler.waiting if ids is None or s.request.id in ids]
        for sequence in queued:
            self.scheduler.waiting.remove(sequence)
            self.meters.requests += 1
            sequence.finish("abort")
        return len(chosen) + len(queued)

    def cancel(self, sequence: Sequence) -> None:
        """Drop one request: its caller has left."""
        sequence.cancelled = True
        if sequence in self.scheduler.running:
            self._end(self.scheduler.running.index(sequence), "abort")
        elif sequence in self.scheduler.waiting:
            self.scheduler.waiting.remove(sequence)
            self.meters.requests += 1
            sequence.finish("abort")

    def install(self, weights: Any, version: int, mode: WeightUpdateMode) -> None:
        """Serve prepared weights from the next step on."""
        if mode == "abort":
            self.abort(waiting=False)
        self._runner.install(weights)
        self.version = version
        self.meters.updates += 1
        self.scheduler.forget_prefixes()
        if mode == "recompute":
            self._recompute()

    def _recompute(self) -> None:
        running = self.scheduler.running
        rows = [s.tokens[: s.valid] for s in running]
        for piece in cut(0, rows, [0] * len(rows), self._runner.prefill_tokens):
            self._runner.prefill(piece.first_slot, piece.rows, piece.starts)
        for sequence in running:
            sequence.epoch = self.scheduler.epoch

    def score(self, rows: list[list[int]], temperature: float) -> tuple[list[list[float]], int]:
        """Logprobs of given ids, and the version of the weights that gave them."""
        return self._runner.score(rows, temperature), self.version
