"""Agent frameworks against the gateway: their histories come back whole, plain and streamed."""

from collections.abc import AsyncIterable, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_support import GCONFIG, Stage, stage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.gateway.session import Session
from areal_agent.registry import resolve
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
FOLDERS = ["openai_sdk", "anthropic_sdk", "openai_agents", "langgraph_agent", "pydantic_ai_agent"]
NEEDS = {"openai_agents": "agents"}
"""Packages that the tests' own environment may lack."""

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>'
ROOMY = GCONFIG.new(max_new_tokens=500, max_tokens=4096)


async def play(folder: str, *says: str) -> EpisodeRun:
    """One episode of an example whose policy says these things."""
    if folder in NEEDS:
        pytest.importorskip(NEEDS[folder])
    make = resolve("agent.py:CalculatorAgent", kind="workflows", base=EXAMPLES / folder)
    data = {"messages": [{"role": "user", "content": "what is 2*3"}], "answer": "6"}
    spec = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0)
    async with stage(*says) as playing:
        workflow = AgentWorkflow(make(), playing.gateway, ROOMY)
        return await run_episode(
            workflow, playing.engine, data, spec, limits=LimitsConfig(seconds=30)
        )


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("says", "reward", "turns"),
    [
        ((CALL, "A6"), 1.0, 2),
        (("I think " + CALL, "A6"), 1.0, 2),
        ((CALL + CALL, "A6"), 1.0, 2),
        ((CALL, CALL, "A7"), 0.0, 3),
        ((CALL,) * 9, 0.0, 7),
        ((" A6",), 0.0, 1),
        (("",), 0.0, 1),
        ((CALL, ""), 0.0, 2),
    ],
    ids=["call", "text-and-call", "two-calls", "same-call-again", "endless", "space", "", "end"],
)
async def test_an_example_is_one_row_whatever_the_policy_says(
    folder: str, says: tuple[str, ...], reward: float, turns: int
) -> None:
    run = await play(folder, *says)
    assert run.episode.outcome == "ok", run.episode.failure
    [row] = run.rows
    assert row.reward == reward
    assert (row.metrics["turns"], row.metrics["prefix_hits"]) == (turns, turns - 1)
    assert not any(row.metrics[f"breaks/{why}"] for why in ("history", "tools", "template"))
    assert sum(row.loss_mask) == sum(len(text) + 1 for text in says[:turns])


class Point(BaseModel):
    x: int


Case = Callable[[Stage, Session], Awaitable[Any]]


def openai_client(playing: Stage, session: Session) -> AsyncOpenAI:
    """What frameworks are handed: a client of this process, or one that knows a URL."""
    if playing.inside:
        return playing.gateway.client(session)
    client = AsyncOpenAI(base_url=playing.gateway.base_url(session), api_key=session.key)
    playing.closed_at_the_end.append(client.close)
    return client


def pydantic_ai(
    playing: Stage, session: Session, model: Any = OpenAIChatModel, **kwargs: Any
) -> Any:
    provider = OpenAIProvider(openai_client=openai_client(playing, session))
    return Agent(model("policy", provider=provider), **kwargs)


def langchain(playing: Stage, session: Session, **kwargs: Any) -> ChatOpenAI:
    gateway = playing.gateway
    if playing.inside:  # a host that does not exist: nothing but the gateway can answer
        kwargs |= {"base_url": "http://inside/v1", "http_async_client": gateway.http_client}
    else:
        kwargs |= {"base_url": gateway.base_url(session)}
    return ChatOpenAI(model="policy", api_key=session.key, **kwargs)


def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


async def stream_pydantic_ai(playing: Stage, session: Session, model: Any = OpenAIChatModel) -> str:
    agent = pydantic_ai(playing, session, model, tools=[double])
    seen: list[Any] = []

    async def watch(_: Any, events: AsyncIterable[Any]) -> None:
        seen.extend([event async for event in events])

    result = await agent.run("q", event_stream_handler=watch)
    assert seen
    return result.output


async def stream_pydantic_ai_responses(playing: Stage, session: Session) -> str:
    return await stream_pydantic_ai(playing, session, OpenAIResponsesModel)


async def stream_langchain(playing: Stage, session: Session, **kwargs: Any) -> str:
    model = langchain(playing, session, **kwargs).bind_tools([tool(double)])
    messages: list[Any] = [("user", "q")]
    for _ in range(2):
        parts = [part async for part in model.astream(messages)]
        reply = parts[0]
        for part in parts[1:]:
            reply += part
        messages.append(reply)
        messages += [await tool(double).ainvoke(call) for call in reply.tool_calls]
    return reply.text


async def stream_langchain_responses(playing: Stage, session: Session) -> str:
    return await stream_langchain(playing, session, use_responses_api=True)


async def stream_openai_agents(playing: Stage, session: Session, chat: bool = False) -> str:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    kind = agents.OpenAIChatCompletionsModel if chat else agents.OpenAIResponsesModel
    model = kind(model="policy", openai_client=openai_client(playing, session))
    agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(double)])
    result = agents.Runner.run_streamed(agent, "q")
    assert [event async for event in result.stream_events()]
    return result.final_output


async def stream_openai_agents_chat(playing: Stage, session: Session) -> str:
    return await stream_openai_agents(playing, session, chat=True)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "case",
    [
        stream_pydantic_ai,
        stream_pydantic_ai_responses,
        stream_langchain,
        stream_langchain_responses,
        stream_openai_agents,
        stream_openai_agents_chat,
    ],
)
async def test_streamed_turns_go_on_from_each_other(case: Case) -> None:
    call = '<tool_call>{"name": "double", "arguments": {"x": 21}}</tool_call>'
    async with (
        stage("so " + call, "it is 42") as playing,
        playing.session(max_new_tokens=500, max_tokens=4096) as session,
    ):
        assert await case(playing, session) == "it is 42"
        counts = {name: count for name, count in session.counts.items() if count}
    assert counts == {"turns": 2, "prefix_hits": 1}


async def force_pydantic_ai(playing: Stage, session: Session) -> None:
    await pydantic_ai(playing, session, output_type=Point).run("q")


async def force_langchain(playing: Stage, session: Session) -> None:
    model = langchain(playing, session)
    await model.with_structured_output(Point, method="function_calling").ainvoke("q")


async def format_langchain(playing: Stage, session: Session) -> None:
    await langchain(playing, session).with_structured_output(Point).ainvoke("q")


async def greedy_langchain(playing: Stage, session: Session) -> None:
    await langchain(playing, session, temperature=0.0).ainvoke("q")


@pytest.mark.parametrize(
    ("case", "param"),
    [
        (force_pydantic_ai, "tool_choice"),
        (force_langchain, "tool_choice"),
        (format_langchain, "response_format"),
        (greedy_langchain, "temperature"),
    ],
)
async def test_what_cannot_be_honoured_is_an_error_that_names_it(case: Case, param: str) -> None:
    async with stage() as playing, playing.session() as session:
        with pytest.raises((BadRequestError, ModelHTTPError), match=param):
            await case(playing, session)
        assert session.counts["turns"] == 0


async def test_an_offered_output_is_taken_from_a_call() -> None:
    call = '<tool_call>{"name": "final_result", "arguments": {"x": 3}}</tool_call>'
    async with stage(call) as playing, playing.session(max_new_tokens=200) as session:
        client = playing.gateway.client(session)
        model = OpenAIChatModel(
            "policy",
            provider=OpenAIProvider(openai_client=client),
            profile={"supports_forced_tool_choice": False},
        )
        assert (await Agent(model, output_type=Point).run("q")).output == Point(x=3)
