"""The clipped policy loss, coupled and decoupled, as sums with counts.

Legend: N rows, T tokens. Off the mask every input may hold anything, NaN and infinity included:
values are replaced before they are computed with, so neither loss nor gradient feels them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from areal_agent.algorithms.base import LossOutput

MAX_LOG_RATIO = 20.0
"""Log ratios are clamped to this: beyond it exp overflows and turns gradients into NaN."""


@dataclass(frozen=True, slots=True)
class ClipRange:
    """The ratio counts between ``1 - low`` and ``1 + high``."""

    low: float
    high: float


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: ClipRange,
    behaviour_logprobs: Tensor | None = None,
    behaviour_cap: float | None = None,
) -> LossOutput:
    """PPO's clipped objective; with `behaviour_logprobs`, AReaL's decoupled one.

    The ratio compares with `old_logprobs`. In the decoupled form those are of the weights at the
    start of the step, and each token is weighed by how likely they make it against the weights
    that sampled it. Tokens whose weight is above `behaviour_cap` give no loss, but still count.

    Args:
        logprobs: [N, T] with gradient.
        old_logprobs: [N, T] that the ratio compares with.
        advantages: [N, T].
        mask: bool [N, T]: what is trained on.
        clip: how far the ratio counts.
        behaviour_logprobs: [N, T] of the sampler; None is the coupled form.
        behaviour_cap: None caps nothing.
    """
    lp = torch.where(mask, logprobs, 0.0)
    old = torch.where(mask, old_logprobs, 0.0)
    advantage = torch.where(mask, advantages, 0.0)
    log_ratio = (lp - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    loss = torch.maximum(plain, clipped)
    count = mask.sum()
    detached = ratio.detach()
    k3 = torch.where(mask, detached - 1.0 - log_ratio.detach(), 0.0)
    sums = {
        "clip_share": ((clipped > plain).detach() & mask).sum(),
        "ratio": torch.where(mask, detached, 0.0).sum(),
        "approx_kl": k3.sum(),
    }
    if behaviour_logprobs is not None:
        behaviour = torch.where(mask, behaviour_logprobs, 0.0)
        log_weight = (old - behaviour).clamp(max=MAX_LOG_RATIO)
        weight = torch.where(mask, log_weight.exp(), 0.0)
        kept = weight
        if behaviour_cap is not None:
            over = weight > behaviour_cap
            kept = torch.where(over, 0.0, weight)
            sums["behaviour_capped_share"] = over.sum()
        sums["behaviour_weight"] = weight.sum()
        loss = loss * kept
    return LossOutput(
        loss=torch.where(mask, loss, 0.0).sum(),
        count=count,
        sums={name: (value, count) for name, value in sums.items()},
        maxima={"ratio_max": torch.where(mask, detached, 0.0).amax()},
    )
