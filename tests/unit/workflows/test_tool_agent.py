"""Tools run, fail and time out as messages; only what was sampled is trained on."""

import asyncio
import itertools
import re
from typing import Any

import pytest
from areal_agent.workflows.tool_agent import ToolAgentWorkflow
from workflow_support import EXAMPLE, demo_chat, says

from areal_agent import GenerationHyperparameters, inline_reward
from areal_agent.data.chat import ChatFormat
from areal_agent.errors import ConfigError, DataError, RewardError
from areal_agent.registry import load_script
from areal_agent.trajectory import NO_VERSION

task = load_script(EXAMPLE / "task.py")
GCONFIG = GenerationHyperparameters(n_samples=8, max_new_tokens=16, max_tokens=64)
ROW = {"messages": [{"role": "user", "content": "How?"}], "answer": "419"}


def agent(chat: ChatFormat, **changes: Any) -> ToolAgentWorkflow:
    settings = {"tools": [task.calculator], "reward_fn": task.reward, "gconfig": GCONFIG}
    return ToolAgentWorkflow(chat=chat, **{**settings, **changes})


async def test_a_dialogue_is_one_row_whose_sampled_tokens_are_trained_on() -> None:
    chat = demo_chat()
    engine = says(chat, "[20*23]", "[460-41]", "A419")
    row = await agent(chat).arun_episode(engine, ROW)
    assert row is not None
    assert chat.decode(row.input_ids) == "How?\n[20*23]<eos>460;[460-41]<eos>419;A419<eos>"
    sampled = [t for t, m in zip(row.input_ids, row.loss_mask, strict=True) if m]
    assert chat.decode(sampled) == "[20*23]<eos>[460-41]<eos>A419<eos>"
    assert [v == NO_VERSION for v in row.versions] == [not m for m in row.loss_mask]
    assert [p for p, m in zip(row.logprobs, row.loss_mask, strict=True) if m][:2] == [-0.25, -0.5]
    assert (row.reward, row.truncated) == (1.0, False)
    assert row.metrics == {"turns": 3, "tool_calls": 2, "tool_failures": 0, "malformed_calls": 0}


async def test_every_turn_extends_the_tokens_before_it_under_one_request_id() -> None:
    chat = demo_chat()
    engine = says(chat, "[1+1]", "[2+2]", "A4")
    await agent(chat).arun_episode(engine, ROW)
    prompts = [list(r.input_ids) for r in engine.requests]
    assert all(b[: len(a)] == a for a, b in itertools.pairwise(prompts))
    assert len({r.rid for r in engine.requests}) == 1
    assert [r.gconfig.n_samples for r in engine.requests] == [1, 1, 1]
    assert [m["role"] for m in engine.requests[2].metadata["messages"]] == [
        "user",
        *("assistant", "tool") * 2,
    ]


async def test_episodes_do_not_share_state() -> None:
    chat = demo_chat()
    workflow = agent(chat)
    engines = [says(chat, "[1+1]", "A2"), says(chat, "[2+2]", "A419")]
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(workflow.arun_episode(e, ROW)) for e in engines]
    rows = [run.result() for run in runs]
    assert [row.reward for row in rows if row] == [0.0, 1.0]
    assert engines[0].requests[0].rid != engines[1].requests[0].rid


@pytest.mark.parametrize(
    ("last", "reward", "truncated"),
    [("A419", 1.0, False), ("A418", 0.0, False), ("A419...", 0.0, True), ("419", 0.0, False)],
)
async def test_only_the_exact_answer_ended_by_the_model_earns(
    last: str, reward: float, truncated: bool
) -> None:
    chat = demo_chat()
    row = await agent(chat).arun_episode(says(chat, "[20*23]", last), ROW)
    assert row is not None
    assert (row.reward, row.truncated) == (reward, truncated)


async def test_a_reply_cut_off_amid_a_call_ends_the_episode() -> None:
    chat = demo_chat()
    row = await agent(chat).arun_episode(says(chat, "[20*23]..."), ROW)
    assert row is not None
    assert (row.reward, row.truncated, row.metrics["tool_calls"]) == (0.0, True, 0)


async def test_a_prompt_that_leaves_no_room_ends_the_episode_as_truncated() -> None:
    chat = demo_chat()
    gconfig = GCONFIG.new(max_tokens=len("How?\n") + len("[20*23]") + 1)
    row = await agent(chat, gconfig=gconfig).arun_episode(says(chat, "[20*23]"), ROW)
    assert row is not None
    assert (row.reward, row.truncated, row.metrics["turns"]) == (0.0, True, 1)
    too_long = GCONFIG.new(max_tokens=3)
    assert await agent(chat, gconfig=too_long).arun_episode(says(chat), ROW) is None


async def test_max_turns_counts_replies() -> None:
    chat = demo_chat()
    engine = says(chat, *["[1+1]"] * 9)
    row = await agent(chat, max_turns=3).arun_episode(engine, ROW)
    assert row is not None
    assert len(engine.requests) == 3
    assert row.metrics == {"turns": 3, "tool_calls": 2, "tool_failures": 0, "malformed_calls": 0}
    assert (row.reward, row.truncated) == (0.0, False)


async def test_parallel_calls_are_answered_in_order_each_once() -> None:
    """The first call finishes last."""
    chat = demo_chat()
    second_done = asyncio.Event()

    async def calculator(expression: str) -> int:
        """Compute.

        Args:
            expression: what to compute
        """
        if expression == "1":
            await second_done.wait()
        else:
            second_done.set()
        return int(expression) * 11

    engine = says(chat, "[1][2]", "A")
    row = await agent(chat, tools=[calculator]).arun_episode(engine, ROW)
    assert row is not None
    assert chat.decode(row.input_ids) == "How?\n[1][2]<eos>11;22;A<eos>"
    messages = engine.requests[1].metadata["messages"]
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert [m["tool_call_id"] for m in messages[2:]] == ids
    assert len(set(ids)) == 2


async def test_a_malformed_expression_is_answered_with_a_question_mark() -> None:
    chat = demo_chat()
    row = await agent(chat).arun_episode(says(chat, "[20*]", "A1"), ROW)
    assert row is not None
    assert chat.decode(row.input_ids) == "How?\n[20*]<eos>?;A1<eos>"


async def test_a_malformed_call_is_an_answer_and_counted() -> None:
    chat = demo_chat()
    row = await agent(chat).arun_episode(says(chat, "[20*"), ROW)
    assert row is not None
    assert row.metrics == {"turns": 1, "tool_calls": 0, "tool_failures": 0, "malformed_calls": 1}


def fail(expression: str) -> str:
    """Fail.

    Args:
        expression: anything
    """
    raise ZeroDivisionError("by " + expression)


def other(number: int) -> str:
    """Take other arguments.

    Args:
        number: anything
    """
    return str(number)


async def never(expression: str) -> str:
    """Hang.

    Args:
        expression: anything
    """
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("tool", "name", "expected"),
    [
        (fail, "calculator", "ZeroDivisionError: by 1"),
        (other, "calculator", "TypeError: .*expression"),
        (never, "calculator", "TimeoutError"),
        (fail, "fail", "LookupError: there is no tool 'calculator', only fail"),
    ],
)
async def test_a_failing_tool_is_a_message(
    monkeypatch: pytest.MonkeyPatch, tool: Any, name: str, expected: str
) -> None:
    chat = demo_chat()
    monkeypatch.setattr(tool, "__name__", name)
    engine = says(chat, "[1]", "A419")
    workflow = agent(
        chat,
        tools=[tool],
        tool_timeout_seconds=0.01 if tool is never else 60.0,
        gconfig=GCONFIG.new(max_tokens=400),
    )
    row = await workflow.arun_episode(engine, ROW)
    assert row is not None
    assert (row.reward, row.metrics["tool_failures"]) == (1.0, 1)
    assert re.match(expected, engine.requests[1].metadata["messages"][-1]["content"])


async def test_cancelling_an_episode_is_no_tool_failure() -> None:
    chat = demo_chat()
    started = asyncio.Event()

    async def calculator(expression: str) -> str:
        """Hang.

        Args:
            expression: anything
        """
        started.set()
        await asyncio.Event().wait()
        return ""

    engine = says(chat, "[1]", "A419")
    async with asyncio.TaskGroup() as group:
        run = group.create_task(agent(chat, tools=[calculator]).arun_episode(engine, ROW))
        await started.wait()
        run.cancel()
    assert run.cancelled()
    assert len(engine.requests) == 1


async def test_a_failing_reward_is_a_reward_error() -> None:
    chat = demo_chat()

    @inline_reward
    def reward(*_: object) -> float:
        raise KeyError("answer")

    with pytest.raises(RewardError, match=r"'A1': .*KeyError: 'answer'"):
        await agent(chat, reward_fn=reward).arun_episode(says(chat, "A1"), ROW)


def test_settings_that_make_no_sense_are_refused() -> None:
    chat = demo_chat()
    with pytest.raises(ConfigError, match="max_turns of at least 1"):
        agent(chat, max_turns=0)
    with pytest.raises(ConfigError, match=r"different names, got \['calculator', 'calculator'\]"):
        agent(chat, tools=[task.calculator] * 2)
    with pytest.raises(DataError, match="cannot be described"):
        agent(chat, tools=[lambda x: x])
