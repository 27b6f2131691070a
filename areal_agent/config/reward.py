"""Settings of the worker processes that plain reward functions run in."""

from typing import Literal

from pydantic import Field

from areal_agent.config.base import ConfigModel

Policy = Literal["reject"] | float
"""What becomes of an episode whose reward cannot be had: rejected, or given this score."""


class RewardConfig(ConfigModel):
    """How reward functions run."""

    workers: int | None = Field(default=None, ge=1)
    """Most worker processes, and so most plain functions that run at a time. They start as they
    are needed. None takes four more than there are CPUs, at most 32."""

    timeout_seconds: float = Field(default=15.0, gt=0)
    """A function that takes longer is stopped; waiting for a worker does not count. A wrapper may
    have a limit of its own."""

    on_timeout: Policy = "reject"
    """What a reward that takes too long means: `reject` ends the episode as `reward_error`, a
    number is its score. Counted as ``reward/timeouts`` in any case."""

    on_error: Policy = "reject"
    """The same for a function that fails or ends its process. Counted as ``reward/errors`` and
    ``reward/crashes`` in any case."""

    cpu_seconds: float | None = Field(default=None, gt=0)
    """CPU time that a call may use in a worker, on all threads together; more is a timeout. None
    leaves it to timeout_seconds."""

    memory_mb: int | None = Field(default=2048, ge=16)
    """Memory that a call may use in a worker beyond what its imports use; more is a MemoryError in
    the function. Works on Linux. None sets no limit."""

    startup_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long a worker may take until it has imported the function."""
