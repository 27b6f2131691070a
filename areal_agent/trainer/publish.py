"""Carry weights from the trainer to the servers. The only place that knows both."""

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import torch

from areal_agent.aio import task_group
from areal_agent.backends.base import BackendHandle
from areal_agent.errors import WeightUpdateError
from areal_agent.inference.base import InferenceEngine
from areal_agent.rollout.deadlines import Waits
from areal_agent.trajectory import RolloutBatch

KEPT_VERSIONS = 2
"""Published folders that stay on disk: the one served, and the one to fall back to."""
PROBE_ROWS = 2
"""The shortest ones of the batch."""
_MARGIN = 4
"""A server that does not load in time is named by the engine, which may also have to go back to the
weights before: the publication as a whole may take so many times as long."""


class WeightPublisher:
    """Exports the trainer's weights and has every server load them.

    After each publication a probe compares the servers' logprobs with the trainer's on rows of the
    last batch: a server that reports success but serves something else is found at once.
    """

    def __init__(
        self,
        backend: BackendHandle,
        engine: InferenceEngine,
        folder: Path,
        *,
        max_probe_difference: float,
        waits: Waits | None = None,
        export_seconds: float = 3600.0,
        load_seconds: float = 300.0,
    ) -> None:
        """Wire things up.

        Args:
            backend: has the weights.
            engine: is to serve them.
            folder: where they lie in between.
            max_probe_difference: between the logprobs of both.
            waits: what the run waits for.
            export_seconds: what the trainer may take to write them.
            load_seconds: what a server may take to load them.
        """
        self.backend = backend
        self.engine = engine
        self.folder = folder
        self.max_probe_difference = max_probe_difference
        self._waits = waits or Waits()
        self._export_seconds = export_seconds
        self._load_seconds = load_seconds

    async def publish(self, version: int, batch: RolloutBatch) -> dict[str, float]:
        """Serve the trainer's weights as `version`; returns metrics.

        Raises:
            NonFiniteError: a weight is not finite; nothing was written or sent.
            WeightUpdateError: a server could not load them (all serve the old version), or what it
                serves is not what the trainer has.
            StallError: it took far too long.
        """
        started = time.perf_counter()
        rows = batch.rows(torch.argsort(batch.attention_mask.sum(1))[:PROBE_ROWS])
        # Weights are compared, not sampling: one temperature for all.
        plain = replace(rows, temperatures=torch.ones_like(rows.temperatures))
        target = self.folder / f"v{version:06d}"
        name = f"an export of version {version}"
        async with self._waits.until("the trainer", name, self._export_seconds):
            await self.backend.export(target)
        exported = time.perf_counter()
        loading = self._waits.until(
            "the inference servers",
            f"loading version {version}",
            _MARGIN * self._load_seconds,
            setting="rollout.server.update_timeout_seconds",
        )
        async with loading, task_group() as group:
            # The servers load while the trainer makes what they will be compared with.
            group.create_task(self.engine.update_weights(target, version))
            expected = group.create_task(self.backend.logprobs(plain))
            group.create_task(asyncio.to_thread(self._forget_older_than, version))
        loaded = time.perf_counter()
        async with self._waits.until("the inference servers", f"a probe of version {version}"):
            difference = await self._probe(version, rows, expected.result())
        return {
            "publish/version": version,
            "publish/probe_abs_max": difference,
            "timeperf/export": exported - started,
            "timeperf/load_weights": loaded - exported,
            "timeperf/publish": time.perf_counter() - started,
        }

    async def _probe(self, version: int, rows: RolloutBatch, expected: torch.Tensor) -> float:
        """Largest difference between the servers' and the trainer's logprobs of `rows`, at 1.

        Raises:
            WeightUpdateError: it is above `max_probe_difference`.
        """
        lengths = rows.attention_mask.sum(1).tolist()
        ids = [row[:n] for row, n in zip(rows.input_ids.tolist(), lengths, strict=True)]
        scores = await self.engine.score(ids)
        if scores.version != version:
            raise WeightUpdateError(
                f"after loading version {version} the server scores with version {scores.version}"
            )
        got = torch.zeros_like(expected)
        for i, row_scores in enumerate(scores.logprobs):
            got[i, : len(row_scores)] = torch.tensor(row_scores)
        difference = float(torch.where(rows.loss_mask, (got - expected).abs(), 0.0).max())
        if not difference <= self.max_probe_difference:
            raise WeightUpdateError(
                f"after loading version {version} the server's logprobs differ from the trainer's "
                f"by {difference:.3g} (allowed: {self.max_probe_difference:g}): the server is not "
                "serving the weights that were published. Different dtypes need a wider "
                "actor.max_update_probe_difference; tied embeddings need a server that reloads them"
            )
        return difference

    def _forget_older_than(self, version: int) -> None:
        for path in self.folder.glob("v[0-9]*"):
            number = path.name[1:]
            if number.isdigit() and int(number) <= version - KEPT_VERSIONS:
                shutil.rmtree(path, ignore_errors=True)
