"""AdamW whose state can be put into safetensors, and the learning rate of each step."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from areal_agent.config.training import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Rate of optimiser step `step` (the first is 0) of `total_steps`.

    Warm-up takes `warmup_steps` steps: the first has a rate of ``lr / warmup_steps``, the last has
    ``lr``. The fall that follows ends at ``lr * min_lr_ratio`` in the last step and stays there.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    fall_steps = max(total_steps - config.warmup_steps - 1, 1)
    progress = min((step - config.warmup_steps) / fall_steps, 1.0)
    if config.lr_scheduler_type == "constant":
        share = 1.0
    elif config.lr_scheduler_type == "linear":
        share = 1.0 - (1.0 - config.min_lr_ratio) * progress
    else:
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        share = config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine
    return config.lr * share


class Optimizer:
    """AdamW over named parameters, with a schedule; vectors (norms, biases) do not decay."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig, *, total_steps: int
    ) -> None:
        self._parameters = dict(parameters)
        self._config = config
        self._total_steps = total_steps
        self.n_steps = 0
        """Steps applied so far; skipped ones do not count."""
        matrices = [p for p in self._parameters.values() if p.ndim > 1]
        vectors = [p for p in self._parameters.values() if p.ndim <= 1]
        self._adamw = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )

    @property
    def lr(self) -> float:
        """The rate that the next step will use."""
        return learning_rate(self._config, self.n_steps, self._total_steps)

    def step(self, grad_norm: Tensor) -> None:
        """Clip the gradients, whose norm is `grad_norm`, and apply them."""
        nn.utils.clip_grads_with_norm_(
            self._parameters.values(), self._config.gradient_clipping, grad_norm
        )
        for group in self._adamw.param_groups:
            group["lr"] = self.lr
        self._adamw.step()
        self.n_steps += 1

    def tensors(self) -> dict[str, Tensor]:
        """The moments by name: ``exp_avg.NAME`` and ``exp_avg_sq.NAME``; zeros before a step."""
        out: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            state = self._adamw.state.get(parameter, {})
            for moment in MOMENTS:
                value = state.get(moment)
                out[f"{moment}.{name}"] = torch.zeros_like(parameter) if value is None else value
        return out

    def restore(self, tensors: Mapping[str, Tensor], n_steps: int) -> None:
        """Take over moments, by copy, as `tensors` gives them, and the number of steps applied."""
        for name, parameter in self._parameters.items():
            state = self._adamw.state[parameter]
            state["step"] = torch.tensor(
                float(n_steps), dtype=torch.float32, device=parameter.device
            )
            for moment in MOMENTS:
                value = tensors[f"{moment}.{name}"]
                state[moment] = torch.zeros_like(parameter)
                state[moment].copy_(value)
        self.n_steps = n_steps
