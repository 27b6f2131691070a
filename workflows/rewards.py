"""Rewards: how a reward function is called, and several of them as one.

A reward function has AReaL's signature, ``reward_fn(prompt, completions, prompt_ids,
completion_ids, **data) -> float``, plain or async. `completions` is the text of the last reply
without its end of turn. `data` are the columns of the dataset row and ``stop_reason`` (``stop``,
or ``length`` when the budget ran out); a function gets those that it names, or all if it takes
``**``. A plain function runs in a worker process, see `areal_agent.AsyncRewardWrapper`.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

from areal_agent import AsyncRewardWrapper, ModelResponse
from areal_agent.aio import collect
from areal_agent.data.chat import ChatFormat
from areal_agent.errors import ConfigError, DataError, RewardError
from areal_agent.rewarding import as_reward

from .answers import exact_match, final_answer, last_number, numeric_match

__all__ = [
    "RESERVED",
    "RewardFunction",
    "Scored",
    "Scorer",
    "WeightedRewards",
    "exact_match",
    "final_answer",
    "last_number",
    "numeric_match",
]

RewardFunction = Callable[..., float | Awaitable[float | None] | None]

RESERVED = frozenset({"prompt", "completions", "prompt_ids", "completion_ids", "stop_reason"})
"""Names that a dataset's columns must not have, because every reward function gets them."""


class Scored(NamedTuple):
    """What an episode earned, and what that is made of."""

    reward: float
    metrics: Mapping[str, float]


class _Part:
    """A reward function that gets what it names."""

    def __init__(self, reward_fn: RewardFunction) -> None:
        is_wrapped = isinstance(reward_fn, AsyncRewardWrapper)
        self.call = reward_fn if is_wrapped else AsyncRewardWrapper(reward_fn)
        try:
            parameters = inspect.signature(reward_fn).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the reward function {reward_fn!r:.120} does not tell which arguments it takes: "
                "write one around it, `def reward(prompt, completions, prompt_ids, "
                "completion_ids): ...`"
            ) from error
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._wants = None if takes_all else {p.name for p in parameters}

    async def __call__(
        self, reply: tuple[Any, ...], extra: Mapping[str, Any], *, optional: bool
    ) -> float | None:
        if self._wants is not None:
            extra = {key: value for key, value in extra.items() if key in self._wants}
        call = self.call.optional if optional else self.call
        return await call(*reply, **extra)


def _weighted(name: str, given: object) -> tuple[_Part, float]:
    try:
        function, weight = cast("tuple[RewardFunction, float]", given)
        weight = as_reward(weight)
    except (TypeError, ValueError, RewardError) as error:
        raise ConfigError(
            f"expected a reward function and its weight, a finite number, under {name!r}, got "
            f"{given!r:.120}"
        ) from error
    return _Part(function), weight


class WeightedRewards:
    """The weighted sum of several rewards, each a metric of its own: ``reward_<name>``.

    It is a reward function itself, for ready workflows and to be awaited in your own.
    """

    def __init__(
        self,
        rewards: Mapping[str, tuple[RewardFunction, float]],
        *,
        optional: Collection[str] = (),
    ) -> None:
        """Take the rewards.

        Args:
            rewards: by name, each function with its weight.
            optional: names of those that may return None where they do not apply; then they count
                neither in the sum nor in their metric.

        Raises:
            ConfigError: there is none, `optional` names others, or a worker could not import one.
        """
        if not rewards or set(optional) - rewards.keys():
            raise ConfigError(
                f"expected rewards, and optional ones among them, got {list(rewards)} and "
                f"{list(optional)}"
            )
        self._parts = {name: _weighted(name, given) for name, given in rewards.items()}
        self._optional = frozenset(optional)

    async def __call__(self, *reply: Any, **extra: Any) -> float:
        """Return the weighted sum."""
        return (await self.scored(*reply, **extra)).reward

    async def scored(self, *reply: Any, **extra: Any) -> Scored:
        """Return the weighted sum, and the rewards without their weights."""
        values = await collect(
            part(reply, extra, optional=name in self._optional)
            for name, (part, _) in self._parts.items()
        )
        given = zip(self._parts.items(), values, strict=True)
        known = [(name, weight, value) for (name, (_, weight)), value in given if value is not None]
        metrics = {f"reward_{name}": value for name, _, value in known}
        return Scored(sum(weight * value for _, weight, value in known), metrics)


class Scorer:
    """Calls a reward function with what it asks for, and checks what it returns."""

    def __init__(
        self, reward_fn: RewardFunction, chat: ChatFormat, *, none_rejects: bool = False
    ) -> None:
        """Take the function.

        Args:
            reward_fn: plain, async, wrapped, or `WeightedRewards`.
            chat: writes tokens as text.
            none_rejects: the function may return None, "this episode cannot be judged".

        Raises:
            ConfigError: a worker process could not import a plain function.
        """
        self._weighted = reward_fn if isinstance(reward_fn, WeightedRewards) else None
        self._part = _Part(reward_fn)
        self._chat = chat
        self._none_rejects = none_rejects

    async def __call__(
        self, response: ModelResponse, data: Mapping[str, Any], *, cut_off: bool = False
    ) -> Scored | None:
        """Score the last reply of an episode; None rejects it.

        Args:
            response: the reply.
            data: the dataset row.
            cut_off: the budget ran out, whatever the reply says.

        Raises:
            DataError: a column has a reserved name, or the function found the row wrong.
            RewardError: the function failed, took too long, or returned no finite number.
        """
        clash = RESERVED & data.keys()
        if clash:
            raise DataError(
                f"the dataset has columns {sorted(clash)}, which are names that every reward "
                "function gets from the episode: rename them"
            )
        cut_off = cut_off or response.stop_reason == "length"
        extra = {**data, "stop_reason": "length" if cut_off else "stop"}
        prompt, output = list(response.input_tokens), list(response.output_tokens)
        text = self._chat.reply_text(output)
        reply = (self._chat.decode(prompt), text, prompt, output)
        try:
            if self._weighted is not None:
                return await self._weighted.scored(*reply, **extra)
            reward = await self._part(reply, extra, optional=self._none_rejects)
        except RewardError as error:
            raise type(error)(f"on the reply {text!r:.200}: {error}") from error
        return None if reward is None else Scored(reward, {})
