"""Reward functions get what they name, their results are checked; ready ones compare answers."""

import math
from typing import Any

import pytest
from areal_agent.workflows.rewards import (
    Scored,
    Scorer,
    WeightedRewards,
    exact_match,
    final_answer,
    last_number,
    numeric_match,
)
from workflow_support import demo_chat

from areal_agent import AsyncRewardWrapper, ModelResponse, inline_reward
from areal_agent.errors import ConfigError, DataError, RewardError

ROW = {"answer": "7", "level": 2}


def response(text: str = "A7<eos>", stop_reason: Any = "stop") -> ModelResponse:
    ids = demo_chat().tokenizer.encode(text, add_special_tokens=False)
    return ModelResponse([5, 6], ids, [0.0] * len(ids), [0] * len(ids), stop_reason)


async def test_a_function_gets_the_reply_and_the_columns_that_it_names() -> None:
    seen: list[Any] = []

    @inline_reward
    def named(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, level: int):
        seen.append((prompt, completions, prompt_ids, completion_ids, level))
        return 1

    @inline_reward
    def everything(*reply: Any, **data: Any) -> float:
        seen.append((*reply, data))
        return 0.5

    chat, got = demo_chat(), response()
    assert await Scorer(named, chat)(got, ROW) == Scored(1.0, {})
    assert await Scorer(everything, chat)(got, ROW) == Scored(0.5, {})
    reply = (chat.decode([5, 6]), "A7", [5, 6], list(got.output_tokens))
    assert seen == [(*reply, 2), (*reply, {**ROW, "stop_reason": "stop"})]


@pytest.mark.parametrize(
    ("stop_reason", "cut_off", "expected"),
    [
        ("stop", False, "stop"),
        ("tool_calls", False, "stop"),
        ("length", False, "length"),
        ("stop", True, "length"),
    ],
)
async def test_a_function_learns_whether_the_budget_ran_out(
    stop_reason: str, cut_off: bool, expected: str
) -> None:
    @inline_reward
    def reward(*_: Any, stop_reason: str) -> float:
        return float(stop_reason == expected)

    scorer = Scorer(reward, demo_chat())
    scored = await scorer(response(stop_reason=stop_reason), ROW, cut_off=cut_off)
    assert scored == Scored(1.0, {})


async def test_async_functions_and_objects_are_awaited() -> None:
    class Judge:
        async def __call__(self, *reply: Any, level: int) -> float:
            return level / 4

    assert await Scorer(Judge(), demo_chat())(response(), ROW) == Scored(0.5, {})


@pytest.mark.parametrize("value", [None, "high", "1.0", float("nan"), float("inf")])
async def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(RewardError, match="'A7'"):
        await Scorer(inline_reward(lambda *_: value), demo_chat())(response(), ROW)


async def test_columns_with_reserved_names_are_reported() -> None:
    with pytest.raises(DataError, match=r"\['completions', 'prompt_ids'\].*rename"):
        await Scorer(exact_match, demo_chat())(
            response(), {**ROW, "prompt_ids": [], "completions": ""}
        )


async def test_several_rewards_are_summed_by_weight_and_told_apart() -> None:
    @inline_reward
    def correct(*_: Any, answer: str) -> float:
        return float(answer == "7")

    async def brief(*_: Any, level: int) -> float | None:
        return None if level == 3 else level / 4

    rewards = {"correct": (correct, 1.0), "brief": (brief, -0.5)}
    both = WeightedRewards(rewards, optional=["brief"])
    assert await Scorer(both, demo_chat())(response(), ROW) == Scored(
        0.75, {"reward_correct": 1.0, "reward_brief": 0.5}
    )
    skipped = await Scorer(both, demo_chat())(response(), {**ROW, "level": 3})
    assert skipped == Scored(1.0, {"reward_correct": 1.0})
    assert await both("", "A7", [], [], answer="7", level=2) == 0.75
    with pytest.raises(RewardError, match="got None"):
        await WeightedRewards(rewards)("", "A7", [], [], answer="7", level=3)
    for wrong in ({}, {"correct": (correct, 1.0)}):
        with pytest.raises(ConfigError, match="expected rewards, and optional ones among them"):
            WeightedRewards(wrong, optional=["brief"])


async def test_none_rejects_only_where_the_workflow_says_so() -> None:
    """S12: None is no number, unless it is said to mean that there is no score."""

    async def none(*_: Any) -> None:
        return None

    assert await Scorer(none, demo_chat(), none_rejects=True)(response(), ROW) is None
    with pytest.raises(RewardError, match=r"on the reply 'A7': .*got None"):
        await Scorer(none, demo_chat())(response(), ROW)


async def test_a_wrapper_keeps_its_own_policy() -> None:
    async def broken(*_: Any, level: int) -> float:
        raise ZeroDivisionError

    wrapped = AsyncRewardWrapper(broken, on_error=-1.0)
    assert await Scorer(wrapped, demo_chat())(response(), ROW) == Scored(-1.0, {})
    assert wrapped.counts["errors"] == 1


def test_a_function_that_no_worker_can_import_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot run in a worker process"):
        Scorer(lambda *_: 1.0, demo_chat())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42 ", "42"),
        ("6 * 7\n#### 42\n", "42"),
        ("#### 1 then #### 42", "42"),
        (r"so \boxed{41}, no, \boxed{ \frac{84}{2} }.", r"\frac{84}{2}"),
        (r"\boxed{42", r"\boxed{42"),
        (r"\boxed{41}, rather \boxed{42", "41"),
        (r"\fbox{42}", "42"),
        (r"\boxed {\{1, 2\}}", r"\{1, 2\}"),
        (r"} { \boxed{42}", "42"),
        ("", ""),
    ],
)
def test_the_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("about 1,234.50 dollars", 1234.5),
        ("3 - 4 = -1", -1.0),
        (".5", 0.5),
        ("42.", 42.0),
        ("none", None),
    ],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "answer", "exact", "numeric"),
    [
        ("42", "42", 1.0, 1.0),
        ("42.0", "42", 0.0, 1.0),
        ("#### 1,042", "1042", 0.0, 1.0),
        ("It is 42", "42", 0.0, 1.0),
        ("It is 43", "42", 0.0, 0.0),
        ("", "42", 0.0, 0.0),
    ],
)
def test_ready_rewards(text: str, answer: str, exact: float, numeric: float) -> None:
    assert exact_match("", text, [], [], answer=answer, other=1) == exact
    assert numeric_match("", text, [], [], answer=answer, other=1) == numeric


def test_an_answer_without_a_number_is_a_data_error() -> None:
    with pytest.raises(DataError, match="hold a number, got 'x'"):
        numeric_match("", "1", [], [], answer="x")


@pytest.mark.parametrize("given", [numeric_match, (numeric_match, "1"), (numeric_match, math.nan)])
def test_a_weight_is_a_number(given):
    with pytest.raises(ConfigError, match=r"a reward function and its weight, .* under 'right'"):
        WeightedRewards({"right": given})


def test_a_function_that_does_not_tell_its_arguments_is_refused():
    with pytest.raises(ConfigError, match=r"max.* does not tell which arguments it takes"):
        WeightedRewards({"most": (max, 1.0)})
