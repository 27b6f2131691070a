"""Limits of an episode hold for agents: calls are refused, what was captured may be kept."""

import asyncio
from typing import Any

import openai
import pytest
from gateway_support import GCONFIG, USER, stage
from openai import AsyncOpenAI

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class Talks:
    """Goes on from each reply, until it is refused; then it ends as it likes."""

    def __init__(self, *, turns: int = 5, tools: bool = False, minds: bool = True) -> None:
        self.turns = turns
        self.more: dict[str, Any] = {"tools": [TOOL]} if tools else {}
        self.minds = minds
        self.code: str | None = ""

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        messages: list[Any] = [USER]
        for _ in range(self.turns):
            try:
                made = await client.chat.completions.create(
                    model="m", messages=messages, **self.more
                )
            except openai.BadRequestError as error:
                self.code = error.code
                if self.minds:
                    raise
                break
            reply = made.choices[0].message.model_dump(exclude_none=True)
            calls = reply.get("tool_calls", ())
            results = [{"role": "tool", "tool_call_id": c["id"], "content": "b"} for c in calls]
            messages += [reply, *(results or [USER])]
        return 9.0


async def played(agent: Any, *says: str, **limits: Any) -> EpisodeRun:
    async with stage(*says) as playing:
        workflow = AgentWorkflow(agent, playing.gateway, GCONFIG)
        spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0)
        run = await run_episode(
            workflow, playing.engine, {}, spec, limits=LimitsConfig(**{"seconds": 20, **limits})
        )
        assert len(playing.gateway.sessions) == 0
        assert playing.engine.running == 0
    return run


@pytest.mark.parametrize("minds", [True, False])
async def test_a_call_too_many_is_refused(minds: bool) -> None:
    agent = Talks(minds=minds)
    rejected = await played(agent, turns=2)
    assert agent.code == "episode_limit_reached"
    assert (rejected.episode.outcome, rejected.episode.limit) == ("rejected", "turns")
    kept = await played(agent, turns=2, on_turns=0.25)
    assert (kept.episode.outcome, kept.episode.limit) == ("truncated", "turns")
    [row] = kept.rows
    assert (row.reward, row.truncated, row.metrics["turns"]) == (0.25, True, 2.0)


async def test_tokens_of_all_turns_count_together() -> None:
    agent = Talks()
    kept = await played(agent, "a", "b a b a b", output_tokens=4, on_output_tokens=0)
    assert (kept.episode.outcome, kept.episode.limit) == ("truncated", "output_tokens")
    assert kept.output_tokens == 4
    assert agent.code == "episode_limit_reached"


async def test_a_reply_with_a_call_of_a_tool_too_many_never_reaches_the_agent() -> None:
    agent = Talks(tools=True)
    kept = await played(agent, CALL, CALL, CALL, tool_calls=2, on_tool_calls=0.5)
    assert (kept.episode.outcome, kept.episode.limit) == ("truncated", "tool_calls")
    assert agent.code == "episode_limit_reached"
    assert kept.rows[0].metrics["turns"] == 2.0
    assert len(kept.episode.interactions) == 3  # the last one is on record, and not trained on


async def test_out_of_time_the_captured_turns_may_be_kept() -> None:
    class Sleeps:
        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
            await Talks(turns=1).run(data, client)
            await asyncio.Event().wait()
            return 1.0

    kept = await played(Sleeps(), seconds=0.3, on_seconds=-1)
    assert (kept.episode.outcome, kept.episode.limit) == ("truncated", "seconds")
    assert [row.reward for row in kept.rows] == [-1.0]


async def test_an_agent_that_does_not_heed_its_end_leaves_no_session_behind() -> None:
    class Clings:
        refused = 0

        async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    try:
                        await Talks(turns=1).run(data, client)
                    except openai.OpenAIError:
                        self.refused += 1

    run = await played(Clings(), seconds=0.1, grace_seconds=0.1)
    assert (run.episode.outcome, run.episode.limit) == ("timeout", "seconds")
