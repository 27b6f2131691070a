"""Rewards over the turns of an episode, and back along the conversation with a discount.

A turn's return is its own reward plus the discount times the mean of its children's returns, over
those children that have one. In a dialogue without forks that is the usual discounted return,
``G_t = r_t + discount * G_{t+1}``. The mean, not the sum, keeps a turn that was continued twice on
the scale of one that was continued once.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from areal_agent.errors import RewardError
from areal_agent.gateway.conversation import Turn
from areal_agent.rewarding import as_reward
from areal_agent.types import Interaction

Style = Literal["concat", "individual"]

_TEXT = (str, bytes, bytearray, memoryview)
"""Sequences that are no lists of rewards."""


def assign(turns: Sequence[Turn], value: object) -> None:
    """Set the rewards that an agent returned.

    They are one for the episode, one for each turn by id, one for each turn in order, or None:
    rewards were set on the way. One for the episode is had by every turn that nobody went on from.

    Raises:
        RewardError: a value is no finite number, or names a turn that there is not. Then no turn
            has changed.
    """
    if value is None:
        return
    given: list[tuple[Turn, object]] = []
    if isinstance(value, Mapping):
        by_id = {turn.id: turn for turn in turns}
        for name, one in cast("Mapping[object, object]", value).items():
            if name not in by_id:
                raise RewardError(
                    f"a reward is for interaction {name!r}, expected one of {list(by_id)}"
                )
            given.append((by_id[cast("str", name)], one))
    elif isinstance(value, Sequence) and not isinstance(value, _TEXT):
        rewards = cast("Sequence[object]", value)
        if len(rewards) != len(turns):
            raise RewardError(
                f"expected one reward for each of {len(turns)} turns, got {len(rewards)}"
            )
        given = list(zip(turns, rewards, strict=True))
    else:
        given = [(turn, value) for turn in ends(turns)]
    checked = [(turn, as_reward(one)) for turn, one in given]
    for turn, reward in checked:
        turn.reward = reward


def ends(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns that nobody went on from."""
    counted = set(map(id, turns))
    return [turn for turn in turns if not _children(turn, counted)]


def returns(turns: Sequence[Turn], *, discount: float) -> dict[str, float]:
    """Return each turn's return by its id; turns that no reward reaches are left out."""
    counted = set(map(id, turns))
    found: dict[str, float] = {}
    for turn in reversed(turns):  # children are finished after their parents
        later = [found[child.id] for child in _children(turn, counted) if child.id in found]
        if turn.reward is None and not later:
            continue
        ahead = discount * sum(later) / len(later) if later else 0.0
        found[turn.id] = (turn.reward or 0.0) + ahead
    return found


def _children(turn: Turn, counted: set[int]) -> list[Turn]:
    return [child for child in turn.children if id(child) in counted]


def interactions(turns: Sequence[Turn], *, discount: float, style: Style) -> dict[str, Interaction]:
    """Return the turns that earned something, each with its return as reward.

    Args:
        turns: those that the agent received, parents before children.
        discount: see the module's text.
        style: ``concat`` links a turn to the one that it goes on from, and turns of one return
            share a row; ``individual`` makes a row of each.
    """
    earned = returns(turns, discount=discount)
    return {
        turn.id: Interaction(
            id=turn.id,
            parent_id=turn.parent.id if turn.parent and style == "concat" else None,
            messages=turn.messages,
            reply=turn.reply,
            response=turn.response,
            reward=earned[turn.id],
        )
        for turn in turns
        if turn.id in earned
    }
