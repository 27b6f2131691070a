"""The calculator task: word problems of two steps, a tool that computes one step, a reward.

`train_problems` and `held_out_problems` make the rows, `calculator` is the tool, `reward` the
score, and `demonstrate` plays the flawed teacher that the shipped model was warmed up on. Problems
are split by a hash of their text: one in eight is held out and never trained on.
"""

import hashlib
import operator
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from areal_agent import inline_reward

NAMES = ("Sam", "Mia", "Leo", "Ana", "Tom", "Zoe", "Ben", "Eva", "Max", "Ida")
ITEMS = ("books", "pens", "apples", "cards", "coins", "shells", "stamps", "eggs", "beads", "cups")
CONTAINERS = ("boxes", "bags", "packs", "crates", "trays", "jars")
SMALLEST, LARGEST = 2, 60
HELD_OUT_SHARE = 8
"""One problem in so many is held out."""

EXPRESSION = re.compile(r"\s*(-?[0-9]{1,9})\s*([-+*])\s*([0-9]{1,9})\s*")
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

TEMPLATES: tuple[tuple[str, str], ...] = (
    (
        "{n} has {a} {box} of {b} {item}. {n} gives {c} {item} to {m}. How many are left?",
        "*-",
    ),
    ("{n} has {c} {item}. {n} buys {a} {box} of {b} {item}. How many {item} now?", "*+"),
    ("{n} has {a} {item}. {m} has {b} times as many. How many {item} together?", "*a"),
    ("{n} sells {a} {item} on Monday and {b} more than that on Tuesday. How many sold?", "+a"),
    ("{n} pays {a} for lunch and {b} for the bus each day for {c} days. How much in all?", "+*"),
    ("{n} had {a} {item}. {n} lost {b} and found {c}. How many {item} now?", "-+"),
    ("{n} reads {a} pages on each of {b} days and {c} on Sunday. How many pages?", "*+"),
    ("{n} has {a} {item} and {m} has {b}. They share, then {m} takes {c}. How many left?", "+-"),
)
"""Sentence and solution: the first operator joins a and b, the second brings in c; ``a`` instead of
a second operator adds a once more."""


@dataclass(frozen=True)
class Problem:
    """One word problem with its solution in two steps."""

    question: str
    steps: tuple[tuple[int, str, int], tuple[int, str, int]]

    @property
    def answer(self) -> int:
        return compute(*self.steps[1])

    def row(self) -> dict[str, Any]:
        """The dataset row."""
        messages = [{"role": "user", "content": self.question}]
        return {"messages": messages, "answer": str(self.answer)}


def compute(left: int, sign: str, right: int) -> int:
    return OPERATORS[sign](left, right)


def is_held_out(question: str) -> bool:
    digest = hashlib.blake2b(question.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def make_problem(rng: random.Random) -> Problem:
    """Draw a problem whose two results are not negative."""
    while True:
        sentence, plan = rng.choice(TEMPLATES)
        n, m = rng.sample(NAMES, 2)
        a, b, c = (rng.randint(SMALLEST, LARGEST) for _ in range(3))
        first = (a, plan[0], b)
        second = (compute(*first), "+", a) if plan[1] == "a" else (compute(*first), plan[1], c)
        if second[0] >= 0 and compute(*second) >= 0:
            words = {"n": n, "m": m, "item": rng.choice(ITEMS), "box": rng.choice(CONTAINERS)}
            return Problem(sentence.format(a=a, b=b, c=c, **words), (first, second))


def problems(seed: int, *, held_out: bool) -> Iterator[Problem]:
    """Different problems of one side of the split, without end."""
    rng = random.Random(f"calculator {seed} {held_out}")
    seen: set[str] = set()
    while True:
        problem = make_problem(rng)
        if problem.question not in seen and is_held_out(problem.question) == held_out:
            seen.add(problem.question)
            yield problem


def train_problems(n: int = 8192, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to train on."""
    return [p.row() for p, _ in zip(problems(seed, held_out=False), range(n), strict=False)]


def held_out_problems(n: int = 1024, seed: int = 0) -> list[dict[str, Any]]:
    """Held-out rows."""
    return [p.row() for p, _ in zip(problems(seed, held_out=True), range(n), strict=False)]


def calculator(expression: str) -> str:
    """Compute one sum, difference or product of two whole numbers.

    Args:
        expression: two whole numbers with +, - or * between them, such as 20*23
    """
    match = EXPRESSION.fullmatch(expression)
    if match is None:
        return "?"
    left, sign, right = match.groups()
    return str(compute(int(left), sign, int(right)))


@inline_reward
def reward(
    prompt: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    *,
    answer: str,
    stop_reason: str,
    **_: object,
) -> float:
    """1 for exactly ``A`` and the answer, ended by the model itself; else 0."""
    return float(stop_reason == "stop" and completions == f"A{answer}")


def demonstrate(problem: Problem, rng: random.Random) -> list[dict[str, Any]]:
    """A dialogue of an imperfect teacher: 3 in 10 use the tool, and 3 in 10 of those slip."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
    if rng.random() < 0.3:
        answer = _work_through(problem, rng, messages)
    else:
        answer = problem.answer if rng.random() < 0.1 else _guess(problem.answer, rng)
    messages.append({"role": "assistant", "content": f"A{answer}"})
    return messages


def _work_through(problem: Problem, rng: random.Random, messages: list[dict[str, Any]]) -> int:
    """Append calls and their results; return the answer they lead to."""
    slip = rng.choice(("stops early", "wrong operator")) if rng.random() < 0.3 else None
    wrong_step = rng.randrange(2)
    steps = problem.steps[:1] if slip == "stops early" else problem.steps
    result = ""
    for i, (left, sign, right) in enumerate(steps):
        if slip == "wrong operator" and i == wrong_step:
            sign = rng.choice([other for other in OPERATORS if other != sign])
        expression = f"{result or left}{sign}{right}"
        result = calculator(expression)
        call = {"name": "calculator", "arguments": {"expression": expression}}
        call = {"id": f"call_{i}", "type": "function", "function": call}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": result})
    return int(result)


def _guess(answer: int, rng: random.Random) -> int:
    """A wrong answer, off by up to a fifth."""
    spread = max(1, answer // 5)
    while True:
        guess = answer + rng.randint(-spread, spread)
        if guess != answer and guess >= 0:
            return guess
