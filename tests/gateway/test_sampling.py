"""What an agent's own sampling settings become in training, and where that is told."""

import logging
from typing import Any

import pytest
from gateway_support import GCONFIG, USER, stage
from openai import AsyncOpenAI

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.records import episode_record
from areal_agent.trajectory import TrajectoryGroup, collate

RUN_TEMPERATURE = 0.75


class Moody:
    """Asks once at each of its temperatures (None: says nothing), in one dialogue."""

    def __init__(self, *temperatures: float | None, **settings: Any) -> None:
        self.temperatures = temperatures
        self.settings = settings

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        messages: list[Any] = [USER]
        for temperature in self.temperatures:
            own = {} if temperature is None else {"temperature": temperature}
            made = await client.chat.completions.create(
                model="m", messages=messages, **own, **self.settings
            )
            messages += [made.choices[0].message.model_dump(exclude_none=True), USER]
        return 1.0


async def trained(agent: Moody, *, is_eval: bool = False, **gateway: Any) -> EpisodeRun:
    async with stage("ab", "cd ef", "g", **gateway) as playing:
        gconfig = GCONFIG.new(temperature=RUN_TEMPERATURE)
        workflow = AgentWorkflow(agent, playing.gateway, gconfig)
        spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0, is_eval=is_eval)
        return await run_episode(
            workflow, playing.engine, {}, spec, limits=LimitsConfig(seconds=20)
        )


def heat(run: EpisodeRun) -> list[list[float]]:
    """For each turn of the one row, the temperatures at which its tokens are trained."""
    assert len(run.rows) == 1
    batch = collate([TrajectoryGroup("p", [run.rows])], temperature=RUN_TEMPERATURE)
    found = batch.temperatures[batch.loss_mask].tolist()
    turns = [
        [found.pop(0) for _ in call.response.output_tokens] for call in run.episode.interactions
    ]
    assert not found
    return turns


async def test_each_turn_is_trained_at_its_own_temperature() -> None:
    run = await trained(Moody(0.5, None, 1.5))
    assert [set(turn) for turn in heat(run)] == [{0.5}, {RUN_TEMPERATURE}, {1.5}]
    assert [call.response.temperature for call in run.episode.interactions] == [0.5, 0.75, 1.5]


async def test_the_record_has_the_effective_settings_of_each_turn() -> None:
    run = await trained(Moody(0.5, None, top_p=0.9, max_tokens=9))
    record = episode_record(run.episode, lambda ids: "", split="train", step=0)
    told = [turn["sampling"] for turn in record["turns"]]
    assert [(s["temperature"], s["top_p"], s["max_new_tokens"]) for s in told] == [
        (0.5, 0.9, 9),
        (RUN_TEMPERATURE, 0.9, 9),
    ]
    assert told[0]["seed"] != told[1]["seed"]


@pytest.mark.parametrize("temperature", [0, 0.2, RUN_TEMPERATURE])
async def test_the_run_may_go_before_the_agent(
    temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"top_p": 0.5, "frequency_penalty": 0.5, "max_tokens": 9, "extra_body": {"top_k": 3}}
    with caplog.at_level(logging.WARNING, "areal_agent.gateway"):
        run = await trained(Moody(temperature, temperature, **own), sampling="run")
    assert [set(turn) for turn in heat(run)] == [{RUN_TEMPERATURE}] * 2
    record = episode_record(run.episode, lambda ids: "", split="train", step=0)
    for turn in record["turns"]:
        s = turn["sampling"]
        assert (s["temperature"], s["greedy"]) == (RUN_TEMPERATURE, False)
        assert (s["top_p"], s["top_k"], s["frequency_penalty"]) == (1.0, 0, 0.0)
        assert s["max_new_tokens"] == 9  # whose that is does not matter to training
    assert run.rows[0].metrics["overruled"] == 2
    [warning] = caplog.messages
    assert "gateway.sampling is run" in warning


async def test_an_agent_that_asks_for_nothing_is_not_overruled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = await trained(Moody(None, RUN_TEMPERATURE), sampling="run")
    assert run.rows[0].metrics["overruled"] == 0
    assert caplog.messages == []


async def test_evaluation_takes_what_the_agent_says() -> None:
    run = await trained(Moody(0, 0.2), is_eval=True, sampling="run")
    assert [call.response.temperature for call in run.episode.interactions] == [0.0, 0.2]
    assert run.episode.outcome == "ok"


async def test_a_responses_answer_tells_the_effective_settings() -> None:
    async with stage("x", sampling="run") as playing:
        gconfig = GCONFIG.new(temperature=RUN_TEMPERATURE)
        async with playing.gateway.session(playing.engine, gconfig, trained=True) as session:
            made = await playing.gateway.client(session).responses.create(
                model="m", input="hi", temperature=0, top_p=0.5
            )
    assert (made.temperature, made.top_p) == (RUN_TEMPERATURE, 1.0)
