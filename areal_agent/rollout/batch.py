"""What goes into the executor, what it hands out, and how it says where it stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from areal_agent.trajectory import TrajectoryGroup
from areal_agent.types import Episode, PromptId

Prompt = tuple[PromptId, int, int, Mapping[str, Any]]
"""What a sampler yields: prompt id, epoch, index of the row, the row."""


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """What `RolloutExecutor.next_batch` hands to the trainer."""

    groups: Sequence[TrajectoryGroup]
    """Earliest issued first."""
    episodes: Sequence[Episode]
    """All episodes of these groups, failed ones included."""
    ages: Sequence[int]
    """For each group: how many versions its oldest trained token is behind."""
    version: int
    """Version at consumption."""
    ready_at: float
    """``time.time()`` when the last of the groups was finished."""


Fate = Literal["trained", "swept", "dropped"]
"""What becomes of a group that may be trained on: it is handed to the trainer, is too old then, or
is left out."""


@dataclass(frozen=True, slots=True)
class GroupFate:
    """What became of the episodes of one group that ended well."""

    fate: Fate
    prompt_id: PromptId
    episodes: Sequence[str]
    """Their ids."""
    why: str
    """One of the reasons of `RolloutStats.dropped_why`, ``run_ended``, or how old they were."""


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """Where the executor stands. Counts are of groups unless the name says otherwise."""

    version: int
    running: int
    running_episodes: int
    limit: int
    """Most episodes in flight now."""
    buffered: int
    accepted: int
    """Finished and usable since the start; swept ones are given back."""
    consumed: int
    swept: int
    """Too old at consumption; each was issued again."""
    dropped: int
    """Finished without use."""
    dropped_why: Mapping[str, int]
    """The same by reason: ``too_few`` episodes were left, one failed and the group with it
    (``fail_fast``), ``zero_variance`` of the rewards, ``refused`` by should_accept, which may also
    fail (``filter_error``)."""
    episodes: int
    """Finished, each try by itself."""
    output_tokens: int
    """Sampled in finished episodes."""
    outcomes: Mapping[str, int]
    """Episodes whose fate is settled; those of groups that wait for the trainer are not."""
    zero_rewards: int
    """Those of them that were judged and earned nothing."""
    waiting_for: str
