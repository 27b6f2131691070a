"""Agents at the gateway are replayed: calls at once, streams, over a socket, with ids in view."""

import asyncio
import json
from typing import Any

import pytest
from gateway_support import CHATML, GCONFIG, USER, Stage, stage
from openai import AsyncOpenAI

from areal_agent import workflow_context
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.rollout.episode_record import episode_record
from areal_agent.rollout.plain import any_json
from areal_agent.rollout.replay import Replayed, replay_episode

SHOWS_IDS = CHATML.replace("m.role + '\\n'", "m.role + '\\n' + (m.tool_call_id or '')")
CALL = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
]
SAYS = (CALL, "ab", "cd", "ef", "gh")


def add(x: int) -> int:
    return x + 1


class Busy:
    """Calls a tool, shows the result, asks twice at once, and streams."""

    def __init__(self, question: str = "hi") -> None:
        self.question = question

    async def run(self, data: dict[str, Any], base_url: str, api_key: str) -> float:
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            return await self.talk(client)

    async def talk(self, client: AsyncOpenAI) -> float:
        ask = client.chat.completions.create
        messages: list[Any] = [{**USER, "content": self.question}]
        made = await ask(model="m", messages=messages, tools=TOOLS)
        [call] = made.choices[0].message.tool_calls or []
        result = await workflow_context.tool(add, **json.loads(call.function.arguments))
        told = {"role": "tool", "tool_call_id": call.id, "content": str(result)}
        messages += [made.choices[0].message.model_dump(exclude_none=True), told]
        await ask(model="m", messages=messages, tools=TOOLS)
        async with asyncio.TaskGroup() as group:
            for name in ("one", "two"):
                group.create_task(ask(model="m", messages=[{"role": "user", "content": name}]))
        stream = await ask(model="m", messages=[USER], stream=True)
        said = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        return float(len(said))


class Inside(Busy):
    """The same without a socket."""

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:  # type: ignore[override]
        return await self.talk(client)


async def recorded(playing: Stage, agent: Busy) -> dict[str, Any]:
    workflow = AgentWorkflow(agent, playing.gateway, GCONFIG)
    spec = EpisodeSpec(id="0:1:0", prompt_id="0:1", seed=1, epoch=0, index=1)
    run = await run_episode(workflow, playing.engine, {}, spec)
    assert run.episode.outcome == "ok", run.episode.failure
    decode = playing.chat.decode
    return json.loads(any_json(episode_record(run.episode, decode, split="train", step=0)))


async def replayed(record: dict[str, Any], agent: Busy) -> Replayed:
    """Replay where nothing else could answer."""
    async with stage(template=SHOWS_IDS) as playing:
        playing.engine.die()
        workflow = AgentWorkflow(agent, playing.gateway, GCONFIG)
        return await replay_episode(workflow, record, playing.chat.decode)


@pytest.mark.parametrize("agent", [Inside, Busy])
async def test_an_agent_is_replayed_and_told_the_first_call_that_differs(agent: Any) -> None:
    async with stage(*SAYS, template=SHOWS_IDS) as playing:
        record = await recorded(playing, agent())
    assert [tool["result"] for tool in record["tools"]] == [2]
    assert record["turns"][1]["messages"][-1]["tool_call_id"] in playing.chat.decode(
        record["turns"][1]["prompt_ids"]
    )
    found = await replayed(record, agent())
    assert (found.verdict, found.difference) == ("same", None)
    found = await replayed(record, agent("hey"))
    assert found.difference is not None
    assert found.difference.what == "model call 0"
    assert "hey" in found.difference.now
    assert "hey" not in found.difference.recorded
