"""Rewards from a judge: any model behind an endpoint that speaks OpenAI's chat completions.

`JudgeReward` scores a reply by itself, `RankingJudge` ranks the replies of a group against each
other, and `RankedWorkflow` trains on such ranks. A judge that cannot be reached, or does not answer
in the form asked for, is a `RewardError`: never a score.
"""

import hashlib
import importlib
import os
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_agent import AsyncRewardWrapper, Episode, GenerationHyperparameters, workflow_context
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import row_messages
from areal_agent.errors import ConfigError, RewardError
from areal_agent.net.openai_client import openai_client

from .rlvr import RLVRWorkflow

SCORING = """Judge how well the reply answers. Say in one or two sentences why, and end with a line
of the form

Score: N

where N is a whole number from 0 (useless) to 10 (could not be better)."""

RANKING = """Judge how well each of the replies answers. Say in one or two sentences why, and end
with a line of the form

Ranking: 2, 3, 1

that names every reply by its number, the best one first."""

_SCORE = re.compile(r"^\W*Score\W*:\W*(\d+(?:\.\d+)?)\W*$", re.IGNORECASE | re.MULTILINE)
_RANKING = re.compile(r"^\W*Ranking\W*:([\d\s,>]+)\W*$", re.IGNORECASE | re.MULTILINE)
_BEST_SCORE = 10


class JudgeEndpoint:
    """A model that is asked over the HTTP client that the run's episodes share."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        """Take where and what to ask.

        Args:
            base_url: such as ``http://localhost:8000/v1``.
            model: what the endpoint calls it.
            api_key_env: the environment variable that holds the key. None sends none that counts.
            request: further fields of each request; by default ``temperature`` is 0.

        Raises:
            ConfigError: the environment variable is not set.
        """
        key = "none" if api_key_env is None else os.environ.get(api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"api_key_env names {api_key_env!r}, but there is no such environment variable: "
                "set it to the endpoint's key"
            )
        importlib.import_module("openai")  # now: later it would hold up the event loop
        self._url, self._model, self._key = base_url, model, key
        self._request = {"temperature": 0.0, **(request or {})}

    async def ask(self, instruction: str, text: str) -> str:
        """Return what the model says to `text`; within a replay, what it said then.

        Raises:
            RewardError: it cannot be reached, or refuses.
        """
        args = (instruction, text)
        return await workflow_context.call_tool(
            self.judge_reply, args, timeout_seconds=None, counted=False
        )

    async def judge_reply(self, instruction: str, text: str) -> str:
        """Ask the model now."""
        messages = [
            {"role": "system", "content": instruction},
            {"role": "user", "content": text},
        ]
        http_client = await workflow_context.get_httpx_client()
        sdk: Any = openai_client(http_client, base_url=self._url, api_key=self._key)
        try:
            answer = await sdk.chat.completions.create(
                model=self._model, messages=messages, **self._request
            )
            return str(answer.choices[0].message.content or "")
        except Exception as error:
            raise RewardError(
                f"the judge {self._model} at {self._url} failed: {type(error).__name__}: {error}"
            ) from error


class JudgeReward:
    """An async reward function: a judge's score of the reply, from 0 to 1."""

    def __init__(self, judge: JudgeEndpoint, *, instruction: str = SCORING) -> None:
        """Take a judge; `instruction` must have it end with a line ``Score: N``, N up to 10."""
        self._judge = judge
        self._instruction = instruction

    async def __call__(
        self,
        prompt: str,
        completions: str,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        **data: Any,
    ) -> float:
        """Return the score.

        Raises:
            RewardError: there is none.
        """
        question = _question(data, prompt)
        said = await self._judge.ask(self._instruction, f"{question}\n\nReply:\n{completions}")
        scores = _SCORE.findall(said)
        if not scores or not 0 <= float(scores[-1]) <= _BEST_SCORE:
            raise RewardError(f"expected a line 'Score: N' from the judge, got {said!r:.300}")
        return float(scores[-1]) / _BEST_SCORE


class RankingJudge:
    """A reward over a group: 1 for the reply that a judge finds best, 0 for the worst.

    Ranks in between are evenly spaced. Replies are shown in an order that depends on their text
    alone, since judges favour places; equal replies are shown once, and share their place.
    """

    def __init__(
        self, judge: JudgeEndpoint, chat: ChatFormat, *, instruction: str = RANKING
    ) -> None:
        """Take a judge.

        Args:
            judge: is asked once a group.
            chat: reads the replies' tokens.
            instruction: must have it end with a line ``Ranking: 2, 3, 1``.
        """
        self._judge = judge
        self._chat = chat
        self._instruction = instruction

    async def __call__(self, data: dict[str, Any], episodes: Sequence[Episode]) -> list[float]:
        """Return a reward for each episode.

        Raises:
            RewardError: the judge gave no ranking.
        """
        texts = [self._reply(episode) for episode in episodes]
        shown = _shuffled(sorted(set(texts)))
        if len(shown) == 1:
            return [0.5] * len(texts)
        parts = [f"Reply {i}:\n{text}" for i, text in enumerate(shown, start=1)]
        said = await self._judge.ask(self._instruction, "\n\n".join([_question(data, ""), *parts]))
        places = _RANKING.findall(said)
        ranking = [int(number) for number in re.findall(r"\d+", places[-1])] if places else []
        if sorted(ranking) != list(range(1, len(shown) + 1)):
            raise RewardError(
                f"expected a line 'Ranking: ...' of {len(shown)} replies from the judge, got "
                f"{said!r:.300}"
            )
        worst = len(shown) - 1
        earned = {shown[number - 1]: 1 - i / worst for i, number in enumerate(ranking)}
        return [earned[text] for text in texts]

    def _reply(self, episode: Episode) -> str:
        return self._chat.reply_text(list(episode.interactions[-1].response.output_tokens))


class RankedWorkflow(RLVRWorkflow):
    """One reply a prompt; in training a judge ranks those of a group, in evaluation it scores."""

    def __init__(
        self,
        gconfig: GenerationHyperparameters,
        chat: ChatFormat,
        *,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        """Take a judge; see `JudgeEndpoint`. `timeout_seconds` bounds a score in evaluation."""
        judge = JudgeEndpoint(base_url, model, api_key_env=api_key_env)
        self._alone = JudgeReward(judge)
        super().__init__(
            AsyncRewardWrapper(self._score, timeout_seconds),
            gconfig,
            chat,
            group_reward=RankingJudge(judge, chat),
        )

    async def _score(self, *reply: Any, **data: Any) -> float:
        if workflow_context.get().is_eval:
            return await self._alone(*reply, **data)
        return 0.0  # until the group is ranked


def _question(data: Mapping[str, Any], prompt: str) -> str:
    """The row's messages as text; `prompt` where it has none."""
    if "messages" not in data:
        return prompt
    return "\n\n".join(f"{m['role']}:\n{m.get('content') or ''}" for m in row_messages(data))


def _shuffled(texts: list[str]) -> list[str]:
    """The same texts in an order that looks random and is always the same."""
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).digest()
    random.Random(digest).shuffle(texts)
    return texts
