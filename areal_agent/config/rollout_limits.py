"""What one episode may use, and what becomes of it when it would use more."""

from pydantic import Field

from areal_agent.config.base import ConfigModel


class LimitsConfig(ConfigModel):
    """Limits of one episode, in training and in evaluation."""

    seconds: float = Field(default=600.0, gt=0)
    """An episode that takes longer ends with the outcome `timeout`."""
