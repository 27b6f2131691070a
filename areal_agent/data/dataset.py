"""Datasets: rows of a JSONL file, of a sequence, of an iterable, or of a function that makes them.

A dataset is any sequence of dicts; lists and Hugging Face datasets are. Files are UTF-8, with or
without a byte-order mark, with LF or CRLF.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from areal_agent.errors import DataError

Row = dict[str, Any]
Source = Sequence[Row] | Iterable[Row] | Callable[[], Sequence[Row] | Iterable[Row]] | Path | str


def load_jsonl(path: Path | str) -> list[Row]:
    """Read one JSON object per line; blank lines are skipped.

    Raises:
        DataError: naming file and line: not UTF-8, not JSON, not an object; or there is no row.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the dataset {str(path)!r}: {error.strerror}") from error
    rows: list[Row] = []
    # Only LF ends a line: JSON strings may hold U+2028 and the like, on which splitlines() splits.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            rows.append(_parse_line(line, f"{path}, line {number}"))
    return cast("list[Row]", as_rows(rows, name=str(path)))


def _parse_line(line: bytes, place: str) -> Row:
    try:
        row: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: expected UTF-8, got byte 0x{line[error.start]:02x} at column "
            f"{error.start + 1}: save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{place}: not JSON at column {error.colno} ({error.msg}): {_short(line.decode())}"
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, got {_short(row)}")
    return cast("Row", row)


def as_rows(source: Source, *, name: str = "the dataset") -> Sequence[Row]:
    """Return `source` as a sequence of at least one dict.

    A path is read as JSONL, a function is called, an iterable without length is read to its end.

    Args:
        source: where the rows come from.
        name: what error messages call it.

    Raises:
        DataError: there is no row, the first row is not a dict, or `source` holds no rows at all.
    """
    if isinstance(source, (str, Path)):
        return load_jsonl(source)
    if callable(source):
        return as_rows(source(), name=name)
    if isinstance(source, dict) or not hasattr(source, "__iter__"):
        raise DataError(
            f"{name}: expected rows (a sequence of dicts), a JSONL path or a function that "
            f"returns rows, got {_short(source)}"
        )
    has_index = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    rows = cast("Sequence[object]", source if has_index else list(source))
    if len(rows) == 0:
        raise DataError(f"{name} has 0 rows: expected at least 1")
    if not isinstance(rows[0], dict):
        raise DataError(f"{name}: expected each row to be a dict, got {_short(rows[0])} first")
    return cast("Sequence[Row]", rows)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
