"""Judges over a scripted endpoint: scores, ranks, and answers that are no judgement."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from areal_agent.workflows.judge import JudgeEndpoint, JudgeReward, RankedWorkflow, RankingJudge
from areal_agent.workflows.rlvr import RLVRWorkflow
from workflow_support import demo_chat, says

from areal_agent import Episode, GenerationHyperparameters, Interaction, ModelResponse
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.errors import ConfigError, RewardError
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.context import use_clients
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.rollout.grouped import GroupedRolloutWorkflow

ROW: dict[str, Any] = {"messages": [{"role": "user", "content": "How?"}]}


class Told(HttpClients):
    """Clients whose outside answers what the test says."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.left = list(answers)
        self.asked: list[dict[str, Any]] = []

    def external(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        answer = self.left.pop(0)
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": "no"}})
        if callable(answer):
            answer = answer(self.asked[-1]["messages"][-1]["content"])
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "a", "object": "chat.completion", "created": 0, "model": "m"}
        return httpx.Response(200, json={**body, "choices": [choice]})


@asynccontextmanager
async def judged(*answers: Any) -> AsyncGenerator[Told]:
    told = Told(*answers)
    async with told:
        with use_clients(told):
            yield told


def endpoint() -> JudgeEndpoint:
    return JudgeEndpoint("http://judge/v1", "strict", request={"max_tokens": 99})


async def test_a_score_is_the_last_one_told_of_ten() -> None:
    reward = JudgeReward(endpoint())
    async with judged("Score: 2 at first.\n**Score: 7**") as told:
        assert await reward("How?\n", "So.", [], [], **ROW) == 0.7
    (asked,) = told.asked
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("strict", 0.0, 99)
    assert asked["messages"][1]["content"] == "user:\nHow?\n\nReply:\nSo."


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("It is fine.", "expected a line 'Score: N'"),
        ("Score: 11", "got 'Score: 11'"),
        (None, "expected a line"),
        (401, "the judge strict at http://judge/v1 failed: AuthenticationError"),
    ],
)
async def test_what_is_no_score_is_a_reward_error(answer: Any, message: str) -> None:
    async with judged(answer):
        with pytest.raises(RewardError, match=message):
            await JudgeReward(endpoint())("How?", "So.", [], [])


def episode(text: str) -> Episode:
    ids = demo_chat().tokenizer.encode(f"{text}<eos>", add_special_tokens=False)
    response = ModelResponse([5], ids, [0.0] * len(ids), [0] * len(ids), "stop")
    return Episode("e", "p", "ok", [Interaction("e:0", None, [], {}, response)], reward=0.0)


def by_size(text: str) -> str:
    """Rank the largest number first, as a judge would that sees the replies in any order."""
    replies = [part.partition(":\n") for part in text.split("\n\n") if part.startswith("Reply ")]
    best_first = sorted(replies, key=lambda reply: -int(reply[2]))
    return "Because.\nRanking: " + ", ".join(name.split()[1] for name, _, _ in best_first)


async def test_ranks_are_spread_from_one_to_nought_and_equal_replies_share_one() -> None:
    judge = RankingJudge(endpoint(), demo_chat())
    episodes = [episode(text) for text in ("3", "9", "3", "5")]
    async with judged(by_size) as told:
        assert await judge(ROW, episodes) == [0.0, 1.0, 0.0, 0.5]
        assert await judge(ROW, [episode("3"), episode("3")]) == [0.5, 0.5]
    assert told.asked[0]["messages"][1]["content"].count("Reply ") == 3


@pytest.mark.parametrize("answer", ["Ranking: 1", "Ranking: 1, 1", "1, 2", "Ranking: 1, 2, 3"])
async def test_half_a_ranking_is_a_reward_error(answer: str) -> None:
    async with judged(answer):
        with pytest.raises(RewardError, match="of 2 replies"):
            await RankingJudge(endpoint(), demo_chat())(ROW, [episode("3"), episode("4")])


async def test_a_judges_words_are_recorded_and_are_no_call_of_a_tool() -> None:
    chat = demo_chat()
    gconfig = GenerationHyperparameters(max_new_tokens=8, max_tokens=32)
    workflow = RLVRWorkflow(JudgeReward(endpoint()), gconfig, chat)
    spec = EpisodeSpec(id="0:0:0", prompt_id="0:0", seed=1, epoch=0, index=0)
    async with judged("Score: 5"):
        limits = LimitsConfig(tool_calls=0)
        run = await run_episode(workflow, says(chat, "3"), ROW, spec, limits=limits)
    assert (run.episode.outcome, run.episode.reward) == ("ok", 0.5)
    assert run.episode.tape is not None
    model, judge = run.episode.tape.calls
    assert (judge.kind, judge.name, judge.result) == ("tool", "judge_reply", b'"Score: 5"')
    assert model.kind == "model"


async def test_a_workflow_trains_on_ranks_and_a_failing_judge_is_no_reward() -> None:
    chat = demo_chat()
    workflow = RankedWorkflow(
        GenerationHyperparameters(max_new_tokens=8, max_tokens=32),
        chat,
        base_url="http://judge/v1",
        model="strict",
    )
    grouped = GroupedRolloutWorkflow(workflow, 2)
    spec = EpisodeSpec(id="0:0", prompt_id="0:0", seed=1, epoch=0, index=0)
    async with judged(by_size, 400):
        run = await grouped.run(says(chat, "3", "4"), ROW, spec)
        assert [one.episode.reward for one in run.runs] == [0.0, 1.0]
        run = await grouped.run(says(chat, "3", "4"), ROW, spec)
        assert [one.episode.outcome for one in run.runs] == ["reward_error"] * 2


def test_a_key_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="AREAL_AGENT_TEST_NO_KEY"):
        JudgeEndpoint("http://judge/v1", "strict", api_key_env="AREAL_AGENT_TEST_NO_KEY")
