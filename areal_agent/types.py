"""The vocabulary. Read this first: everything else speaks of these few things.

An episode asks an inference engine for tokens (`ModelRequest` to `ModelResponse`), turns them into
`Interaction`s, and ends as an `Episode` with exactly one `Outcome`. Nothing here needs torch.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.config.rollout_limits import LimitName

__all__ = [
    "INFRASTRUCTURE_OUTCOMES",
    "TRAINABLE_OUTCOMES",
    "Call",
    "Episode",
    "Failure",
    "GenerationHyperparameters",
    "Interaction",
    "ModelRequest",
    "ModelResponse",
    "Outcome",
    "PromptId",
    "Score",
    "Scores",
    "StopReason",
    "Tape",
]

StopReason = Literal["stop", "length", "tool_calls", "abort"]
"""Why sampling ended. ``abort`` never reaches a workflow: the client resumes aborted requests."""

Outcome = Literal[
    "ok",
    "rejected",
    "truncated",
    "workflow_error",
    "reward_error",
    "inference_error",
    "timeout",
    "stale",
    "cancelled",
]
"""How an episode ended. Each episode is counted with exactly one: as ``stale``, and not as ``ok``
or ``truncated``, when its group became too old before it was trained on."""

TRAINABLE_OUTCOMES: frozenset[Outcome] = frozenset({"ok", "truncated"})
"""Only these may enter a batch or a baseline."""

INFRASTRUCTURE_OUTCOMES: frozenset[Outcome] = frozenset(
    {"inference_error", "timeout", "reward_error", "cancelled"}
)
"""These say nothing about the policy: such an episode is run again, within a budget."""

PromptId = str
"""One occurrence of a prompt: ``"<epoch>:<index>"``. Members of a group share it."""


def _new_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Ask for one continuation of `input_ids`."""

    input_ids: Sequence[int]
    """Prompt token ids."""
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    """Sampling settings; `n_samples` must be 1 here."""
    rid: str = field(default_factory=_new_id)
    """Names the request. Requests that share it go to the same replica (its cache is warm)."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Free facts for logs; never sent to a server."""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The tokens an engine sampled, each with its logprob and the weights that made it.

    Raises:
        ValueError: on construction, when the three lists differ in length.
    """

    input_tokens: Sequence[int]
    """Prompt ids as the engine received them."""
    output_tokens: Sequence[int]
    """Sampled ids, the end-of-sequence token included when it was sampled."""
    output_logprobs: Sequence[float]
    """Logprob of each sampled token under the full softmax at the sampling temperature."""
    output_versions: Sequence[int]
    """Version of the weights that produced each sampled token."""
    stop_reason: StopReason
    latency_seconds: float = 0.0
    """From the call to the last token, waiting and retries included."""
    ttft_seconds: float = 0.0
    """From the call to the first token; 0 when the engine does not report it."""
    temperature: float | None = None
    """Sampling temperature; 0 for a greedy reply, whose logprobs are at 1. None means that the
    engine does not say: then it is taken to be that of the run's `gconfig`."""

    def __post_init__(self) -> None:
        """Refuse lists that do not line up."""
        n = len(self.output_tokens)
        if not len(self.output_logprobs) == len(self.output_versions) == n:
            raise ValueError(
                "expected one logprob and one version per sampled token, got "
                f"{n} tokens, {len(self.output_logprobs)} logprobs, "
                f"{len(self.output_versions)} versions"
            )


@dataclass(frozen=True, slots=True)
class Scores:
    """Logprobs of given ids, all under the weights of one version."""

    logprobs: Sequence[Sequence[float]]
    """One a token in each row; the first of a row is 0."""
    version: int


TokenSink = Callable[[Sequence[int], Sequence[float], Sequence[int]], None]
"""Hears of sampled tokens as they come: ids, logprobs and weight versions, one of each a token."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """One call of the model within an episode."""

    id: str
    parent_id: str | None
    """The interaction whose prompt and reply this one extends, token for token."""
    messages: Sequence[Mapping[str, Any]]
    """Chat messages sent, for display."""
    reply: Mapping[str, Any]
    """The assistant message made of the reply, for display."""
    response: ModelResponse
    reward: float | None = None
    gconfig: GenerationHyperparameters | None = None
    """What it was sampled with; None when that is not known."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an episode was worth whose tokens nobody has: for evaluation only."""

    reward: float
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in an episode, kept as data."""

    place: str
    """Where: ``workflow``, ``reward``, ``inference``, ``trajectory``, ``timeout``, ``cancelled``,
    ``accept``."""
    type: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""


@dataclass(slots=True, eq=False)
class Call:
    """One thing that an episode asked of the world outside: of a model, or of a tool."""

    kind: Literal["model", "tool"]
    name: str
    """The tool's; ``model`` for a model."""
    began: int
    """Place among the beginnings and ends of all calls of the episode."""
    ended: int | None = None
    """The same for its end; None while it goes on, and for ever if it was cancelled."""
    started_seconds: float = 0.0
    """Since the episode began."""
    seconds: float = 0.0
    request: ModelRequest | None = None
    response: ModelResponse | None = None
    args: bytes | None = None
    """Of a tool: JSON of ``[args, kwargs]``; None when JSON cannot hold them."""
    shown: str = ""
    """Of a tool: the arguments, and what it returned, for people, where JSON cannot hold them."""
    result: bytes | None = None
    """Of a tool: JSON of what it returned; None when it failed, or JSON cannot hold that."""
    error: Mapping[str, Any] | None = None
    """What it failed with: ``type``, ``module``, ``message``, ``args``."""


@dataclass(slots=True, eq=False)
class Tape:
    """Everything that came into an episode from outside, and what came out: enough to replay it."""

    facts: Mapping[str, int]
    """Run seed, epoch, index and sample, from which all seeds derive."""
    data: Mapping[str, Any]
    """The dataset row."""
    started_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    calls: list[Call] = field(default_factory=list["Call"])
    """In the order in which they began."""
    clock: list[float] = field(default_factory=list[float])
    """What the episode was told of the time, in order."""
    random_seed: int | None = None
    """Seed of its random choices; None when it made none."""
    rows: Sequence[Any] = ()
    """The `Trajectory`s that it gave, as they were judged with its group if they were."""
    own: Mapping[str, Any] | None = None
    """Its own ``outcome`` and the ``rewards`` of its rows, where its group was judged together."""
    _place: int = 0

    def begin(self, kind: Literal["model", "tool"], name: str) -> Call:
        """Note that a call begins."""
        call = Call(kind, name, self._next(), started_seconds=time.monotonic() - self.started)
        self.calls.append(call)
        return call

    def end(self, call: Call) -> None:
        """Note that it has ended, well or not."""
        call.ended = self._next()
        call.seconds = time.monotonic() - self.started - call.started_seconds

    def _next(self) -> int:
        place, self._place = self._place, self._place + 1
        return place


@dataclass(frozen=True, slots=True)
class Episode:
    """The record of one episode, whatever became of it."""

    id: str
    prompt_id: PromptId
    outcome: Outcome
    interactions: Sequence[Interaction] = ()
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: Failure | None = None
    versions: tuple[int, int] | None = None
    """Oldest and newest weight version among the sampled tokens; None without any."""
    seconds: float = 0.0
    """Wall time from start to end."""
    tape: Tape | None = field(default=None, repr=False, compare=False)
    """What came into it from outside, in the order of things; None when that is not known."""
    limit: LimitName | None = None
    """The limit of `rollout.limits` that it hit."""

    def __post_init__(self) -> None:
        """A failure is explained, a success is not."""
        if self.outcome in TRAINABLE_OUTCOMES and self.failure is not None:
            raise ValueError(f"outcome {self.outcome!r} cannot carry a failure: {self.failure}")
