"""Tells of turns that were drawn from another distribution than the one they are trained under."""

import logging

from areal_agent.types import GenerationHyperparameters, ModelRequest, ModelResponse

logger = logging.getLogger(__name__)


class ReshapedTurns:
    """Counts turns sampled with top_p, top_k, a penalty or a minimum length; warns of the first.

    Logprobs, the servers' and the trainer's, are those of the full softmax at the sampling
    temperature. What these settings cut off or push down is not in them, so that training on such
    turns is biased.
    """

    def __init__(self) -> None:
        """Start at none."""
        self._has_warned = False
        self._since = 0

    def hear(self, request: ModelRequest, _response: ModelResponse) -> None:
        """Take in a turn that may be trained on."""
        reasons = _reasons(request.gconfig)
        if not reasons:
            return
        self._since += 1
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "training samples with %s, but logprobs are those of the full softmax: training "
                "on such replies is biased. Leave it out, of gconfig or of the agent's requests; "
                "rollout/reshaped_turns counts them",
                " and ".join(reasons),
            )

    def take_metrics(self) -> dict[str, float]:
        """Return what was counted since the last call."""
        since, self._since = self._since, 0
        return {"rollout/reshaped_turns": since}


def _reasons(gconfig: GenerationHyperparameters) -> list[str]:
    found: list[str] = []
    if gconfig.top_p < 1:
        found.append(f"top_p {gconfig.top_p:g}")
    if gconfig.top_k:
        found.append(f"top_k {gconfig.top_k}")
    if gconfig.frequency_penalty:
        found.append(f"frequency_penalty {gconfig.frequency_penalty:g}")
    if gconfig.min_new_tokens:
        found.append(f"min_new_tokens {gconfig.min_new_tokens}")
    return found
