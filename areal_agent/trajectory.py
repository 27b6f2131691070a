"""Where lists become tensors, once.

Axes: N rows, T tokens. Per-token tensors are aligned with ``input_ids``: entry t speaks of token t
(its logprob given the tokens before it, whether it is trained on, the weights that sampled it).
Entry 0 of a row is never trained on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from areal_agent.errors import TrajectoryError
from areal_agent.types import ModelResponse, PromptId

NO_VERSION = -1
"""Version of a token that no engine sampled."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One row to train on: tokens, which of them were sampled, and what the row earned."""

    input_ids: Sequence[int]
    loss_mask: Sequence[bool]
    """True exactly at sampled tokens."""
    logprobs: Sequence[float]
    """Sampling logprob at sampled tokens; ignored elsewhere."""
    versions: Sequence[int]
    """Weight version at sampled tokens; `NO_VERSION` elsewhere."""
    reward: float
    truncated: bool = False
    """The last reply ended for lack of budget."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    temperatures: Sequence[float] | None = None
    """Sampling temperature at sampled tokens (0: greedy); ignored elsewhere. None stands for that
    of the run."""

    def __post_init__(self) -> None:
        """Refuse rows that cannot be trained on."""
        n = len(self.input_ids)
        if not len(self.loss_mask) == len(self.logprobs) == len(self.versions) == n:
            raise TrajectoryError(
                "expected input_ids, loss_mask, logprobs and versions of one length, got "
                f"{n}, {len(self.loss_mask)}, {len(self.logprobs)}, {len(self.versions)}"
            )
        if self.temperatures is not None and len(self.temperatures) != n:
            raise TrajectoryError(
                f"expected as many temperatures as input_ids, got {len(self.temperatures)} for {n}"
            )
        if n == 0 or not any(self.loss_mask):
            raise TrajectoryError(
                f"a row of {n} tokens has no sampled token: return None to reject the episode"
            )
        if self.loss_mask[0]:
            raise TrajectoryError("token 0 is marked as sampled, but it has no prompt before it")

    @property
    def oldest_version(self) -> int:
        """The smallest version among sampled tokens."""
        return min(v for v, m in zip(self.versions, self.loss_mask, strict=True) if m)

    @property
    def newest_version(self) -> int:
        """The largest version among sampled tokens."""
        return max(v for v, m in zip(self.versions, self.loss_mask, strict=True) if m)

    @classmethod
    def from_response(
        cls, response: ModelResponse, reward: float, *, metrics: Mapping[str, float] | None = None
    ) -> "Trajectory":
        """One prompt and one reply."""
        prompt, output = list(response.input_tokens), list(response.output_tokens)
        return cls(
            input_ids=prompt + output,
            loss_mask=[False] * len(prompt) + [True] * len(output),
            logprobs=[0.0] * len(prompt) + list(response.output_logprobs),
            versions=[NO_VERSION] * len(prompt) + list(response.output_versions),
            reward=reward,
            truncated=response.stop_reason == "length",
            metrics=metrics or {},
            temperatures=_at_replies([(len(prompt), response)]),
        )

    @classmethod
    def from_turns(
        cls,
        responses: Sequence[ModelResponse],
        reward: float,
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> "Trajectory":
        """Several turns, each of whose prompts extends the prompt and reply before it.

        Raises:
            TrajectoryError: a turn's prompt does not start with all tokens so far, there is no
                turn at all, or only some say at which temperature they were sampled.
        """
        if not responses:
            raise TrajectoryError("no turn: the episode made no model call")
        row = cls.from_response(responses[0], reward, metrics=metrics)
        ids, mask = list(row.input_ids), list(row.loss_mask)
        logprobs, versions = list(row.logprobs), list(row.versions)
        parts = [(len(responses[0].input_tokens), responses[0])]
        for turn, response in enumerate(responses[1:], start=1):
            prompt = list(response.input_tokens)
            if prompt[: len(ids)] != ids:
                raise TrajectoryError(
                    f"turn {turn} does not extend the {len(ids)} tokens before it: build its "
                    "prompt from the earlier ids, not from text"
                )
            new, output = prompt[len(ids) :], list(response.output_tokens)
            ids += new + output
            mask += [False] * len(new) + [True] * len(output)
            logprobs += [0.0] * len(new) + list(response.output_logprobs)
            versions += [NO_VERSION] * len(new) + list(response.output_versions)
            parts.append((len(new), response))
        return replace(
            row,
            input_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            truncated=responses[-1].stop_reason == "length",
            temperatures=_at_replies(parts),
        )


def _at_replies(parts: Sequence[tuple[int, ModelResponse]]) -> list[float] | None:
    """Sampling temperatures of a row: of each reply, and how many tokens are new before it."""
    told = [response.temperature is not None for _, response in parts]
    if any(told) and not all(told):
        raise TrajectoryError(
            f"turn {told.index(False)} does not say at which temperature it was sampled, and turn "
            f"{told.index(True)} does: set ModelResponse.temperature on all of them, or on none"
        )
    out: list[float] = []
    for n_before, response in parts:
        if response.temperature is None:
            return None
        out += [1.0] * n_before + [response.temperature] * len(response.output_tokens)
    return out


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The surviving episodes of one prompt occurrence. An episode may have several rows."""

    prompt_id: PromptId
    episodes: Sequence[Sequence[Trajectory]]
    """For each surviving episode, its rows."""

    @property
    def rewards(self) -> list[float]:
        """For each episode, the mean reward of its rows."""
        return [sum(row.reward for row in rows) / len(rows) for rows in self.episodes]

    @property
    def oldest_version(self) -> int:
        """The smallest version among all sampled tokens of the group."""
        return min(row.oldest_version for rows in self.episodes for row in rows)

    @property
    def newest_version(self) -> int:
        """The largest version among all sampled tokens of the group."""
        return max(row.newest_version for rows in self.episodes for row in rows)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What a step starts from. All tensors on CPU; padding is on the right.

    ``input_ids`` int64 [N, T], ``attention_mask`` bool [N, T], ``loss_mask`` bool [N, T],
    ``logprobs`` float32 [N, T] (sampler's), ``versions`` int32 [N, T] (`NO_VERSION` off the mask),
    ``rewards`` float32 [N], ``group_ids`` int64 [N], ``episode_ids`` int64 [N] (rows of one episode
    share it), ``truncated`` bool [N], ``temperatures`` float32 [N, T] (of the sampler at sampled
    tokens, where the trainer's logprobs are taken at the same; anything elsewhere).
    """

    input_ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    logprobs: Tensor
    versions: Tensor
    rewards: Tensor
    group_ids: Tensor
    episode_ids: Tensor
    truncated: Tensor
    temperatures: Tensor

    def __len__(self) -> int:
        """Return N."""
        return self.input_ids.shape[0]

    @property
    def n_loss_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.loss_mask.sum())

    def rows(self, index: Tensor | Sequence[int]) -> Self:
        """The rows at `index`, trimmed on the right to their longest."""
        idx = torch.as_tensor(index, dtype=torch.int64)
        width = int(self.attention_mask[idx].sum(1).max()) if len(idx) else 0
        values: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                values[spec.name] = value[idx, :width] if value.ndim == 2 else value[idx]
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class TrainBatch(RolloutBatch):
    """What the loss sees: a rollout batch, its advantages, and logprobs to compare with."""

    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 [N, T]; anything off the loss mask."""
    prox_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 [N, T]: under the weights at the start of the step. The sampler's when not used."""


def collate(groups: Sequence[TrajectoryGroup], *, temperature: float = 1.0) -> RolloutBatch:
    """Pad the rows of `groups` on the right into one batch.

    Group ids number the groups in the order given, episode ids the episodes. Rows that do not say
    at which temperature they were sampled were sampled at `temperature`.

    Raises:
        TrajectoryError: there is no row.
    """
    rows: list[Trajectory] = []
    group_ids: list[int] = []
    episode_ids: list[int] = []
    n_episodes = 0
    for g, group in enumerate(groups):
        for episode in group.episodes:
            rows += episode
            group_ids += [g] * len(episode)
            episode_ids += [n_episodes] * len(episode)
            n_episodes += 1
    if not rows:
        raise TrajectoryError("no row to collate: every group is empty")
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    width = int(lengths.max())
    attention_mask = torch.arange(width)[None, :] < lengths[:, None]

    def pad(parts: Iterable[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        out = torch.full((len(rows), width), fill, dtype=dtype)
        out[attention_mask] = torch.tensor(list(chain.from_iterable(parts)), dtype=dtype)
        return out

    def heat(row: Trajectory) -> Sequence[float]:
        return [temperature] * len(row.input_ids) if row.temperatures is None else row.temperatures

    return RolloutBatch(
        input_ids=pad((row.input_ids for row in rows), 0, torch.int64),
        attention_mask=attention_mask,
        loss_mask=pad((row.loss_mask for row in rows), 0, torch.bool),
        logprobs=pad((row.logprobs for row in rows), 0.0, torch.float32),
        versions=pad((row.versions for row in rows), NO_VERSION, torch.int32),
        rewards=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        group_ids=torch.tensor(group_ids, dtype=torch.int64),
        episode_ids=torch.tensor(episode_ids, dtype=torch.int64),
        truncated=torch.tensor([row.truncated for row in rows]),
        temperatures=pad(map(heat, rows), 1.0, torch.float32),
    )
