"""Rewards: how a reward function is called, and ready ones for answers that can be compared.

A reward function has AReaL's signature, ``reward_fn(prompt, completions, prompt_ids,
completion_ids, **data) -> float``, plain or async. `completions` is the text of the last reply
without its end of turn. `data` are the columns of the dataset row and ``stop_reason`` (``stop``,
or ``length`` when the budget ran out); a function gets those that it names, or all if it takes
``**``.
"""

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from areal_agent import ModelResponse
from areal_agent.data.chat import ChatFormat
from areal_agent.errors import DataError, RewardError
from areal_agent.rewarding import LARGEST_REWARD

RewardFunction = Callable[..., float | Awaitable[float]]

RESERVED = frozenset({"prompt", "completions", "prompt_ids", "completion_ids", "stop_reason"})
"""Names that a dataset's columns must not have, because every reward function gets them."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


class Scorer:
    """Calls a reward function with what it asks for, and checks what it returns.

    A plain function runs on the event loop: make one that takes more than a millisecond async.
    """

    def __init__(self, reward_fn: RewardFunction, chat: ChatFormat) -> None:
        self._reward_fn = reward_fn
        self._chat = chat
        parameters = inspect.signature(reward_fn).parameters.values()
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._wants = None if takes_all else {p.name for p in parameters}

    async def __call__(
        self, response: ModelResponse, data: Mapping[str, Any], *, cut_off: bool = False
    ) -> float:
        """Score the last reply of an episode.

        Args:
            response: the reply.
            data: the dataset row.
            cut_off: the budget ran out, whatever the reply says.

        Raises:
            DataError: a column has a reserved name.
            RewardError: the function failed, or returned something that is no finite number.
        """
        clash = RESERVED & data.keys()
        if clash:
            raise DataError(
                f"the dataset has columns {sorted(clash)}, which are names that every reward "
                "function gets from the episode: rename them"
            )
        cut_off = cut_off or response.stop_reason == "length"
        extra = {**data, "stop_reason": "length" if cut_off else "stop"}
        if self._wants is not None:
            extra = {key: value for key, value in extra.items() if key in self._wants}
        prompt, output = list(response.input_tokens), list(response.output_tokens)
        text = self._chat.reply_text(output)
        try:
            value = self._reward_fn(self._chat.decode(prompt), text, prompt, output, **extra)
            if inspect.isawaitable(value):
                value = await value
            reward = math.nan if isinstance(value, str) else float(value)
        except Exception as error:
            raise RewardError(
                f"the reward function failed on {text!r}: {type(error).__name__}: {error}"
            ) from error
        if not abs(reward) < LARGEST_REWARD:
            raise RewardError(
                f"expected a finite reward that float32 can hold for {text!r}, got {value!r}"
            )
        return reward


def exact_match(
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    answer: str,
    **_: object,
) -> float:
    """1 when the reply's final answer is the text of `answer`, else 0."""
    return float(final_answer(completions) == str(answer).strip())


def numeric_match(
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    answer: str | float,
    **_: object,
) -> float:
    """1 when the last number of the final answer equals `answer`'s, as numbers; else 0."""
    got, wanted = last_number(final_answer(completions)), last_number(str(answer))
    if wanted is None:
        raise DataError(f"expected the column 'answer' to hold a number, got {answer!r}")
    return float(got is not None and math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-12))


def final_answer(text: str) -> str:
    r"""Return the answering part: in the last ``\boxed{}``, after the last ``####``, or all.

    A box that is not closed counts as none.
    """
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    return text.rpartition("####")[2].strip()


def last_number(text: str) -> float | None:
    """The last number in `text`, thousands separators removed; None without any."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i]
    return None
