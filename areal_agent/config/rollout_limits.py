"""What one episode may use, what happens when it would use more, and what a group may lose."""

import math
from typing import Literal

from pydantic import Field, field_validator

from areal_agent.config.base import ConfigModel

OnLimit = Literal["reject"] | float
"""`reject`, or the reward that what there is so far is kept with."""

LimitName = Literal["seconds", "turns", "output_tokens", "tool_calls"]


class LimitsConfig(ConfigModel):
    """Limits of one episode, in training and in evaluation.

    At a limit, `reject` leaves the episode out of training; a number keeps the calls that were
    finished, as a truncated episode with that reward.
    """

    seconds: float = Field(default=600.0, gt=0)
    """How long an episode may take. Rejected, it has the outcome `timeout`."""

    on_seconds: OnLimit = "reject"
    """What happens then."""

    turns: int | None = Field(default=256, ge=1)
    """Most calls of the model. None sets no limit."""

    on_turns: OnLimit = "reject"
    """What happens when an episode wants one more."""

    output_tokens: int | None = Field(default=1_048_576, ge=1)
    """Most tokens sampled in all calls together; the last call is cut there. None sets no limit."""

    on_output_tokens: OnLimit = "reject"
    """What happens when a call was cut there, or the episode wants one more."""

    tool_calls: int | None = Field(default=1024, ge=0)
    """Most calls of tools. None sets no limit."""

    on_tool_calls: OnLimit = "reject"
    """What happens when a reply asks for more."""

    grace_seconds: float = Field(default=30.0, gt=0)
    """What the code of an episode that has to end may take to clean up. Code that then still goes
    on is left behind, and never resumed."""

    @field_validator("on_seconds", "on_turns", "on_output_tokens", "on_tool_calls")
    @classmethod
    def _is_a_reward(cls, value: OnLimit) -> OnLimit:
        if not isinstance(value, str) and not math.isfinite(value):
            raise ValueError(f"expected 'reject' or a finite reward, got {value!r}")
        return value


class GroupConfig(ConfigModel):
    """What happens to a group when some of its episodes fail."""

    retries: int = Field(default=1, ge=0)
    """How often an episode is run again that ended as `inference_error`, `timeout`, `reward_error`
    or `cancelled`: failures that say nothing about the policy."""

    min_size: int = Field(default=2, ge=1)
    """A group with fewer episodes left is dropped. 1 keeps single ones: they have advantage 0."""

    fail_fast: bool = False
    """The first episode that fails for good ends its group: the others are cancelled."""
