"""Reward functions get what they name, their results are checked; ready ones compare answers."""

from typing import Any

import pytest
from areal_agent.workflows.rewards import (
    Scorer,
    exact_match,
    final_answer,
    last_number,
    numeric_match,
)
from workflow_support import demo_chat

from areal_agent import ModelResponse
from areal_agent.errors import DataError, RewardError

ROW = {"answer": "7", "level": 2}


def response(text: str = "A7<eos>", stop_reason: Any = "stop") -> ModelResponse:
    ids = demo_chat().tokenizer.encode(text, add_special_tokens=False)
    return ModelResponse([5, 6], ids, [0.0] * len(ids), [0] * len(ids), stop_reason)


async def test_a_function_gets_the_reply_and_the_columns_that_it_names() -> None:
    seen: list[Any] = []

    def named(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, level: int):
        seen.append((prompt, completions, prompt_ids, completion_ids, level))
        return 1

    def everything(*reply: Any, **data: Any) -> float:
        seen.append((*reply, data))
        return 0.5

    chat, got = demo_chat(), response()
    assert await Scorer(named, chat)(got, ROW) == 1.0
    assert await Scorer(everything, chat)(got, ROW) == 0.5
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
    def reward(*_: Any, stop_reason: str) -> float:
        return float(stop_reason == expected)

    scorer = Scorer(reward, demo_chat())
    assert await scorer(response(stop_reason=stop_reason), ROW, cut_off=cut_off) == 1.0


async def test_async_functions_and_objects_are_awaited() -> None:
    class Judge:
        async def __call__(self, *reply: Any, level: int) -> float:
            return level / 4

    assert await Scorer(Judge(), demo_chat())(response(), ROW) == 0.5


@pytest.mark.parametrize("value", [None, "high", "1.0", float("nan"), float("inf")])
async def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(RewardError, match="'A7'"):
        await Scorer(lambda *_: value, demo_chat())(response(), ROW)


async def test_columns_with_reserved_names_are_reported() -> None:
    with pytest.raises(DataError, match=r"\['completions', 'prompt_ids'\].*rename"):
        await Scorer(exact_match, demo_chat())(
            response(), {**ROW, "prompt_ids": [], "completions": ""}
        )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42 ", "42"),
        ("6 * 7\n#### 42\n", "42"),
        ("#### 1 then #### 42", "42"),
        (r"so \boxed{41}, no, \boxed{ \frac{84}{2} }.", r"\frac{84}{2}"),
        (r"\boxed{42", r"\boxed{42"),
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
