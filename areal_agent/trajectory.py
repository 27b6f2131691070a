"""Where lists become tensors, once.

Axes: N rows, T tokens. Per-token tensors are aligned with ``input_ids``: entry t speaks of token t
(its logprob given the tokens before it, whether it is trained on, the weights that sampled it).
Entry 0 of a row is never trained on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Self, cast

import torch
from torch import Tensor

from areal_agent.errors import TrajectoryError
from areal_agent.types import Interaction, ModelResponse, PromptId

LARGEST_REWARD = 3e38
"""Rewards are float32 in a batch; anything larger would be infinite there."""

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

    def __post_init__(self) -> None:
        """Refuse rows that cannot be trained on."""
        n = len(self.input_ids)
        if not len(self.loss_mask) == len(self.logprobs) == len(self.versions) == n:
            raise TrajectoryError(
                "expected input_ids, loss_mask, logprobs and versions of one length, got "
                f"{n}, {len(self.loss_mask)}, {len(self.logprobs)}, {len(self.versions)}"
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
            TrajectoryError: a turn's prompt does not start with all tokens so far, or there is no
                turn at all.
        """
        if not responses:
            raise TrajectoryError("no turn: the episode made no model call")
        row = cls.from_response(responses[0], reward, metrics=metrics)
        ids, mask = list(row.input_ids), list(row.loss_mask)
        logprobs, versions = list(row.logprobs), list(row.versions)
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
        return replace(
            row,
            input_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            truncated=responses[-1].stop_reason == "length",
        )


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The surviving episodes of one prompt occurrence. An episode may have several rows."""

    prompt_id: PromptId
    episodes: Sequence[Sequence[Trajectory]]
    """For each surviving episode, its rows."""

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
    share it), ``truncated`` bool [N].
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
    temperature: float = 1.0
    """Sampling temperature; the trainer's logprobs are taken at the same."""

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

    Group ids number the groups in the order given, episode ids the episodes.

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

    def pad(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        flat = list(chain.from_iterable(getattr(row, name) for row in rows))
        out = torch.full((len(rows), width), fill, dtype=dtype)
        out[attention_mask] = torch.tensor(flat, dtype=dtype)
        return out

    return RolloutBatch(
        input_ids=pad("input_ids", 0, torch.int64),
        attention_mask=attention_mask,
        loss_mask=pad("loss_mask", 0, torch.bool),
        logprobs=pad("logprobs", 0.0, torch.float32),
        versions=pad("versions", NO_VERSION, torch.int32),
        rewards=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        group_ids=torch.tensor(group_ids, dtype=torch.int64),
        episode_ids=torch.tensor(episode_ids, dtype=torch.int64),
        truncated=torch.tensor([row.truncated for row in rows]),
        temperature=temperature,
    )


EpisodeResult = (
    Trajectory | Sequence[Trajectory] | Mapping[str, Tensor] | Mapping[str, Interaction] | None
)
"""Everything `RolloutWorkflow.arun_episode` may return."""


def as_trajectories(result: object) -> list[Trajectory] | None:
    """Check what a workflow returned and convert it, once, at the edge.

    Accepts a `Trajectory`, a list of them, a tensor dict (``input_ids``, ``attention_mask``,
    ``loss_mask``, ``logprobs``, ``versions`` [B, T]; ``rewards`` [B]; ``truncated`` [B] if known),
    a dict of `Interaction`s with rewards, or None.

    An interaction that extends its parent joins the parent's row, unless another one did so
    already or the parent earned a different reward: then it starts a row of its own. Each sampled
    token is trained on in exactly one row.

    Returns:
        The rows, or None when the episode is rejected (None, or nothing in it).

    Raises:
        TrajectoryError: naming the key, what was expected and what was got.
    """
    if result is None:
        return None
    if isinstance(result, Trajectory):
        return [_checked(result, "the trajectory")]
    if isinstance(result, Mapping):
        return _from_mapping(cast("Mapping[object, object]", result)) if result else None
    if isinstance(result, list | tuple):
        return [_item(i, row) for i, row in enumerate(cast("list[object]", result))] or None
    raise TrajectoryError(
        "expected a Trajectory, a list of them, a dict of tensors, a dict of Interactions or None "
        f"from arun_episode, got {_show(result)}"
    )


def _item(i: int, row: object) -> Trajectory:
    if not isinstance(row, Trajectory):
        raise TrajectoryError(f"expected a Trajectory at place {i} of the list, got {_show(row)}")
    return _checked(row, f"trajectory {i}")


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def _checked(row: Trajectory, name: str) -> Trajectory:
    """Refuse values that would poison a batch; turn a reward of any number type into a float."""
    try:
        reward = float(row.reward)
    except (TypeError, ValueError) as error:
        raise TrajectoryError(
            f"{name}: expected a number as reward, got {_show(row.reward)}"
        ) from error
    if not math.isfinite(reward):
        raise TrajectoryError(
            f"{name}: expected a finite reward, got {reward!r}: raise RewardError or return None "
            "when there is no score"
        )
    if min(row.input_ids) < 0:
        raise TrajectoryError(f"{name}: expected token ids of 0 or more, got {min(row.input_ids)}")
    for t, sampled in enumerate(row.loss_mask):
        if sampled and not math.isfinite(row.logprobs[t]):
            raise TrajectoryError(
                f"{name}: expected a finite logprob at sampled token {t}, got {row.logprobs[t]!r}"
            )
        if sampled and row.versions[t] < 0:
            raise TrajectoryError(
                f"{name}: expected a weight version of 0 or more at sampled token {t}, got "
                f"{row.versions[t]!r}: pass on the engine's output_versions"
            )
    return replace(row, reward=reward) if type(row.reward) is not float else row


def _from_mapping(result: Mapping[object, object]) -> list[Trajectory] | None:
    kind = Tensor if any(isinstance(v, Tensor) for v in result.values()) else Interaction
    for key, value in result.items():
        if not isinstance(value, kind):
            raise TrajectoryError(
                "expected a dict of only tensors or only Interactions, got "
                f"{_show(value)} at key {key!r}"
            )
    if kind is Tensor:
        return _from_tensors(cast("Mapping[str, Tensor]", result))
    return _from_interactions(cast("Mapping[str, Interaction]", result))


_TENSOR_KEYS = ("input_ids", "attention_mask", "loss_mask", "logprobs", "versions")


def _from_tensors(result: Mapping[str, Tensor]) -> list[Trajectory] | None:
    known = (*_TENSOR_KEYS, "rewards", "truncated")
    if unknown := [key for key in result if key not in known]:
        raise TrajectoryError(
            f"the tensor dict has the key {unknown[0]!r}, which nothing reads: leave it out; known "
            f"are {', '.join(known)}"
        )
    if missing := [key for key in known[:-1] if key not in result]:
        raise TrajectoryError(
            f"the tensor dict lacks {missing[0]!r}, got {sorted(result)}: training needs "
            f"{', '.join(known[:-1])}"
        )
    shape = tuple(result["input_ids"].shape)
    if len(shape) != 2:
        raise TrajectoryError(f"expected input_ids of shape [B, T], got {list(shape)}")
    for key, tensor in result.items():
        expected = shape if key in _TENSOR_KEYS else shape[:1]
        if tuple(tensor.shape) != expected:
            raise TrajectoryError(
                f"expected {key} of shape {list(expected)} like input_ids {list(shape)}, got "
                f"{list(tensor.shape)}"
            )
    truncated = result.get("truncated", torch.zeros(shape[0], dtype=torch.bool))
    rows: list[Trajectory] = []
    for i in range(shape[0]):
        keep = result["attention_mask"][i].bool()
        ids, _, mask, logprobs, versions = (
            cast("list[Any]", result[key][i][keep].tolist()) for key in _TENSOR_KEYS
        )
        try:
            row = Trajectory(
                input_ids=[int(token) for token in ids],
                loss_mask=[bool(m) for m in mask],
                logprobs=logprobs,
                versions=[int(v) if m else NO_VERSION for v, m in zip(versions, mask, strict=True)],
                reward=float(result["rewards"][i]),
                truncated=bool(truncated[i]),
            )
        except TrajectoryError as error:
            raise TrajectoryError(f"row {i} of the tensor dict: {error}") from error
        rows.append(_checked(row, f"row {i} of the tensor dict"))
    return rows or None


def _from_interactions(result: Mapping[str, Interaction]) -> list[Trajectory]:
    chains: list[list[Interaction]] = []
    ending: dict[str, list[Interaction]] = {}
    for call in result.values():
        chain = ending.pop(call.parent_id, None) if call.parent_id is not None else None
        if chain is None or chain[-1].reward not in (None, call.reward):
            chain = []
            chains.append(chain)
        chain.append(call)
        ending[call.id] = chain
    rows: list[Trajectory] = []
    for chain in chains:
        last = chain[-1]
        if last.reward is None:
            raise TrajectoryError(
                f"interaction {last.id!r} ends a row but has no reward: set one on it"
            )
        try:
            row = Trajectory.from_turns([call.response for call in chain], last.reward)
        except TrajectoryError as error:
            raise TrajectoryError(f"interaction {last.id!r}: {error}") from error
        rows.append(_checked(row, f"interaction {last.id!r}"))
    return rows
