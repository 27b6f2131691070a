"""S18: settings that the trainer's logprobs know nothing of are counted and warned of."""

import logging
from typing import Any

import pytest

from areal_agent.rollout.reshaped import ReshapedTurns
from areal_agent.rollout.watched import WatchedEngine
from areal_agent.testing.fakes import FakeEngine
from areal_agent.types import GenerationHyperparameters, ModelRequest


async def call(turns: ReshapedTurns, **settings: Any) -> None:
    engine = WatchedEngine(FakeEngine(), turns.hear)
    gconfig = GenerationHyperparameters(**settings)
    await engine.agenerate(ModelRequest(rid="r", input_ids=[1], gconfig=gconfig))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"top_p": 0.9}, "top_p 0.9"),
        ({"top_k": 20}, "top_k 20"),
        ({"frequency_penalty": 0.5}, "frequency_penalty 0.5"),
        ({"min_new_tokens": 2}, "min_new_tokens 2"),
        ({"top_p": 0.9, "top_k": 20}, "top_p 0.9 and top_k 20"),
    ],
)
async def test_such_a_turn_is_counted_and_the_first_is_warned_of(
    settings: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    turns = ReshapedTurns()
    with caplog.at_level(logging.WARNING):
        await call(turns, **settings)
        await call(turns, **settings)
    assert turns.take_metrics() == {"rollout/reshaped_turns": 2}
    assert turns.take_metrics() == {"rollout/reshaped_turns": 0}
    assert [f"samples with {named}, but" in r.getMessage() for r in caplog.records] == [True]


async def test_plain_sampling_at_any_temperature_is_not(caplog: pytest.LogCaptureFixture) -> None:
    turns = ReshapedTurns()
    await call(turns, temperature=0.6, stop_token_ids=(3,), ignore_eos=True)
    assert turns.take_metrics() == {"rollout/reshaped_turns": 0}
    assert caplog.records == []
