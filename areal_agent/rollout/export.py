"""What a session captured, as the rows of its episode."""

from dataclasses import replace

from areal_agent.errors import RewardError
from areal_agent.gateway.rewards import Style, assign, interactions
from areal_agent.gateway.session import Session
from areal_agent.rollout.results import as_trajectories
from areal_agent.trajectory import Trajectory


def session_rows(
    session: Session, value: object, *, discount: float, style: Style
) -> list[Trajectory] | None:
    """Return the rows of an episode whose agent has ended; None when it called no model.

    Args:
        session: still open.
        value: the rewards that the agent returned; None when they were posted.
        discount: per turn, of later rewards; see `areal_agent.gateway.rewards`.
        style: ``concat`` joins turns into rows, ``individual`` makes a row of each.

    Raises:
        InferenceError: a call failed for the engine's sake and was never made good.
        RewardError: there is no reward, or one that is no finite number.
    """
    if session.failure is not None:
        raise session.failure
    turns = session.delivered_turns()
    if not turns:
        return None
    assign(turns, value)
    found = interactions(turns, discount=discount, style=style)
    if not found:
        raise RewardError(
            "the agent returned None and set no reward: return a number from run(), or post one "
            "to /rl/set_reward"
        )
    metrics = {name: float(count) for name, count in session.counts.items()}
    return [
        replace(row, metrics=metrics, truncated=row.truncated or session.is_truncated)
        for row in as_trajectories(found) or []
    ]
