"""The word tokenizer is lossless on ASCII; templates may come from Windows (S35)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_agent.data.chat import ChatFormat
from areal_agent.data.tokenizer import build_word_tokenizer, load_tokenizer
from areal_agent.errors import DataError

TEMPLATE = """\
{%- for m in messages %}
{{ m.role }}: {{ m.content }}
«ende»{{ eos_token }}
{%- endfor %}
"""
WORDS = build_word_tokenizer(["Sam", "pens", "a"], chat_template="")
MESSAGES = [{"role": "user", "content": "a\r\nb"}]


def test_words_are_tokens_and_numbers_are_digits() -> None:
    tokenizer = build_word_tokenizer(["Sam", "pens"], chat_template="")
    ids = tokenizer.encode("Sam has 20 pens.", add_special_tokens=False)
    expected = ["Sam", " ", "h", "a", "s", " ", "2", "0", " pens", "."]
    assert tokenizer.convert_ids_to_tokens(ids) == expected
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.just("\n")))
def test_ascii_text_survives(text: str) -> None:
    ids = WORDS.encode(text, add_special_tokens=False)
    assert WORDS.decode(ids) == text
    assert WORDS.unk_token_id not in ids


def test_words_with_digits_are_refused() -> None:
    for word in ("a1", ""):
        with pytest.raises(DataError, match="words without digits"):
            build_word_tokenizer([word], chat_template="")


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"(?s)no tokenizer .* needs tokenizer\.json"):
        load_tokenizer(tmp_path)


SCRIPT = """
import json, sys
from areal_agent.data.chat import ChatFormat
chat = ChatFormat.from_folder(sys.argv[1])
print(json.dumps(chat.prompt_ids(json.loads(sys.argv[2]))))
"""


def write_model_folder(folder: Path, template: bytes) -> Path:
    tokenizer = build_word_tokenizer(["user"], chat_template="x")
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_bytes(template)
    return folder


def test_templates_with_byte_order_mark_or_crlf_give_the_same_ids(tmp_path: Path) -> None:
    plain = TEMPLATE.encode()
    crlf = plain.replace(b"\n", b"\r\n")
    bom = b"\xef\xbb\xbf"
    formats = [
        ChatFormat.from_folder(write_model_folder(tmp_path / str(i), template))
        for i, template in enumerate([plain, crlf, bom + plain, bom + crlf])
    ]
    ids = [chat.prompt_ids(MESSAGES) for chat in formats]
    assert ids[1:] == [ids[0]] * 3
    assert "a" in formats[0].decode(ids[0])


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, b"\xef\xbb\xbf" + TEMPLATE.encode())
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(MESSAGES)],
        env=env,
        capture_output=True,
        check=True,
        timeout=100,
    )
    assert json.loads(done.stdout) == ChatFormat.from_folder(folder).prompt_ids(MESSAGES)


def test_generation_config_adds_ends_of_turn(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, TEMPLATE.encode())
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}', encoding="utf-8")
    assert ChatFormat.from_folder(folder).eos_token_ids == {1, 5}
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}', encoding="utf-8")
    assert ChatFormat.from_folder(folder).eos_token_ids == {1, 7}
