"""The maths reward against pairs of answers, hostile ones too, in a worker as in a run."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from areal_agent.workflows.answers import last_boxed
from areal_agent.workflows.maths import is_tame, math_reward, same_answer

from areal_agent import AsyncRewardWrapper
from areal_agent.errors import DataError

PAIRS = [
    json.loads(line)
    for line in Path(__file__).with_name("math_pairs.jsonl").read_text("utf-8").splitlines()
]


def reply(completion: str, answer: object, prompt: str = "") -> tuple[tuple[object, ...], object]:
    return (prompt, completion, [], []), answer


CASES = [
    (reply(r"\boxed{\frac{1}{2}}", "1/3"), 0.0),
    (reply(r"\boxed{\frac{1}{3}}", "1/3"), 1.0),
    (reply(r"\boxed{1234}", "1,234"), 1.0),
    (reply("none here", "7", prompt=r"Put it in \boxed{7}."), 0.0),
    (reply(r"\boxed{1}, no: \boxed{2}", "2"), 1.0),
    (reply(r"\boxed{1}, no: \boxed{2}", "1"), 0.0),
    (reply(r"\boxed{2} or \boxed{1", "2"), 1.0),
    (reply(r"\fbox{2}", "2"), 1.0),
    (reply(r"\boxed{2}", r"The sum is \boxed{2}"), 1.0),
    (reply(r"\boxed{2}", "1 + 1 = 2\n#### 2"), 1.0),
    (reply(r"\boxed{2}", 2), 1.0),
    (reply(r"\boxed{}", "2"), 0.0),
]

UNREADABLE = ["", "  ", "???", r"\frac{1}{", "$$"]


async def test_answers_are_compared_in_a_worker_and_unreadable_ones_of_the_data_are_errors() -> (
    None
):
    """S15: nested braces, the last box, separators, the prompt's own box; an empty gold."""
    reward = AsyncRewardWrapper(math_reward, max_workers=1)
    for (args, answer), expected in CASES:
        assert await reward(*args, answer=answer) == expected, (args, answer)
    for answer in UNREADABLE:
        with pytest.raises(DataError, match="expected a mathematical answer"):
            await reward("", rf"\boxed{{{answer}}}", [], [], answer=answer)
    wrong = [
        (gold, given, same)
        for gold, given, same in PAIRS
        if await reward("", rf"It is \boxed{{{given}}}.", [], [], answer=gold) != same
    ]
    assert not wrong
    assert len(PAIRS) >= 50


HOSTILE = [
    "9^{9^{9^9}}",
    "9^9^9^9",
    "9**9**9**9",
    "(9^9)!",
    "99999999!",
    "((10!)!)!",
    "9^{999999999}",
    r"9^{9999\cdot9999\cdot9999}",
    "(9^{10000})^{10000}",
    r"\binom{999999999}{499999999}",
    "{" * 5000 + "1" + "}" * 5000,
    "(" * 500 + "1" + ")" * 500,
    r"\sqrt{" * 25 + "2" + "}" * 25,
    "9" * 100_000,
    "1+" * 100_000 + "1",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_what_would_take_long_is_compared_as_text(text: str) -> None:
    assert not is_tame(text)
    began = time.monotonic()
    assert not same_answer(text, "7")
    assert same_answer(f" {text}", text)
    assert time.monotonic() - began < 5


async def test_slow_mathematics_ends_and_nothing_is_run_by_python(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    reward = AsyncRewardWrapper(math_reward, max_workers=2)
    async with asyncio.timeout(60):
        for text in (
            "(a+b+c+d+e+f)^{300}",
            rf"__import__('os').mkdir('{mark}')",
            rf"().__class__.__base__.__subclasses__() + open('{mark}','w')",
        ):
            assert await reward("", rf"\boxed{{{text}}}", [], [], answer="x+1") == 0.0
    assert not os.path.lexists(mark)


def test_a_long_reply_is_searched_in_one_pass() -> None:
    began = time.monotonic()
    assert last_boxed(r"\boxed{" * 20_000) is None
    assert last_boxed(r"\boxed{" * 20_000 + "1" + "}" * 20_000) == "1"
    assert time.monotonic() - began < 5
