"""Names to objects: short names, modules, scripts, and what is said when there is none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_agent.errors import ConfigError
from areal_agent.registry import available, load_script, resolve

BUILTIN = {"ordered": "collections:OrderedDict", "broken": "areal_agent_no_such_module:X"}


@pytest.fixture(autouse=True)
def forget_scripts() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("areal_agent_script_"):
            del sys.modules[name]


def script(folder: Path, text: str, name: str = "agent.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_short_module_and_nested_names() -> None:
    from collections import OrderedDict, UserDict

    assert resolve("ordered", kind="things", builtin=BUILTIN) is OrderedDict
    assert resolve("collections:UserDict", kind="things") is UserDict
    assert resolve("collections:UserDict.copy", kind="things") is UserDict.copy


def test_a_script_is_loaded_once_per_path(tmp_path: Path) -> None:
    path = script(tmp_path, "class Agent:\n    pass\n")

    first = resolve("agent.py:Agent", kind="workflows", base=tmp_path)

    assert resolve(f"{path}:Agent", kind="workflows") is first
    assert resolve("../x/agent.py:Agent".replace("x", tmp_path.name), kind="workflows",
                   base=tmp_path) is first  # fmt: skip
    assert sys.modules[first.__module__].__file__ == str(path)
    assert getattr(sys.modules[first.__module__], first.__qualname__) is first


def test_scripts_of_one_name_do_not_collide(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    script(tmp_path / "a", "def reward():\n    return 1\n", "task.py")
    script(tmp_path / "b", "def reward():\n    return 2\n", "task.py")

    assert resolve("a/task.py:reward", kind="rewards", base=tmp_path)() == 1
    assert resolve("b/task.py:reward", kind="rewards", base=tmp_path)() == 2


def test_a_script_that_fails_can_be_mended(tmp_path: Path) -> None:
    path = script(tmp_path, "raise KeyError('no data')\n")

    with pytest.raises(ConfigError, match=r"agent\.py' failed: KeyError: 'no data'") as caught:
        load_script(path)
    assert isinstance(caught.value.__cause__, KeyError)
    path.write_text("x = lambda: 1\n", encoding="utf-8")
    assert load_script(path).x() == 1


def test_a_script_that_cannot_be_parsed(tmp_path: Path) -> None:
    path = script(tmp_path, "class A(:\n")

    with pytest.raises(ConfigError, match="SyntaxError"):
        load_script(path)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a Python file at '.*nope\.py', but there is none"
    ):
        resolve("nope.py:Agent", kind="workflows", base=tmp_path)


def test_a_name_that_a_script_lacks(tmp_path: Path) -> None:
    script(tmp_path, "from pathlib import Path\nclass Agent: ...\ndef helper(): ...\n_x = 1\n")

    with pytest.raises(ConfigError) as caught:
        resolve("agent.py:Agnet", kind="workflows", base=tmp_path)

    assert "has only: Agent, helper; did you mean 'Agent'?" in str(caught.value)


def test_a_short_name_that_nobody_knows() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("orderd", kind="things", builtin=BUILTIN)

    message = str(caught.value)
    assert "'orderd' is not a thing; did you mean 'ordered'?" in message
    assert "expected one of broken, ordered, or one of your own as 'module:Name'" in message


def test_a_module_that_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="needs the module 'areal_agent_no_such_module'"):
        resolve("broken", kind="things", builtin=BUILTIN)
    with pytest.raises(ConfigError, match=r"a file is written 'path/to/file\.py:Name'"):
        resolve("no_such_module_at_all:Name", kind="things")


def test_a_module_that_needs_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "import wanted_by_plugin_xyz\n", "plugin_for_registry_test.py")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(
        ConfigError, match="failed: ModuleNotFoundError: No module named 'wanted_by"
    ):
        resolve("plugin_for_registry_test:X", kind="things")


@pytest.mark.parametrize("name", [":X", "x:", "agent.py:", ":"])
def test_half_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a thing as a short name"):
        resolve(name, kind="things")


def test_entry_points_are_listed_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[areal_agent.things]\nmine = plugin_module_q:Mine\nordered = plugin_module_q:Other\n"
    )
    script(tmp_path, "class Mine: ...\n", "plugin_module_q.py")
    monkeypatch.syspath_prepend(tmp_path)

    known = available("things", BUILTIN)

    assert known["mine"] == "plugin_module_q:Mine"
    assert known["ordered"] == "collections:OrderedDict"
    assert "plugin_module_q" not in sys.modules
    assert resolve("mine", kind="things", builtin=BUILTIN).__name__ == "Mine"


def test_the_ready_workflows_have_short_names() -> None:
    assert {"rlvr", "multi_turn", "tool_agent"} <= set(available("workflows"))
