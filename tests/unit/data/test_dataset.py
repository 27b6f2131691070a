"""Rows come from JSONL in any dress (S35), from sequences, iterables and factories (S34)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_agent.data.dataset import as_rows, load_jsonl
from areal_agent.errors import DataError

TEXT = '{"q": "naïve \\r\\n ☃", "answer": 1}\n{"q": "two\u2028lines"}\n'
ROWS = [{"q": "naïve \r\n ☃", "answer": 1}, {"q": "two\u2028lines"}]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"  \r\n"])
def test_byte_order_marks_line_ends_and_blank_lines_do_not_matter(
    tmp_path: Path, bom: bytes, end: bytes, tail: bytes
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(bom + TEXT.encode().replace(b"\n", end) + tail)
    assert load_jsonl(path) == ROWS
    assert as_rows(str(path)) == ROWS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1}\n{"a": \n', r"line 2: not JSON at column \d+ .*'\{\"a\": '"),
        (b'{"a": 1}\n\n[1, 2]\n', r"line 3: expected a JSON object, got \[1, 2\]"),
        (b'{"a": 1}\r\n{"a": "\xff"}\r\n', "line 2: expected UTF-8, got byte 0xff at column 8"),
        (b"\n \n", "has 0 rows"),
        (b"", "has 0 rows"),
    ],
)
def test_a_bad_file_names_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_jsonl(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.jsonl.*No such file"):
        load_jsonl(tmp_path / "none.jsonl")


class Table:
    """Has what Hugging Face datasets have, and is no Sequence."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"i": i}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([self[0], self[1]])


def test_sequences_tables_iterables_and_factories_are_rows() -> None:
    rows = [{"i": 0}, {"i": 1}]
    table = Table()
    assert as_rows(rows) is rows
    assert as_rows(table) is table  # type: ignore[comparison-overlap]
    assert as_rows(dict(row) for row in rows) == rows
    assert as_rows(lambda: rows) is rows
    assert as_rows(lambda: iter(rows)) == rows


@pytest.mark.parametrize("source", [[], (), iter(()), list])
def test_no_rows_is_an_error(source: Any) -> None:
    with pytest.raises(DataError, match="held-out problems has 0 rows"):
        as_rows(source, name="held-out problems")


@pytest.mark.parametrize("source", [7, {"a": 1}, lambda: None, ["text"], [("a", 1)]])
def test_what_holds_no_rows_is_an_error(source: Any) -> None:
    with pytest.raises(DataError, match=r"expected (rows|each row)"):
        as_rows(source)
