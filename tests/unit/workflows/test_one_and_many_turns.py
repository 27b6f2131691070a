"""One reply with its reward; retries with feedback and discount."""

from typing import Any

import pytest
from areal_agent.workflows.multi_turn import MultiTurnWorkflow
from areal_agent.workflows.rewards import exact_match
from areal_agent.workflows.rlvr import RLVRWorkflow
from workflow_support import demo_chat, says

from areal_agent import GenerationHyperparameters
from areal_agent.errors import ConfigError, DataError

GCONFIG = GenerationHyperparameters(n_samples=4, max_new_tokens=16, max_tokens=64)
ROW: dict[str, Any] = {"messages": [{"role": "user", "content": "How?"}], "answer": "4"}


async def test_one_reply_is_one_row() -> None:
    chat = demo_chat()
    engine = says(chat, "4")
    row = await RLVRWorkflow(exact_match, GCONFIG, chat).arun_episode(engine, ROW)
    assert row is not None
    assert chat.decode(row.input_ids) == "How?\n4<eos>"
    assert row.loss_mask == [False] * 3 + [True] * 2
    assert (row.reward, row.truncated) == (1.0, False)
    assert engine.requests[0].gconfig.n_samples == 1
    assert engine.requests[0].metadata["messages"] == ROW["messages"]


async def test_a_cut_off_reply_is_still_judged() -> None:
    chat = demo_chat()
    row = await RLVRWorkflow(exact_match, GCONFIG, chat).arun_episode(says(chat, "4..."), ROW)
    assert row is not None
    assert (row.reward, row.truncated) == (1.0, True)


async def test_a_prompt_that_leaves_no_room_is_rejected() -> None:
    chat = demo_chat()
    gconfig = GCONFIG.new(max_tokens=3)
    assert await RLVRWorkflow(exact_match, gconfig, chat).arun_episode(says(chat), ROW) is None
    retry = MultiTurnWorkflow(exact_match, gconfig, chat)
    assert await retry.arun_episode(says(chat), ROW) is None


async def test_a_row_without_messages_is_a_data_error() -> None:
    chat = demo_chat()
    with pytest.raises(DataError, match="column 'messages'"):
        await RLVRWorkflow(exact_match, GCONFIG, chat).arun_episode(says(chat), {"question": "?"})


async def test_a_later_success_is_worth_less_and_all_tries_are_one_row() -> None:
    chat = demo_chat()
    engine = says(chat, "3", "5", "4")
    workflow = MultiTurnWorkflow(exact_match, GCONFIG, chat, turn_discount=0.5, feedback="no")
    row = await workflow.arun_episode(engine, ROW)
    assert row is not None
    assert chat.decode(row.input_ids) == "How?\n3<eos>no\n5<eos>no\n4<eos>"
    assert sum(row.loss_mask) == 6
    assert row.reward == 0.25
    assert row.metrics == {"turns": 3}
    assert len({request.rid for request in engine.requests}) == 1


async def test_it_stops_at_success_at_the_limit_and_when_cut_off() -> None:
    chat = demo_chat()
    workflow = MultiTurnWorkflow(exact_match, GCONFIG, chat, max_turns=2, feedback="no")
    engines = [says(chat, "4"), says(chat, "3", "5"), says(chat, "3", "5...")]
    rows = [await workflow.arun_episode(engine, ROW) for engine in engines]
    assert [(r.reward, r.truncated) for r in rows if r] == [(1.0, False), (0.0, False), (0.0, True)]
    assert [len(engine.requests) for engine in engines] == [1, 2, 2]


async def test_feedback_that_leaves_no_room_ends_it_as_truncated() -> None:
    chat = demo_chat()
    workflow = MultiTurnWorkflow(exact_match, GCONFIG.new(max_tokens=8), chat, feedback="no")
    engine = says(chat, "3", "4")
    row = await workflow.arun_episode(engine, ROW)
    assert row is not None
    assert (row.reward, row.truncated, len(engine.requests)) == (0.0, True, 1)


@pytest.mark.parametrize("bad", [{"max_turns": 0}, {"turn_discount": 0.0}, {"turn_discount": 1.5}])
def test_numbers_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    [(name, value)] = bad.items()
    with pytest.raises(ConfigError, match=f"expected {name} .*got .*{value}"):
        MultiTurnWorkflow(exact_match, GCONFIG, demo_chat(), **bad)
