"""One request inside the engine: what was asked, and what has been sampled so far."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from areal_agent.inference.engine.detokenize import StopMatcher

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one reply is sampled. Checked by whoever makes it; the engine trusts it."""

    max_tokens: int = 16
    """Most tokens to sample; the model's own limit may end the reply earlier."""
    min_tokens: int = 0
    """Stop ids are not sampled before this many tokens."""
    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """All ids that end the reply, the model's end-of-sequence ids included when they count."""
    seed: int = 0
    """With the position of a token it determines the random number behind that token."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Ask the engine for one continuation of `prompt`."""

    id: str
    prompt: list[int]
    params: SamplingParams
    cache_key: str | None = None
    """Names the conversation: its next turn finds the cache of the last one."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished continuation; the three lists have one entry per sampled token."""

    token_ids: list[int]
    logprobs: list[float]
    """Under the full softmax at the sampling temperature (greedy: at temperature 1)."""
    versions: list[int]
    finish_reason: FinishReason
    text: str | None = None
    """Text before the stop string, for requests that have any; None otherwise."""
    stop_string: str | None = None
    """The stop string that ended it, if one did."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    first_token_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the scheduler. Belongs to the engine's thread."""

    request: GenerateRequest
    limit: int
    """Most tokens of prompt and reply together."""
    on_done: Callable[[Generation], None]
    on_token: "Callable[[Sequence], None] | None" = None
    """Hears of each sampled token."""
    matcher: StopMatcher | None = None
    tokens: list[int] = field(default_factory=list[int])
    """Prompt and reply."""
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    valid: int = 0
    """So many of `tokens` have their keys and values in the slot."""
    epoch: int = -1
    """Count of weight updates when the slot was filled."""
    cached: int = 0
    submitted: float = field(default_factory=time.monotonic)
    first_token_seconds: float = 0.0
    cancelled: bool = False

    def __post_init__(self) -> None:
        """Start from the prompt."""
        self.tokens = list(self.request.prompt)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    def append(self, token: int, logprob: float, version: int) -> FinishReason | None:
        """Take one sampled token; return why the reply ends with it, or None."""
        if not self.logprobs:
            self.first_token_seconds = time.monotonic() - self.submitted
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.on_token is not None:
            self.on_token(self)
        if token in self.request.params.stop_ids:
            return "stop"
        if self.matcher is not None and self.matcher.push(token):
            return "stop"
        if len(self.tokens) >= self.limit:
            return "length"
        return None

    def finish(self, reason: FinishReason) -> None:
        """Hand the result over; nothing may be appended afterwards."""
        self.on_done(
            Generation(
                token_ids=self.tokens[self.prompt_length :],
                logprobs=self.logprobs,
                versions=self.versions,
                finish_reason=reason,
                text=None if self.matcher is None else self.matcher.finish(),
                stop_string=None if self.matcher is None else self.matcher.matched,
                cached_tokens=self.cached,
                first_token_seconds=self.first_token_seconds,
            )
        )
