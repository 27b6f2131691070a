"""Answers in replies, and rewards for those that can be compared as text or as numbers.

They take microseconds, so they run on the event loop. Importing this costs no torch.
"""

import math
import re
from collections.abc import Sequence

from areal_agent import inline_reward
from areal_agent.errors import DataError

_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


@inline_reward
def exact_match(
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    answer: str,
    **_: object,
) -> float:
    """1 when the reply's final answer is the text of `answer`, else 0."""
    return float(final_answer(completions) == str(answer).strip())


@inline_reward
def numeric_match(
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    answer: str | float,
    **_: object,
) -> float:
    """1 when the last number of the final answer equals `answer`'s, as numbers; else 0."""
    got, wanted = last_number(final_answer(completions)), last_number(str(answer))
    if wanted is None:
        raise DataError(f"expected the column 'answer' to hold a number, got {answer!r}")
    return float(got is not None and math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-12))


def final_answer(text: str) -> str:
    r"""Return the answering part: in the last ``\boxed{}``, after the last ``####``, or all."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    return text.rpartition("####")[2].strip()


def last_number(text: str) -> float | None:
    """The last number in `text`, thousands separators removed; None without any."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def last_boxed(text: str) -> str | None:
    r"""Return what is in the last ``\boxed{}`` or ``\fbox{}``, braces balanced; None without any.

    One that is not closed counts as none.
    """
    found: tuple[int, int] | None = None
    is_open: list[int | None] = []
    for match in _BOX_OR_BRACE.finditer(text):
        if match[0] == "}":
            start = is_open.pop() if is_open else None
            if start is not None and (found is None or start > found[0]):
                found = start, match.start()
        elif match[0].endswith("{") and match[0] != r"\{":
            is_open.append(None if match[0] == "{" else match.end())
    return None if found is None else text[found[0] : found[1]]
