"""Settings of the supervisor, which notices that a run makes no progress."""

from pydantic import Field

from areal_agent.config.base import ConfigModel


class SupervisorConfig(ConfigModel):
    """What happens when a run makes no progress.

    Progress is an episode that ends, a token that comes, a batch that is taken, a call of the
    trainer that is answered, weights that are published.
    """

    report_seconds: float = Field(default=300.0, gt=0)
    """After so long without progress, what the run waits for is printed and written to
    ``stall.json`` in the run folder."""

    cancel_seconds: float = Field(default=900.0, gt=0)
    """After so long, episodes that have given no sign of life since are cancelled and run again, as
    rollout.group says. After twice as long, they are given up: their groups go on without them, or
    are dropped."""

    end_seconds: float = Field(default=3600.0, gt=0)
    """After so long, the run ends with exit code 4. While it waits for what has a deadline of its
    own, such as the trainer, that one counts."""

    block_seconds: float = Field(default=1.0, gt=0)
    """Code that keeps the event loop from running for longer is named in a warning."""
