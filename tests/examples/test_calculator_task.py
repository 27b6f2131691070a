"""The calculator example's problems, split, tool, reward and teacher are what its README says."""

import random
import re
from itertools import islice
from pathlib import Path

import pytest

from areal_agent.registry import load_script

task = load_script(Path(__file__).parents[2] / "examples" / "calculator" / "task.py")


def test_problems_are_the_same_every_time_and_the_split_does_not_leak() -> None:
    train, held_out = task.train_problems(3000), task.held_out_problems(400)
    assert task.train_problems(3000) == train
    questions = [row["messages"][0]["content"] for row in train + held_out]
    assert len(set(questions)) == 3400
    assert [task.is_held_out(question) for question in questions] == [False] * 3000 + [True] * 400
    assert task.train_problems(10, seed=1) != train[:10]


def test_one_problem_in_eight_is_held_out() -> None:
    rng = random.Random(0)
    share = sum(task.is_held_out(task.make_problem(rng).question) for _ in range(8000)) / 8000
    assert 0.11 < share < 0.14


def test_every_template_occurs_and_its_steps_give_its_answer() -> None:
    found = list(islice(task.problems(0, held_out=False), 2000))
    for problem in found:
        numbers = [int(n) for n in re.findall(r"\d+", problem.question)]
        (left, sign, right), (result, _, _) = problem.steps
        assert {left, right} <= set(numbers)
        assert result == task.compute(left, sign, right) >= 0
        assert problem.answer >= 0
        assert all(task.SMALLEST <= n <= task.LARGEST for n in numbers)
    shapes = {re.sub(r"\d+", "N", p.question).rpartition(".")[2] for p in found}
    assert len(shapes) >= len({s.rpartition(".")[2] for s, _ in task.TEMPLATES})


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("20*23", "460"),
        (" 460 - 41 ", "419"),
        ("3-60", "-57"),
        ("-57+3", "-54"),
        ("999999999*999999999", "999999998000000001"),
        *[
            (bad, "?")
            for bad in ("", "20*", "*3", "1+2+3", "2**9", "1.5+1", "1/2", "abs(1)", "a+1")
        ],
        ("1" * 10 + "+1", "?"),
        ("٣+1", "?"),
        ("__import__('os')", "?"),
    ],
)
def test_the_calculator_does_one_operation(expression: str, result: str) -> None:
    assert task.calculator(expression) == result


@pytest.mark.parametrize(
    ("text", "stop_reason", "expected"),
    [
        ("A419", "stop", 1.0),
        ("A419", "length", 0.0),
        ("A0419", "stop", 0.0),
        (" A419", "stop", 0.0),
        ("A419 ", "stop", 0.0),
        ("419", "stop", 0.0),
        ("[460-41]", "stop", 0.0),
        ("", "stop", 0.0),
    ],
)
def test_only_the_exact_answer_is_rewarded(text: str, stop_reason: str, expected: float) -> None:
    assert task.reward("", text, [], [], answer="419", stop_reason=stop_reason) == expected


def test_the_teacher_is_as_imperfect_as_it_should_be() -> None:
    rng = random.Random(0)
    n = with_tool = right_with_tool = right_without = 0
    for problem in islice(task.problems(7, held_out=False), 6000):
        dialogue = task.demonstrate(problem, rng)
        right = dialogue[-1]["content"] == f"A{problem.answer}"
        n += 1
        if len(dialogue) > 2:
            with_tool += 1
            right_with_tool += right
            calls = [m["tool_calls"][0] for m in dialogue if "tool_calls" in m]
            results = [m for m in dialogue if m["role"] == "tool"]
            for call, result in zip(calls, results, strict=True):
                expression = call["function"]["arguments"]["expression"]
                assert task.calculator(expression) == result["content"] != "?"
                assert call["id"] == result["tool_call_id"]
        else:
            right_without += right
    assert 0.28 < with_tool / n < 0.32
    assert 0.66 < right_with_tool / with_tool < 0.74
    assert 0.08 < right_without / (n - with_tool) < 0.12
