"""Settings of the trainer: optimiser, micro-batches, guards."""

from typing import Literal

from pydantic import Field

from areal_agent.config.base import ConfigModel


class OptimizerConfig(ConfigModel):
    """AdamW with warm-up and decay."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the gradient's running mean."""

    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the squared gradient's running mean."""

    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay; not applied to norms and biases."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the rate rises linearly from 0."""

    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after warm-up."""

    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where the fall ends, as a share of `lr`."""

    gradient_clipping: float = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient."""


class TrainEngineConfig(ConfigModel):
    """The trained model's worker."""

    backend: str = "local:d1"
    """Allocation string of the trainer; see the page on allocation strings."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. `auto` takes CUDA when there is one."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass; weights and optimiser stay in float32."""

    threads: int = Field(default=1, ge=1)
    """CPU threads of torch in the trainer."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW with warm-up and decay."""

    ppo_n_minibatches: int = Field(default=4, ge=1)
    """Optimiser steps that a batch is cut into; groups stay together where they can."""

    max_tokens_per_mb: int = Field(default=8192, ge=1)
    """Padded tokens in one forward pass. Does not change the gradient."""

    call_timeout_seconds: float = Field(default=1800.0, gt=0)
    """How long the worker may take for one call: an optimiser step, logprobs of a batch, an export.
    One that takes longer hangs, and the run ends."""

    max_nonfinite_steps: int = Field(default=5, ge=1)
    """So many steps in a row with a non-finite gradient end the run."""

    max_update_probe_difference: float = Field(default=1e-2, gt=0)
    """After each publication the server's logprobs of a probe may differ from the trainer's by
    this much; more ends the run."""

    check_first_step: bool = False
    """Before the first update, compare the trainer's logprobs with the captured ones, and look that
    its first optimiser step has ratio 1 and no KL divergence. A difference above
    `max_update_probe_difference` ends the run. Costs one forward pass over a batch."""
