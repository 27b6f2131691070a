"""House rules that no linter checks: sizes, import costs, the public surface."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import areal_agent

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("areal_agent/**/*.py"), *ROOT.glob("workflows/*.py")])
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_importing_the_package_costs_no_torch() -> None:
    out = run_python("import areal_agent, sys; print('torch' in sys.modules)")
    assert out == "False"


@pytest.mark.parametrize(
    "command", ["", "train", "eval", "serve", "config", "episodes", "replay", "stall"]
)
def test_help_costs_no_torch(command: str) -> None:
    out = run_python(
        "import sys\n"
        "from areal_agent.cli import app\n"
        f"sys.argv = ['areal-agent', *{command.split()!r}, '--help']\n"
        "try:\n    app()\n"
        "except SystemExit as stop:\n    assert stop.code in (0, None), stop.code\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert out.splitlines()[-1] == "False"


def test_all_is_what_is_there() -> None:
    assert sorted(areal_agent.__all__) == list(areal_agent.__all__)
    for name in areal_agent.__all__:
        assert getattr(areal_agent, name) is not None
    assert set(areal_agent.__all__) <= set(dir(areal_agent))


def test_every_module_with_all_has_what_it_names() -> None:
    for path in ROOT.glob("areal_agent/**/*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module_name = ".".join(parts).removesuffix(".__init__")
        if "__all__" in path.read_text(encoding="utf-8"):
            module = importlib.import_module(module_name)
            assert all(hasattr(module, name) for name in module.__all__), module_name


def test_an_installation_has_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(settings["tool"]["setuptools"]["packages"])
    there = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in ROOT.glob("areal_agent/**/__init__.py")
    }
    assert listed == there | {"areal_agent.workflows"}


def test_the_library_never_imports_workflows_or_examples() -> None:
    for path in ROOT.glob("areal_agent/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert not name.startswith(("areal_agent.workflows", "workflows", "examples")), path


def test_the_workflows_are_importable_by_their_public_name() -> None:
    module = importlib.import_module("areal_agent.workflows.tool_agent")
    assert Path(str(module.__file__)).parent == ROOT / "workflows"
