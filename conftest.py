"""Run every code block of README and docs: each must be complete, imports included."""

from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

from areal_agent.config.load import parse_config


def run_python(example: Example) -> None:
    """Run a Python block with nothing left over from the blocks before it."""
    example.namespace.clear()
    example.namespace["__name__"] = "__docs__"
    PythonEvaluator()(example)


def read_settings(example: Example) -> None:
    """Read a YAML block that is a whole settings file; parts of one are only shown."""
    if str(example.parsed).startswith("experiment_name:"):
        parse_config(str(example.parsed), source=f"{Path(example.path).name}:{example.line}")


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a block write files without leaving any; the examples are where they are in a clone."""
    (tmp_path / "examples").symlink_to(Path(__file__).parent / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser("python", run_python),
        CodeBlockParser("yaml", read_settings),
    ],
    patterns=["README.md", "docs/*.md"],
    excludes=["examples/**/*.md", "areal_agent/**/*.md"],
    fixtures=["in_empty_folder"],
).pytest()
