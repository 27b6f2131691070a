"""How tokens are sampled."""

from typing import Any, Self

from pydantic import Field, model_validator

from areal_agent.config.base import ConfigModel


class GenerationHyperparameters(ConfigModel):
    """Sampling settings of one request, under AReaL's names."""

    n_samples: int = Field(default=1, ge=1)
    """Samples per prompt. In training: the size of a group."""

    max_new_tokens: int = Field(default=16384, ge=1)
    """Most tokens to sample for one reply, over all segments of an interrupted one."""

    min_new_tokens: int = Field(default=0, ge=0)
    """Stop tokens are not sampled before this many tokens."""

    max_tokens: int = Field(default=32768, ge=1)
    """Most tokens of prompt and reply together."""

    greedy: bool = False
    """Take the likeliest token each time; the same as temperature 0."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Logits are divided by this before sampling. 0 means greedy."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the smallest set of tokens whose probability reaches this."""

    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens. 0 means all."""

    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a reply, besides the model's own end-of-sequence ids."""

    stop: tuple[str, ...] = ()
    """Strings that end a reply when they appear in its text."""

    ignore_eos: bool = False
    """Go on past end-of-sequence tokens."""

    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted from a token's logit for each time it was already sampled in this reply."""

    seed: int | None = Field(default=None, ge=0)
    """Makes sampling repeatable. Members of a group still get different seeds derived from it."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens "
                f"{self.max_new_tokens}: lower the first or raise the second"
            )
        return self

    @property
    def effective_temperature(self) -> float:
        """The temperature that is applied: 0 when `greedy` is set."""
        return 0.0 if self.greedy else self.temperature

    def new(self, **overrides: Any) -> "GenerationHyperparameters":
        """Return a checked copy with some settings replaced.

        Raises:
            pydantic.ValidationError: an override is unknown or out of range.
        """
        return GenerationHyperparameters.model_validate({**self.model_dump(), **overrides})
