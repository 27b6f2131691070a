"""The contract with OpenAI's SDK holds for 2.x as well: its tests run again with that one.

The SDK is installed with what it needs into a folder of its own, beside the environment of the
tests, and stays there for the next time. There it shadows the 3.x that the tests around it use.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = Path(sys.prefix) / "openai-2"
CONTRACT = ("chat_completions", "responses", "retries", "agent_episodes")


@pytest.fixture(scope="module")
def openai_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest openai 2.x, and the pinned versions of all else."""
    if FOLDER.is_dir():
        return FOLDER
    folder = tmp_path_factory.mktemp("openai-2")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    others = folder / "constraints.txt"
    others.write_text("\n".join(p for p in pins if not p.startswith("openai==")), encoding="utf-8")
    made = FOLDER.with_name(f"openai-2.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    try:
        subprocess.run([*pip, "-c", others, "--target", made, "openai>=2,<3"], check=True)
        if not FOLDER.exists():
            made.rename(FOLDER)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return FOLDER


@pytest.mark.timeout(600)
def test_the_contract_holds_with_openai_2(openai_2: Path) -> None:
    paths = [str(openai_2), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    files = [str(HERE / f"test_{name}.py") for name in CONTRACT]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert re.search(r"^openai 2\.\d+\.\d+$", done.stdout, re.MULTILINE), done.stdout[:2000]
    ended = re.search(r"(\d+) passed", done.stdout)
    assert ended is not None
    assert int(ended[1]) >= 60
