"""``areal-agent eval``: the same examples on servers of the run, and at an endpoint of others."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from loop_support import COMMAND, HERE, write_settings

from areal_agent import RLTrainer, load_config
from areal_agent.errors import ArealAgentError, ConfigError
from areal_agent.trainer.evaluate import evaluate

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = EXAMPLES / "agents" / "openai_sdk" / "config.yaml"
WORKFLOW = EXAMPLES / "calculator" / "config.yaml"
SMALL = ["evaluator.n_problems_final=12", "valid_dataset.args.n=16"]
KEY = "the-key-of-the-endpoint"

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Endpoint:
    url: str

    def settings(self, **changes: str) -> list[str]:
        said = {"type": "openai", "base_url": self.url, "model": "theirs", "api_key_env": "THEIRS"}
        return [f"inference.{name}={value}" for name, value in (said | changes).items()]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The embedded server, which is such an endpoint as well, with the calculator model."""
    folder = tmp_path_factory.mktemp("endpoint")
    ready = folder / "ready.json"
    argv = [COMMAND, "serve", "builtin:calculator", "--port", "0", "--ready-file", ready]
    argv += ["--served-model-name", "theirs"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "AREAL_AGENT_API_KEY": KEY}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not ready.is_file():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        facts = json.loads(ready.read_text())
        yield Endpoint(f"http://{facts['host']}:{facts['port']}/v1")
    finally:
        process.terminate()
        process.wait(20)


def run(command: str, config: Path, root: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    argv = [str(COMMAND), command, str(config), f"fileroot={root}", *args]
    argv += SMALL
    env = {**os.environ, "OMP_NUM_THREADS": "1", "THEIRS": KEY}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def episodes(folder: str | Path) -> list[dict[str, Any]]:
    lines = (Path(folder) / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def check_summary(found: dict[str, Any]) -> None:
    assert (found["problems"], found["failed"]) == (12, 0)
    assert 0 <= found["accuracy"] <= 1
    ended = episodes(found["run_folder"])
    assert len(ended) == 12
    assert sum(one["reward"] for one in ended) / 12 == pytest.approx(found["accuracy"])
    written = json.loads((Path(found["run_folder"]) / "summary.json").read_text())
    assert written == found
    assert Path(found["run_folder"]).name == "trial-eval"


def test_an_agent_is_evaluated_at_an_endpoint_unchanged(endpoint: Endpoint, tmp_path: Path) -> None:
    done = run("eval", AGENT, tmp_path, *endpoint.settings())
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("held-out accuracy", "failed episodes", "outcomes", "12 ok", endpoint.url):
        assert name in done.stdout
    assert "\x1b" not in done.stdout
    [folder] = tmp_path.glob("*/trial-eval")
    found = json.loads((folder / "summary.json").read_text())
    check_summary(found)
    assert (found["model"], found["base_url"]) == ("theirs", endpoint.url)
    calls = [one["metrics"]["calls"] for one in episodes(folder)]
    assert min(calls) >= 1
    assert max(calls) >= 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if KEY in path.read_text(encoding="utf-8")]


def test_a_workflow_is_evaluated_on_servers_of_the_run(tmp_path: Path) -> None:
    done = run("eval", WORKFLOW, tmp_path, "--json", "eval_gconfig.greedy=true")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    check_summary(found)
    assert (found["model"], found["base_url"]) == ("builtin:calculator", None)
    assert found["greedy"] is True
    assert all(one["turns"] for one in episodes(found["run_folder"]))
    left = sorted(path.name for path in Path(found["run_folder"]).iterdir() if path.is_dir())
    assert left == ["logs"]


def loaded(config: Path, root: Path, *overrides: str) -> Any:
    return load_config(config, [f"fileroot={root}", *SMALL, *overrides])


@pytest.mark.parametrize(
    ("name", "hosting"), [("pydantic_ai_agent", "inline"), ("langgraph_agent", "subprocess")]
)
async def test_agents_of_frameworks_are_evaluated_wherever_they_run(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hosting: str
) -> None:
    monkeypatch.setenv("THEIRS", KEY)
    config = EXAMPLES / "agents" / name / "config.yaml"
    hosted = [f"gateway.hosting={hosting}"]
    summary = await evaluate(loaded(config, tmp_path, *endpoint.settings(), *hosted))
    check_summary(asdict(summary))


async def test_settings_for_an_endpoint_need_nothing_of_training(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIRS", KEY)
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    values = {
        "experiment_name": "only",
        "model": "none",
        "fileroot": str(tmp_path),
        "workflow": {"use": f"{HERE / 'loop_task.py'}:Asks"},
        "valid_dataset": {"use": "rows.jsonl"},
        "inference": dict(s.removeprefix("inference.").split("=") for s in endpoint.settings()),
    }
    summary = await evaluate(load_config(write_settings(tmp_path, values)))
    assert (summary.problems, summary.accuracy) == (1, 0.5)


async def test_an_endpoint_is_not_trained_on(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an endpoint gives no token ids and no logprobs"):
        await RLTrainer(loaded(AGENT, tmp_path, *endpoint.settings())).train()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "changes", "key", "code", "said"),
    [
        (AGENT, {}, "wrong", 1, "answered 403: the key was refused"),
        (AGENT, {}, None, 2, "names 'THEIRS', but there is no such environment variable"),
        (AGENT, {"base_url": "http://127.0.0.1:9/v1"}, KEY, 1, "cannot reach http://127.0.0.1:9"),
        (AGENT, {"base_url": "http://me:secret@x/v1"}, KEY, 2, "without user, password or query"),
        (AGENT, {"base_url": "x"}, KEY, 2, "expected a URL such as http://localhost:8000/v1"),
        (AGENT, {"type": "embedded"}, KEY, 2, "only an endpoint has one"),
        (AGENT, {"model": "another"}, KEY, 3, "none of 12 episodes could be scored"),
        (WORKFLOW, {}, KEY, 2, "tool_agent asks for `chat`, but inference.type is openai"),
    ],
)
async def test_what_cannot_be_evaluated_is_said(
    endpoint: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: Path,
    changes: dict[str, str],
    key: str | None,
    code: int,
    said: str,
) -> None:
    if key is not None:
        monkeypatch.setenv("THEIRS", key)
    with pytest.raises(ArealAgentError) as caught:
        await evaluate(loaded(config, tmp_path, *endpoint.settings(**changes)))
    assert caught.value.exit_code == code
    assert said in str(caught.value)
    assert KEY not in str(caught.value)
    assert bool(list(tmp_path.iterdir())) == ("none of 12" in said)
