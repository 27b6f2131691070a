"""Text from tokens: half characters, stop strings over token borders."""

import pytest
from tiny_models import byte_tokenizer

from areal_agent.inference.engine.detokenize import Detokenizer, StopMatcher

TOKENIZER = byte_tokenizer()
TEXT = "naïve 日本語 🙂 done"


def decode(ids: object) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=True)


def test_characters_come_whole() -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(i) for i in TOKENIZER.encode(TEXT)]
    assert len(pieces) > len(TEXT)
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == TEXT
    assert detokenizer.finish() == ""


def test_a_half_character_at_the_end_is_given_at_last() -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(i) for i in TOKENIZER.encode("ab🙂")[:-1]]
    assert "".join(pieces) == "ab"
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (["語"], "naïve 日本"),
        (["本語 🙂", "zzz"], "naïve 日"),
        ([" done", "🙂"], "naïve 日本語 "),
        (["naïve"], ""),
    ],
)
def test_stop_strings_end_the_text_before_them(stop: list[str], kept: str) -> None:
    matcher = StopMatcher(decode, stop)
    given = ""
    for i in TOKENIZER.encode(TEXT):
        ended = matcher.push(i)
        given += matcher.take()
        assert kept.startswith(given)  # nothing of a stop string is ever given out
        if ended:
            break
    assert given == matcher.finish() == kept
    assert matcher.matched in stop


def test_what_might_have_been_a_stop_string_is_given_in_the_end() -> None:
    matcher = StopMatcher(decode, ["<stop>"])
    given = ""
    for i in TOKENIZER.encode("a<sto"):
        assert not matcher.push(i)
        given += matcher.take()
    assert given == "a"
    assert matcher.take_rest() == "<sto"
    assert matcher.finish() == "a<sto"
