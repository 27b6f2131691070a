"""Tokenizers: loaded from a folder on this machine, or made from a list of words.

`load_tokenizer` never goes to a network. `build_word_tokenizer` makes the small one of the demo
model: a token per listed word (with and without the space before it) and per printable character,
so that any ASCII text has ids and numbers are read digit by digit.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from areal_agent.errors import DataError

_CHARACTERS = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
_PAD, _EOS, _UNK = "<pad>", "<eos>", "<unk>"


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder; only local files are read.

    A chat template saved with a byte-order mark or CRLF gives the same text as one without.

    Raises:
        DataError: there is no such folder, or no tokenizer in it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise DataError(f"expected a folder with a tokenizer, got {str(folder)!r}: no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"no tokenizer could be loaded from {str(path)!r} ({error}): the folder needs "
            "tokenizer.json and tokenizer_config.json"
        ) from error
    if isinstance(tokenizer.chat_template, str):
        template = tokenizer.chat_template.removeprefix("\ufeff")
        tokenizer.chat_template = template.replace("\r\n", "\n")
    return tokenizer


def build_word_tokenizer(words: Iterable[str], *, chat_template: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer of whole words and single characters.

    Text is cut into as few tokens as can be; characters outside ASCII become ``<unk>``.

    Args:
        words: each becomes a token as it stands and one with a space before it.
        chat_template: how messages become text (jinja).

    Raises:
        DataError: a word is empty or holds a digit (numbers are read digit by digit).
    """
    whole: set[str] = set()
    for word in words:
        if not word or any(character.isdigit() for character in word):
            raise DataError(f"expected words without digits, got {word!r}")
        whole |= {word, f" {word}"}
    tokens = [_PAD, _EOS, _UNK, *_CHARACTERS, *sorted(whole - set(_CHARACTERS))]
    # Equal scores make the likeliest cut the one with the fewest tokens.
    core = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=2))
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=_PAD,
        eos_token=_EOS,
        unk_token=_UNK,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer
