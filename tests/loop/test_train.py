"""``areal-agent train`` from the command line, and the loop in a program of one's own."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from areal_agent.workflows.tool_agent import ToolAgentWorkflow
from loop_support import Driver, metrics_of, settings, write_settings
from typer.testing import CliRunner

from areal_agent import (
    GenerationHyperparameters,
    InferenceEngine,
    ModelRequest,
    RolloutWorkflow,
    Trajectory,
    load_config,
    open_run,
    replay,
)
from areal_agent.cli import app
from areal_agent.data.chat import ChatFormat
from areal_agent.models.load import resolve_model
from areal_agent.registry import load_script
from areal_agent.rollout.record_reader import Records

pytestmark = pytest.mark.timeout(300)

HELD_OUT = {"use": settings(Path(), Path())["train_dataset"]["use"], "args": {"n": 6}}
EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator" / "task.py"
DEAD_PROXY = "http://127.0.0.1:9"
NAMED_BY_THE_ISSUE = {
    "eval_before",
    "eval_after",
    "eval_after_greedy",
    "steps",
    "train_seconds",
    "overlap_share",
    "overlap_possible",
    "versions_spanned_max",
    "staleness_max",
}


@dataclass(frozen=True)
class Trained:
    """Three runs that went on at the same time on this host."""

    plain: Driver
    json: Driver
    """With two servers, and proxies in the environment that lead nowhere."""
    quiet: Driver
    """Of the calculator's task."""


def calculator(root: Path) -> dict[str, Any]:
    """Settings of a run of seconds of the example."""
    args = {"tools": [f"{EXAMPLE}:calculator"], "reward_fn": f"{EXAMPLE}:reward", "max_turns": 7}
    return settings(
        root,
        Path("builtin:calculator"),
        workflow={"use": "tool_agent", "args": args},
        train_dataset={"use": f"{EXAMPLE}:train_problems", "args": {"n": 64}},
        gconfig={"max_new_tokens": 48, "max_tokens": 256},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Trained]:
    root = tmp_path_factory.mktemp("trained")
    plain = settings(
        root / "plain",
        model,
        total_train_steps=3,
        valid_dataset=HELD_OUT,
        evaluator={"freq_steps": 1, "n_problems": 4},
        saver={"freq_steps": 2},
    )
    two = settings(root / "two", model, rollout={"backend": "embedded:d2"}, saver={"freq_steps": 1})
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    proxies = dict.fromkeys(names, DEAD_PROXY) | {"NO_PROXY": "", "no_proxy": ""}
    runs = Trained(
        Driver(root / "plain", plain),
        Driver(root / "two", two, "--json", env=proxies),
        Driver(root / "quiet", calculator(root / "quiet"), "--quiet"),
    )
    with ExitStack() as stack:
        for run in (runs.plain, runs.json, runs.quiet):
            stack.enter_context(run)
        for run in (runs.plain, runs.json, runs.quiet):
            assert run.wait() == 0, run.said()
        yield runs


def test_the_run_folder_holds_what_is_promised(trained: Trained, model: Path) -> None:
    folder = trained.plain.folder
    loaded = load_config(folder / "config.yaml").config
    assert (loaded.experiment_name, loaded.model) == ("loop", str(model))
    steps = metrics_of(folder)
    assert [step["global_step"] for step in steps] == [0, 1, 2]
    assert [step["publish/version"] for step in steps] == [1, 2, 3]
    assert steps[0]["mismatch/abs_max"] < 1e-4
    assert all(step["publish/probe_abs_max"] < 1e-4 for step in steps)
    assert {"eval/reward" in step for step in steps[:2]} == {True}
    summary = trained.plain.summary
    assert summary.keys() >= NAMED_BY_THE_ISSUE
    assert (summary["steps"], summary["version"], summary["eval_problems"]) == (3, 3, 6)
    assert summary["run_folder"] == str(folder)
    assert 0 <= summary["staleness_max"] <= 2
    assert 0 <= summary["eval_after"] <= 1
    assert sorted(path.name for path in (folder / "weights").iterdir()) == ["v000002", "v000003"]


def test_the_walkthrough_explains_every_metric(trained: Trained) -> None:
    page = (Path(__file__).parents[2] / "docs" / "walkthrough.md").read_text(encoding="utf-8")
    keys = {key for step in metrics_of(trained.plain.folder) for key in step}
    assert "eval/reward" in keys
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def test_every_episode_is_recorded_with_its_tokens(trained: Trained) -> None:
    episodes = list(Records(trained.plain.folder).episodes())
    splits = [episode["split"] for episode in episodes]
    assert splits.count("eval before training") == 6
    assert splits.count("eval at step 1") == splits.count("eval at step 2") == 4
    assert splits.count("eval after training, greedy") == 6
    assert splits.count("train") >= 3 * 4 * 4
    for episode in episodes:
        assert episode["outcome"] in {"ok", "truncated"}
        (turn,) = episode["turns"]
        n = len(turn["output_ids"])
        assert n >= 1
        assert len(turn["logprobs"]) == len(turn["versions"]) == n
        assert episode["reward"] == float(sum(turn["output_ids"]) % 2 == 0)


def test_the_exports_are_hugging_face_folders_with_the_trained_weights(
    trained: Trained, model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = trained.plain.folder
    saved = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert saved == ["step-000002", "step-000003"]
    final = AutoModelForCausalLM.from_pretrained(folder / "model")
    start = AutoModelForCausalLM.from_pretrained(model)
    ids = AutoTokenizer.from_pretrained(folder / "model")("1 + 1?", return_tensors="pt")
    assert not torch.equal(final(**ids).logits, start(**ids).logits)
    last = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step-000003")
    assert torch.equal(final(**ids).logits, last(**ids).logits)
    served = AutoModelForCausalLM.from_pretrained(folder / "weights" / "v000003")
    assert torch.equal(final(**ids).logits, served(**ids).logits)


def test_off_a_terminal_there_are_plain_lines(trained: Trained) -> None:
    out = trained.plain.stdout
    assert "\x1b" not in out
    lines = out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("step ")] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ]
    assert any(re.match(r"held-out accuracy before training: [01]\.\d+ ±", line) for line in lines)
    assert trained.plain.stderr == ""


def test_json_prints_the_summary_alone(trained: Trained) -> None:
    out = trained.json.stdout
    assert out.endswith("\n")
    assert json.loads(out) == trained.json.summary
    assert len(out.splitlines()) == 1
    assert trained.json.stderr == ""


def test_quiet_prints_nothing(trained: Trained) -> None:
    assert (trained.quiet.stdout, trained.quiet.stderr) == ("", "")
    assert trained.quiet.summary["steps"] == 2


async def test_a_run_is_replayed_bit_for_bit_without_servers(trained: Trained) -> None:
    folder = trained.quiet.folder
    recorded = list(Records(folder).episodes())
    assert len(recorded) >= 2 * 4 * 4
    assert sum(len(one["tools"]) for one in recorded) > 4
    found = await replay(folder)
    assert [(one.id, one.verdict, one.difference) for one in found] == [
        (one["id"], "same", None) for one in recorded
    ]
    fates = Records(folder).fates()
    became = [fates[one["id"]].name for one in recorded if one["id"] in fates]
    assert became.count("trained") == 2 * 4 * 4


async def test_a_replay_names_the_first_call_that_differs(trained: Trained) -> None:
    class Politer(ToolAgentWorkflow):
        async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
            data["messages"][0]["content"] += " 9"
            return await super().arun_episode(engine, data)

    task = load_script(EXAMPLE)
    gconfig = GenerationHyperparameters(n_samples=4, max_new_tokens=48, max_tokens=256)
    chat = ChatFormat.from_folder(resolve_model("builtin:calculator"))
    changed = Politer([task.calculator], task.reward, gconfig, chat, max_turns=7)
    name = next(iter(Records(trained.quiet.folder).episodes()))["id"]
    [found] = await replay(trained.quiet.folder, [name], workflow=changed)
    assert found.difference is not None
    assert found.difference.what == "model call 0"
    assert "? 9" in found.difference.now
    assert "? 9" not in found.difference.recorded


def test_a_replay_that_differs_ends_with_exit_code_1(trained: Trained, tmp_path: Path) -> None:
    name = next(iter(Records(trained.quiet.folder).episodes()))["id"]
    values = calculator(tmp_path)
    values["gconfig"]["max_tokens"] = 255
    other = str(write_settings(tmp_path, values))
    argv = ["replay", str(trained.quiet.folder), name, "--config", other]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 1
    assert f"episode {name} (train) differs at model call 0" in done.output
    assert "sampling with max_tokens 256" in done.output
    assert done.output.splitlines()[-1] == "1 episodes: 0 the same, 1 differ"


def test_runs_share_a_host_and_dead_proxies_are_not_asked(trained: Trained) -> None:
    assert trained.json.summary["version"] == 2
    for run in (trained.plain, trained.json, trained.quiet):
        probes = [step.get("publish/probe_abs_max") for step in metrics_of(run.folder)]
        assert all(probe < 1e-4 for probe in probes if probe is not None)
        assert not run.alive()
    logs = sorted(path.name for path in (trained.json.folder / "logs").iterdir())
    rewards = [name for name in logs if name.startswith("reward-")]
    assert logs == [*rewards, "server-0.log", "server-1.log", "trainer.log"]
    assert rewards  # the reward function ran in workers
    for step in metrics_of(trained.json.folder):
        assert step["reward/calls"] > 0
        assert step["reward/errors"] == step["reward/timeouts"] == step["reward/crashes"] == 0


class Short(RolloutWorkflow):
    """A user's agent: one reply, and a reward for each even id."""

    def __init__(self, gconfig: GenerationHyperparameters, chat: ChatFormat) -> None:
        self.gconfig = gconfig.new(n_samples=1)
        self.chat = chat

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Trajectory:
        ids = self.chat.prompt_ids(data["messages"])
        response = await engine.agenerate(ModelRequest(ids, self.gconfig))
        return Trajectory.from_response(
            response, sum(token % 2 == 0 for token in response.output_tokens) / 8
        )


async def own_loop(path: Path) -> list[dict[str, float]]:
    async with open_run(path) as run:
        return [await run.update(batch) async for batch in run.rollouts(Short)]


def test_the_loop_of_ones_own_runs_twice_in_one_process(tmp_path: Path, model: Path) -> None:
    values = settings(tmp_path, model, workflow=None)
    path = write_settings(tmp_path, values)
    for name in ("trial", "trial-2"):
        metrics = asyncio.run(own_loop(path))
        assert [step["publish/version"] for step in metrics] == [1, 2]
        assert all(0 < step["rollout/reward"] < 1 for step in metrics)
        folder = tmp_path / "runs" / "loop" / name
        assert len(list(Records(folder).episodes())) >= 2 * 4 * 4


class Constant(Short):
    """Earns the same whatever it says."""

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Trajectory:
        return replace(await super().arun_episode(engine, data), reward=1.0)


def test_batches_without_signal_are_warned_of_and_change_nothing(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = settings(tmp_path, model, workflow=None, total_train_steps=6)
    path = write_settings(tmp_path, values)

    async def train() -> list[int]:
        async with open_run(path) as run:
            async for batch in run.rollouts(Constant):
                assert (await run.update(batch))["update/applied_steps"] == 0
            return [run.step, run.version]

    assert asyncio.run(train()) == [6, 0]
    [warning] = [r.getMessage() for r in caplog.records if "in a row" in r.getMessage()]
    assert warning.startswith("5 batches in a row had no group with different rewards")
