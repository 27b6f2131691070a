"""Agents as workflows: what they are handed, and what becomes of what they return."""

import asyncio
from typing import Any

import httpx
import pytest
from gateway_support import GCONFIG, USER, Stage, stage
from openai import AsyncOpenAI

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.errors import ConfigError, EngineFault
from areal_agent.rollout.adapters import AgentWorkflow, is_agent
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode


class Asks:
    """Asks `turns` times, each time going on from the reply before, then gives back `value`."""

    def __init__(self, value: Any, turns: int = 1) -> None:
        self.value = value
        self.turns = turns

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> Any:
        messages: list[Any] = [USER]
        for _ in range(self.turns):
            made = await client.chat.completions.create(model="m", messages=messages)
            messages += [made.choices[0].message.model_dump(exclude_none=True), USER]
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


async def episode(
    playing: Stage, agent: Any, *, is_eval: bool = False, **kwargs: Any
) -> EpisodeRun:
    workflow = AgentWorkflow(agent, playing.gateway, GCONFIG, **kwargs)
    spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0, is_eval=is_eval)
    return await run_episode(
        workflow, playing.engine, {"x": 1}, spec, limits=LimitsConfig(seconds=20)
    )


@pytest.mark.parametrize("value", [1, True, 0.5])
async def test_one_number_is_the_reward_of_all_turns(value: float) -> None:
    async with stage("a", "b") as playing:
        run = await episode(playing, Asks(value, turns=2))
        [row] = run.rows
        text = playing.chat.decode(
            [t for t, m in zip(row.input_ids, row.loss_mask, strict=True) if m]
        )
    assert run.episode.outcome == "ok"
    assert row.reward == float(value)
    assert text == "a<|im_end|>b<|im_end|>"
    assert row.metrics["prefix_hits"] == 1


async def test_a_discount_makes_a_row_of_each_return() -> None:
    async with stage("a", "b", "c") as playing:
        run = await episode(playing, Asks(1.0, turns=3), discount=0.5)
    assert [row.reward for row in run.rows] == [0.25, 0.5, 1.0]
    assert [sum(row.loss_mask) for row in run.rows] == [2, 2, 2]


async def test_individual_rows_have_one_reply_each() -> None:
    async with stage("a", "b") as playing:
        run = await episode(playing, Asks(1.0, turns=2), style="individual")
    assert [sum(row.loss_mask) for row in run.rows] == [2, 2]


@pytest.mark.parametrize("value", [None, float("nan"), "1.0", {"other": 1.0}, [1.0, 2.0]])
async def test_what_is_no_reward_is_a_reward_error(value: Any) -> None:
    async with stage() as playing:
        run = await episode(playing, Asks(value))
    assert run.episode.outcome == "reward_error"
    assert run.rows == []


@pytest.mark.parametrize("value", [None, 1.0])
async def test_without_a_call_there_is_nothing_to_train_on(value: Any) -> None:
    """S08: nothing synthetic takes the place of an answer."""
    async with stage() as playing:
        run = await episode(playing, Asks(value, turns=0))
    assert (run.episode.outcome, list(run.rows)) == ("rejected", [])


async def test_an_agent_that_raises_is_data() -> None:
    async with stage() as playing:
        run = await episode(playing, Asks(KeyError("oops")))
        assert len(playing.gateway.sessions) == 0
    assert run.episode.outcome == "workflow_error"
    assert run.episode.failure is not None
    assert "oops" in run.episode.failure.message


async def test_a_swallowed_failure_of_the_engine_is_not_trained_on() -> None:
    class Swallows:
        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
            once = client.with_options(max_retries=0)
            await once.chat.completions.create(model="m", messages=[USER])
            try:
                await once.chat.completions.create(model="m", messages=[USER, USER])
            except Exception:  # noqa: BLE001 - what careless agents do
                return 0.0
            raise AssertionError

    async with stage("fine", EngineFault("broke")) as playing:
        run = await episode(playing, Swallows())
    assert run.episode.outcome == "inference_error"
    assert list(run.rows) == []


async def test_a_failure_of_the_engine_is_named_when_the_agent_ends_with_it() -> None:
    class Ends:
        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> None:
            await client.with_options(max_retries=0).chat.completions.create(
                model="m", messages=[USER]
            )

    async with stage(EngineFault("broke")) as playing:
        run = await episode(playing, Ends())
    assert run.episode.outcome == "inference_error"
    assert run.episode.failure is not None
    assert run.episode.failure.type == "EngineFault"


async def test_rewards_may_be_posted() -> None:
    class Posts:
        async def run(
            self, data: dict[str, Any], base_url: str, api_key: str, http_client: httpx.AsyncClient
        ) -> None:
            async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
                first = await client.chat.completions.create(model="m", messages=[USER])
                await client.chat.completions.create(model="m", messages=[USER, USER])
            root = base_url.removesuffix("/v1")
            for body in ({"reward": 2, "interaction_id": first.id}, {"reward": 0.5}):
                answer = await http_client.post(f"{root}/rl/set_reward", json=body)
                assert answer.status_code == 200, answer.text
            wrong = await http_client.post(f"{root}/rl/set_reward", json={"reward": "high"})
            assert wrong.status_code == 400

    async with asyncio.timeout(20), stage() as playing:
        run = await episode(playing, Posts())
    assert [row.reward for row in run.rows] == [2.0, 0.5]


async def test_a_full_context_keeps_the_turns_before_it() -> None:
    class Fills:
        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
            await client.chat.completions.create(model="m", messages=[USER])
            try:
                long = [{"role": "user", "content": "x" * 600}]
                await client.chat.completions.create(model="m", messages=long)
            except Exception:  # noqa: BLE001 - what careless agents do
                return 0.5
            raise AssertionError

    async with stage("a") as playing:
        run = await episode(playing, Fills())
    assert run.episode.outcome == "truncated"
    assert [row.reward for row in run.rows] == [0.5]


async def test_greedy_replies_are_for_evaluation_only() -> None:
    class Greedy:
        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
            await client.chat.completions.create(model="m", messages=[USER], temperature=0)
            return 1.0

    async with stage() as playing:
        assert (await episode(playing, Greedy(), is_eval=True)).episode.outcome == "ok"
        failed = (await episode(playing, Greedy())).episode
    assert failed.outcome == "workflow_error"
    assert failed.failure is not None
    assert "temperature" in failed.failure.message
    assert "gateway.sampling" in failed.failure.message


async def test_a_timeout_ends_the_calls_of_the_episode() -> None:
    async with stage() as playing:
        playing.engine.hold()
        workflow = AgentWorkflow(Asks(1.0), playing.gateway, GCONFIG)
        spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0)
        run = await run_episode(
            workflow, playing.engine, {}, spec, limits=LimitsConfig(seconds=0.3)
        )
        assert (playing.engine.running, playing.engine.cancelled) == (0, 1)
    assert run.episode.outcome == "timeout"


class Sync:
    def run(self, data: dict[str, Any]) -> float:
        return 1.0


class Taciturn:
    async def run(self) -> float:
        return 1.0


@pytest.mark.parametrize("thing", [Sync(), Taciturn(), object()])
async def test_what_is_no_agent_is_refused(thing: Any) -> None:
    assert not is_agent(thing)
    async with stage() as playing:
        with pytest.raises(ConfigError, match="async def run"):
            AgentWorkflow(thing, playing.gateway, GCONFIG)
