"""The trainer on one device: a CPU or one GPU, in this process.

Legend: N rows, T tokens.
"""

import logging
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from areal_agent.algorithms.base import Loss, LossOutput
from areal_agent.backends.base import StepResult
from areal_agent.backends.logprobs import has_plain_head, token_logprobs
from areal_agent.backends.optim import Optimizer
from areal_agent.backends.packing import micro_batches
from areal_agent.backends.state import (
    BackendState,
    check_fits,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from areal_agent.config.training import TrainEngineConfig
from areal_agent.errors import NonFiniteError
from areal_agent.models.export import check_finite, export_hf
from areal_agent.models.load import load_causal_lm, pick_device
from areal_agent.trajectory import RolloutBatch, TrainBatch

logger = logging.getLogger(__name__)


class LocalBackend:
    """A `TrainBackend` on one device. Weights and optimiser are float32; dropout is off."""

    def __init__(
        self,
        config: TrainEngineConfig,
        model_folder: Path,
        *,
        total_optimizer_steps: int,
        seed: int,
    ) -> None:
        """Load the model.

        Args:
            config: device, precision, micro-batches, optimiser and guards.
            model_folder: a Hugging Face folder; its tokenizer files go into every export.
            total_optimizer_steps: what the learning rate's fall is stretched over.
            seed: for torch's generators.

        Raises:
            ConfigError: the folder is no model, or the device is not there.
        """
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._config = config
        self._folder = model_folder
        self._device = pick_device(config.device)
        self._model = load_causal_lm(model_folder, torch.float32, self._device)
        self._plain_head = has_plain_head(self._model)
        if not self._plain_head:
            logger.info("%s computes its logits in its own way: the slower path", model_folder)
        self._parameters: dict[str, nn.Parameter] = {
            name: p for name, p in self._model.named_parameters() if p.requires_grad
        }
        self._optimizer = Optimizer(
            self._parameters, config.optimizer, total_steps=total_optimizer_steps
        )
        self._skipped_in_row = 0
        self._skipped_total = 0

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped since the start for a non-finite loss or gradient."""
        return self._skipped_total

    def logprobs(self, batch: RolloutBatch) -> Tensor:
        """See `TrainBackend.logprobs`."""
        out = torch.zeros(batch.input_ids.shape, dtype=torch.float32)
        lengths = batch.attention_mask.sum(1).tolist()
        with torch.inference_mode():
            for rows in micro_batches(lengths, self._config.max_tokens_per_mb):
                width = max(lengths[rows[0]], 1)
                ids = _clean_ids(batch.input_ids[rows, :width], batch.attention_mask[rows, :width])
                mask = batch.loss_mask[rows, :width]
                if not mask.any():
                    continue
                values = self._token_logprobs(ids, mask, batch.temperatures[rows, :width])
                out[rows, :width] = values.float().cpu()
        return out

    def step(self, batch: TrainBatch, loss: Loss) -> StepResult:
        """See `TrainBackend.step`. A batch without any loss token changes nothing either."""
        self._model.zero_grad(set_to_none=True)
        sums = _Sums()
        lengths = batch.attention_mask.sum(1).tolist()
        for rows in micro_batches(lengths, self._config.max_tokens_per_mb):
            micro = batch.rows(rows)
            if micro.n_loss_tokens == 0:
                continue
            micro = self._to_device(micro)
            logprobs = self._token_logprobs(micro.input_ids, micro.loss_mask, micro.temperatures)
            output = loss(logprobs, micro)
            cast("Any", output.loss).backward()
            sums.add(output)
        metrics = sums.averages()
        if sums.count == 0:
            return StepResult(applied=False, metrics=metrics)
        return self._apply(sums.count, metrics)

    def export(self, folder: Path) -> None:
        """See `TrainBackend.export`."""
        export_hf(self._model, folder, self._folder)

    def save(self, folder: Path) -> None:
        """See `TrainBackend.save`. Non-finite weights are refused as in `export`."""
        state = self._state()
        check_finite(state.weights)
        write_state(state, folder)

    def load(self, folder: Path) -> None:
        """See `TrainBackend.load`."""
        saved, own = read_state(folder), self._state()
        check_fits(saved, own, folder)
        with torch.no_grad():
            for name, value in own.weights.items():
                value.copy_(saved.weights[name])
        self._optimizer.restore(saved.optimizer, saved.counters["optimizer_steps"])
        self._skipped_in_row = saved.counters["skipped_in_row"]
        self._skipped_total = saved.counters["skipped_total"]
        restore_random_states(saved.random)

    def _token_logprobs(self, ids: Tensor, mask: Tensor, temperatures: Tensor) -> Tensor:
        half = self._config.dtype == "bfloat16"
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=half):
            return token_logprobs(
                self._model,
                ids.to(self._device),
                mask.to(self._device),
                temperatures.to(self._device),
                plain_head=self._plain_head,
            )

    def _to_device(self, batch: TrainBatch) -> TrainBatch:
        clean = replace(batch, input_ids=_clean_ids(batch.input_ids, batch.attention_mask))
        values = {field.name: getattr(clean, field.name) for field in fields(clean)}
        return replace(
            clean,
            **{n: v.to(self._device) for n, v in values.items() if isinstance(v, Tensor)},
        )

    def _apply(self, count: float, metrics: dict[str, float]) -> StepResult:
        """Divide the summed gradients once, look at them, and step if they are finite."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        for gradient in gradients:
            gradient.div_(count)
        norm = nn.utils.get_total_norm(gradients)
        metrics |= {"grad_norm": float(norm), "lr": self._optimizer.lr}
        if math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"]):
            self._optimizer.step(norm)
            self._skipped_in_row = 0
            return StepResult(applied=True, metrics=metrics)
        self._model.zero_grad(set_to_none=True)
        self._skipped_in_row += 1
        self._skipped_total += 1
        logger.warning(
            "step skipped: loss %s, gradient norm %s; %d in a row",
            metrics["loss"],
            metrics["grad_norm"],
            self._skipped_in_row,
        )
        if self._skipped_in_row >= self._config.max_nonfinite_steps:
            raise NonFiniteError(
                f"{self._skipped_in_row} optimiser steps in a row had a loss or gradient that is "
                f"not finite (last: loss {metrics['loss']}, norm {metrics['grad_norm']}): the "
                "weights are those of the last good step; lower actor.optimizer.lr or look at the "
                "rewards"
            )
        return StepResult(applied=False, metrics=metrics)

    def _state(self) -> BackendState:
        persistent = self._model.state_dict().keys()
        buffers = {n: b for n, b in self._model.named_buffers() if n in persistent}
        return BackendState(
            weights=dict(self._model.named_parameters()) | buffers,
            optimizer=self._optimizer.tensors(),
            random=random_states(),
            counters={
                "optimizer_steps": self._optimizer.n_steps,
                "skipped_in_row": self._skipped_in_row,
                "skipped_total": self._skipped_total,
            },
        )


class _Sums:
    """What the loss said of each micro-batch, added up; divided once, at the end."""

    def __init__(self) -> None:
        self._loss: list[LossOutput] = []

    def add(self, output: LossOutput) -> None:
        self._loss.append(replace(output, loss=output.loss.detach()))

    @property
    def count(self) -> float:
        """How many tokens or sequences the loss is over."""
        return sum(float(output.count) for output in self._loss)

    def averages(self) -> dict[str, float]:
        """Averages and maxima over the whole batch."""
        metrics = {
            "loss": sum(float(output.loss) for output in self._loss) / max(self.count, 1.0),
            "loss_count": self.count,
        }
        for name in {name for output in self._loss for name in output.sums}:
            pairs = [output.sums[name] for output in self._loss if name in output.sums]
            n = sum(float(count) for _, count in pairs)
            metrics[name] = sum(float(total) for total, _ in pairs) / max(n, 1.0)
        for name in {name for output in self._loss for name in output.maxima}:
            metrics[name] = max(
                float(output.maxima[name]) for output in self._loss if name in output.maxima
            )
        return metrics


def _clean_ids(ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Padding may hold anything; the embedding must find a token there."""
    return torch.where(attention_mask, ids, 0)
