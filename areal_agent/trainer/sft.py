"""Supervised fine-tuning: dialogues in, weights out. One loop, in one process.

Legend: N rows, T tokens.
"""

import hashlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from areal_agent.algorithms.sft import Sft
from areal_agent.backends.base import TrainBackend
from areal_agent.backends.local import LocalBackend
from areal_agent.config.experiment import SFTConfig
from areal_agent.config.training import TrainEngineConfig
from areal_agent.errors import DataError
from areal_agent.trajectory import NO_VERSION, TrainBatch

logger = logging.getLogger(__name__)

Row = tuple[Sequence[int], Sequence[bool]]
"""Token ids of a dialogue, and which of them are learnt (never the first)."""


def sft_backend(config: SFTConfig, model_folder: Path) -> LocalBackend:
    """Load the model in `model_folder` and make its optimiser, as `config` says.

    Raises:
        ConfigError: the folder is no model that can be loaded.
    """
    engine = TrainEngineConfig(
        optimizer=config.optimizer, max_tokens_per_mb=config.max_tokens_per_mb
    )
    return LocalBackend(
        engine, model_folder, total_optimizer_steps=config.total_train_steps, seed=config.seed
    )


def sft_batch(rows: Sequence[Row]) -> TrainBatch:
    """Pad `rows` on the right into a batch.

    Raises:
        DataError: a row is uneven, learns nothing, or learns its first token.
    """
    for i, (ids, mask) in enumerate(rows):
        if len(ids) != len(mask) or not any(mask) or mask[0]:
            raise DataError(
                f"row {i}: expected as many loss marks as tokens, at least one of them true and "
                f"not the first, got {len(ids)} tokens and {sum(map(bool, mask))} of {len(mask)} "
                "marks true"
            )
    n, width = len(rows), max(len(ids) for ids, _ in rows)
    input_ids = torch.zeros(n, width, dtype=torch.int64)
    attention_mask = torch.zeros(n, width, dtype=torch.bool)
    loss_mask = torch.zeros(n, width, dtype=torch.bool)
    for i, (ids, mask) in enumerate(rows):
        input_ids[i, : len(ids)] = torch.as_tensor(ids)
        attention_mask[i, : len(ids)] = True
        loss_mask[i, : len(ids)] = torch.as_tensor(mask, dtype=torch.bool)
    zeros = torch.zeros(n, width)
    return TrainBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        loss_mask=loss_mask,
        logprobs=zeros,
        versions=torch.full((n, width), NO_VERSION, dtype=torch.int32),
        rewards=torch.zeros(n),
        group_ids=torch.arange(n),
        episode_ids=torch.arange(n),
        truncated=torch.zeros(n, dtype=torch.bool),
        temperatures=torch.ones(n, width),
        advantages=zeros,
        prox_logprobs=zeros,
    )


class SFTTrainer:
    """Cross-entropy on rows, in an order that the seed decides."""

    def __init__(self, config: SFTConfig, backend: TrainBackend, rows: Sequence[Row]) -> None:
        """Take what is trained on; nothing runs yet.

        Raises:
            DataError: there is no row.
        """
        if not rows:
            raise DataError("expected dialogues to learn from, got none")
        self._config = config
        self._backend = backend
        self._rows = rows
        self.metrics: Mapping[str, float] = {}
        """Of the latest step."""
        self.n_steps = 0
        """Optimiser steps so far."""

    def train(self, *, stop: Callable[[int], bool] | None = None, every: int = 50) -> int:
        """Train for `total_train_steps`, or until `stop` says so.

        Args:
            stop: called with the number of steps done, after each `every` of them, and once at
                the end; True ends the training.
            every: steps between two calls and two lines of the log.

        Returns:
            How many steps were done in all.

        Raises:
            NonFiniteError: too many steps in a row had a non-finite gradient.
            DataError: a row cannot be learnt from.
        """
        loss = Sft().loss
        total = self._config.total_train_steps
        with _progress() as progress:
            task = progress.add_task("supervised", total=total, loss=float("nan"))
            for picks in _picks(len(self._rows), self._config.batch_size, self._config.seed):
                if self.n_steps >= total:
                    break
                result = self._backend.step(sft_batch([self._rows[i] for i in picks]), loss)
                self.metrics = result.metrics
                self.n_steps += 1
                progress.update(task, completed=self.n_steps, loss=result.metrics["loss"])
                if self.n_steps % every == 0 or self.n_steps == total:
                    logger.info(
                        "step %d of %d: loss %.4f, gradient norm %.3f, rate %.2e",
                        self.n_steps,
                        total,
                        result.metrics["loss"],
                        result.metrics["grad_norm"],
                        result.metrics["lr"],
                    )
                    if stop is not None and stop(self.n_steps):
                        break
        return self.n_steps


def _picks(n_rows: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Batches of row numbers, for ever: each epoch goes through all rows in a new order."""
    batch: list[int] = []
    epoch = 0
    while True:
        order = list(range(n_rows))
        digest = hashlib.sha256(f"sft:{seed}:{epoch}".encode()).digest()
        random.Random(int.from_bytes(digest[:8])).shuffle(order)
        for i in order:
            batch.append(i)
            if len(batch) == batch_size:
                yield batch
                batch = []
        epoch += 1


def _progress() -> Progress:
    """A bar on standard error when that is a terminal, else nothing."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
