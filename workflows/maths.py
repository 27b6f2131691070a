r"""A reward for mathematical answers: the last ``\boxed{}`` of the reply against the row's.

Comparison is math-verify's (``pip install areal-agent[math]``), and only of what cannot take long:
LaTeX that is read by a grammar, never by Python. Numbers are compared as numbers, words as words,
and towers of powers or big factorials as text. A worker process runs it, which `rollout.reward`
bounds in time and memory. Importing this costs no torch.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from areal_agent.errors import DataError

from .answers import final_answer, last_boxed

MOST_CHARACTERS = 1000
"""A longer answer is compared as text."""

_SECONDS = 2
_MOST_NESTING = 24
_MOST_DIGITS = 100
_LARGEST_EXPONENT = 1_000_000
_LARGEST_FACTORIAL = 1000

_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?:\\?\$)?\s*(?P<whole>\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+|\d*)"
    r"(?P<rest>(?:\.\d+)?(?:[eE][-+]?\d{1,3})?)\s*(?:\\?\$)?"
)
_WORDS = re.compile(r"[A-Za-z]{4,}(?:[ -][A-Za-z]+)*")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}")
_POWER = re.compile(r"\^|\*\*")
_GROWING = re.compile(r"\\(?:[dt]?binom|choose|Gamma|prod|sum)\b")


def math_reward(
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    answer: str | float,
    **_: object,
) -> float:
    r"""1 when the last ``\boxed{}`` of the reply equals `answer`, else 0; also without a box.

    Raises:
        DataError: `answer` is empty or cannot be read.
    """
    gold = _tidy(final_answer(str(answer)))
    if not _is_readable(gold):
        raise DataError(
            f"expected a mathematical answer in the column 'answer', got {answer!r:.200}"
        )
    given = last_boxed(completions)
    return float(given is not None and same_answer(given, gold))


def same_answer(given: str, gold: str) -> bool:
    """Tell whether two answers in LaTeX are the same."""
    given, gold = _tidy(given), _tidy(gold)
    if not given or not gold:
        return False
    if given == gold:
        return True
    numbers = _number(given), _number(gold)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if _WORDS.fullmatch(given) or _WORDS.fullmatch(gold):
        return given.casefold() == gold.casefold()
    if not (is_tame(given) and is_tame(gold)):
        return "".join(given.split()) == "".join(gold.split())
    return _verified(given, gold)


def is_tame(text: str) -> bool:
    """Tell whether computing what `text` says takes little time and memory, going by its looks."""
    if len(text) > MOST_CHARACTERS or _depth(text) > _MOST_NESTING:
        return False
    numbers = re.findall(r"\d+", text)
    if any(len(number) > _MOST_DIGITS for number in numbers):
        return False
    if _GROWING.search(text) and any(int(number) > _LARGEST_FACTORIAL for number in numbers):
        return False
    if not all(_is_small_factorial(text[: match.start()]) for match in re.finditer("!", text)):
        return False
    exponents = [_exponent(text, match.start(), match.end()) for match in _POWER.finditer(text)]
    return None not in exponents and prod(e or 0 for e in exponents) <= _LARGEST_EXPONENT


def _exponent(text: str, start: int, end: int) -> int | None:
    """By what a power multiplies digits at most; None when that is hard to tell."""
    inside, after = _group(text, end)
    nested = list(_POWER.finditer(inside))
    if "!" in inside or len(nested) > 1 or _POWER.match(after.lstrip()):
        return None
    if any(not inside[: match.start()].rstrip()[-1:].isalpha() for match in nested):
        return None
    numbers = [int(number) for number in re.findall(r"\d+", inside)]
    size = max(prod(max(number, 1) for number in numbers), 1)
    if size > _LARGEST_EXPONENT:
        return None
    return 1 if text[:start].rstrip()[-1:].isalpha() else size


def _group(text: str, start: int) -> tuple[str, str]:
    """The group, number, command or sign at `start`, and what follows it."""
    rest = text[start:].lstrip()
    if rest[:1] in ("{", "("):
        depth = 0
        for i, char in enumerate(rest):
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(char, 0)
            if depth == 0:
                return rest[1:i], rest[i + 1 :]
        return rest, ""
    match = re.match(r"[-+]?\s*(?:\d+|\\[A-Za-z]+|.|$)", rest, re.DOTALL)
    cut = match.end() if match is not None else 0
    return rest[:cut], rest[cut:]


def _is_small_factorial(before: str) -> bool:
    """Tell whether what stands before a ``!`` is a letter or a small number."""
    before = before.rstrip()
    number = re.search(r"\d+$", before)
    if number is not None:
        return int(number[0]) <= _LARGEST_FACTORIAL
    return before[-1:].isalpha()


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(char, 0)
        deepest = max(deepest, depth)
    return deepest


def _tidy(answer: str) -> str:
    r"""Without what says nothing: dollars and spaces around, a full stop, ``\text{}``."""
    boxed = last_boxed(answer)
    answer = (answer if boxed is None else boxed).strip()
    answer = re.sub(r"(?<=\d)_(?=\d)", "", answer)
    if len(answer) > 1 and answer[0] == answer[-1] == "$":
        answer = answer.strip("$").strip()
    answer = answer.removesuffix(".").strip()
    whole = _TEXT.fullmatch(answer)
    return answer if whole is None else whole[1].strip()


def _number(text: str) -> Any:
    from decimal import Decimal

    match = _NUMBER.fullmatch(text)
    if match is None or not (match["whole"] or match["rest"].startswith(".")):
        return None
    whole = re.sub(r"\D", "", match["whole"])
    if len(whole) + len(match["rest"]) > _MOST_DIGITS:
        return None
    return Decimal(f"{match['sign']}{whole or 0}{match['rest']}")


@lru_cache(maxsize=256)
def _is_readable(gold: str) -> bool:
    if not gold:
        return False
    if _number(gold) is not None or _WORDS.fullmatch(gold) or not is_tame(gold):
        return True
    return bool(_parsed(gold))


def _verified(given: str, gold: str) -> bool:
    from math_verify import verify

    parsed = _parsed(gold), _parsed(given)
    return all(parsed) and bool(verify(*parsed, timeout_seconds=_SECONDS))


def _parsed(answer: str) -> list[Any]:
    """Read LaTeX. math-verify's other way in, for plain expressions, would have Python run them."""
    try:
        from math_verify import LatexExtractionConfig, parse
    except ImportError as error:
        raise DataError("math_reward needs math-verify: pip install 'areal-agent[math]'") from error
    return parse(
        f"${answer}$",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=_SECONDS,
    )
