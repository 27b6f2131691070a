"""What must hold on a run's first update, while server and trainer still have the same weights.

The trainer's logprobs are those that were captured; in the first optimiser step the probability
ratio is 1 and the KL divergence from the start of the step is 0. A wrong temperature, a wrong
shift, ids that were not sampled, or a model that servers and trainer read differently break one of
these at once, and may not show in a curve for hours.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_agent.backends.base import BackendHandle
from areal_agent.errors import FirstStepError
from areal_agent.trajectory import RolloutBatch

WORST_SHOWN = 16


class FirstStep:
    """Checks the first update; `is_done` afterwards."""

    def __init__(
        self, backend: BackendHandle, evidence: Path, *, tolerance: float, is_done: bool = False
    ) -> None:
        """Wire things up.

        Args:
            backend: the trainer.
            evidence: where what differs is written to.
            tolerance: how far apart logprobs may be.
            is_done: there is nothing to check.
        """
        self._backend = backend
        self._evidence = evidence
        self._tolerance = tolerance
        self.is_done = is_done

    async def check_batch(self, batch: RolloutBatch) -> dict[str, float]:
        """Compare the captured logprobs with the trainer's, before anything is stepped.

        Raises:
            FirstStepError: they differ.
        """
        logprobs = await self._backend.logprobs(batch)
        gap = torch.where(batch.loss_mask, (logprobs - batch.logprobs).abs(), 0.0)
        largest = float(gap.max())
        if largest <= self._tolerance:  # nan is not
            return {"first_step/logprob_abs_max": largest}
        raise self._error(
            f"the trainer's logprobs differ from the captured ones by {largest:.3g}",
            {"worst": _worst(batch, logprobs, gap)},
        )

    def check_step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Look at what the loss said of the first optimiser step; nothing said, nothing checked.

        Raises:
            FirstStepError: the ratio was not 1, or the KL divergence not 0.
        """
        if not metrics:
            return {}
        self.is_done = True
        high = math.exp(self._tolerance)
        kl = high - 1.0 - self._tolerance
        allowed = {"ratio": (1.0 / high, high), "ratio_max": (0.0, high), "approx_kl": (-kl, kl)}
        wrong = [
            f"{name} was {metrics.get(name)}, expected {low:.6g} to {top:.6g}"
            for name, (low, top) in allowed.items()
            if not low <= metrics.get(name, math.nan) <= top
        ]
        if wrong:
            raise self._error(
                f"in the first optimiser step {'; '.join(wrong)}", {"metrics": dict(metrics)}
            )
        return {f"first_step/{name}": metrics[name] for name in allowed}

    def _error(self, what: str, evidence: dict[str, Any]) -> FirstStepError:
        facts = {"what": what, "tolerance": self._tolerance, **evidence}
        self._evidence.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return FirstStepError(
            f"{what} (allowed: {self._tolerance:g}, actor.max_update_probe_difference), although "
            f"servers and trainer have the same weights; see {self._evidence}. Look at ids, "
            "logprobs and temperature of what the workflow returns; different dtypes need a wider "
            "tolerance; actor.check_first_step switches this off",
            path=str(self._evidence),
        )


def _worst(batch: RolloutBatch, logprobs: Tensor, gap: Tensor) -> list[dict[str, Any]]:
    """Facts about the tokens that differ most; what is not a number comes first."""
    order = torch.where(gap.isnan(), torch.inf, gap).flatten().argsort(descending=True)
    n = min(WORST_SHOWN, batch.n_loss_tokens)
    return [_fact(batch, logprobs, gap, *divmod(int(i), gap.shape[1])) for i in order[:n]]


def _fact(
    batch: RolloutBatch, logprobs: Tensor, gap: Tensor, row: int, position: int
) -> dict[str, Any]:
    return {
        "row": row,
        "position": position,
        "token": int(batch.input_ids[row, position]),
        "version": int(batch.versions[row, position]),
        "captured": float(batch.logprobs[row, position]),
        "trainer": float(logprobs[row, position]),
        "difference": float(gap[row, position]),
        "ids_before": batch.input_ids[row, :position].tolist(),
    }
