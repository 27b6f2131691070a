"""Audit and first-step check on the real stack: sound runs go on, broken ones are named."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_support import settings, write_settings
from openai import AsyncOpenAI

import areal_agent.trainer.servers
from areal_agent import GenerationHyperparameters, ModelRequest, ModelResponse, open_run
from areal_agent.config.inference import GatewayConfig
from areal_agent.errors import CaptureError, FirstStepError
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.rollout.audit import CaptureAudit
from areal_agent.trainer.run import Run
from areal_agent.types import TokenSink

pytestmark = pytest.mark.timeout(300)

SHIFT = 0.05


class Forks:
    """Asks, then goes on twice from the same reply, once as a stream."""

    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        async def ask(messages: list[Any], *, stream: bool = False) -> str:
            made = await client.chat.completions.create(
                model="policy", messages=messages, stream=stream
            )
            if not stream:
                return made.choices[0].message.content or ""
            return "".join([c.choices[0].delta.content or "" async for c in made if c.choices])

        start = list(data["messages"])
        first = await ask(start)
        start.append({"role": "assistant", "content": first})
        ends = [
            await ask([*start, {"role": "user", "content": text}], stream=text == "b")
            for text in ("a", "b")
        ]
        return float(len(first + "".join(ends)) % 2)


class Shifted(HttpInferenceEngine):
    """Reports another logprob for the last token of a reply than the servers gave."""

    async def agenerate(
        self, request: ModelRequest, *, on_tokens: TokenSink | None = None
    ) -> ModelResponse:
        response = await super().agenerate(request, on_tokens=on_tokens)
        *before, last = response.output_logprobs
        return replace(response, output_logprobs=[*before, last - SHIFT])


def settings_file(root: Path, model: Path, **changes: Any) -> Path:
    gconfig = {"temperature": 0.6, "max_tokens": 128}
    return write_settings(root, settings(root, model, gconfig=gconfig, workflow=None, **changes))


async def batches(run: Run) -> AsyncGenerator[dict[str, float]]:
    async for batch in run.rollouts(Forks()):
        yield await run.update(batch)


async def test_a_sound_run_is_exact(tmp_path: Path, model: Path) -> None:
    """Turns, forks and streams at temperature 0.6, before and after updates."""
    path = settings_file(
        tmp_path,
        model,
        gateway={"audit_fraction": 1.0},
        actor={"check_first_step": True},
        total_train_steps=3,
    )
    async with open_run(path) as run:
        steps = [metrics async for metrics in batches(run)]
        assert run.version == 3
        assert not run.folder.mismatches.exists()
    assert steps[0]["capture/exact"] >= 4 * 4 * 3
    assert all(step["capture/exact"] > 0 for step in steps)
    assert [step["capture/mismatch"] for step in steps] == [0, 0, 0]
    assert all(step["capture/abs_max"] < 1e-4 for step in steps)
    assert steps[0]["first_step/logprob_abs_max"] < 1e-4
    assert steps[0]["first_step/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert steps[0]["first_step/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert steps[0]["first_step/approx_kl"] == pytest.approx(0.0, abs=1e-8)
    assert "first_step/ratio" not in steps[1]


async def test_a_turn_after_an_update_attends_to_nothing_older(tmp_path: Path, model: Path) -> None:
    """Servers forget what they cached, so the turn can be judged although its parent is older."""
    gconfig = GenerationHyperparameters(max_new_tokens=24, max_tokens=128, ignore_eos=True)
    everything = GatewayConfig(audit_fraction=1.0)
    async with (
        open_run(settings_file(tmp_path, model)) as run,
        CaptureAudit(run.engine, everything, tmp_path / "differs.jsonl") as audit,
    ):
        rollouts = run.rollouts(Forks())
        batch = await anext(rollouts)
        first = await audit.watched.agenerate(ModelRequest([40, 41, 42, 43], gconfig, rid="one"))
        await audit.settle()
        assert audit.take_metrics()["capture/exact"] == 1
        await run.update(batch)
        ids = [*first.input_tokens, *first.output_tokens, 44, 45]
        later = await audit.watched.agenerate(ModelRequest(ids, gconfig, rid="one"))
        assert (set(first.output_versions), set(later.output_versions)) == ({0}, {1})
        await audit.settle()
        found = audit.take_metrics()
        await rollouts.aclose()
    assert (found["capture/exact"], found["capture/mismatch"]) == (1, 0)


async def test_a_server_that_reports_other_logprobs_ends_the_run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(areal_agent.trainer.servers, "HttpInferenceEngine", Shifted)
    path = settings_file(tmp_path, model, gateway={"audit_fraction": 0.25})

    async def train() -> None:
        async with open_run(path) as run:
            async for _ in batches(run):
                pass

    with pytest.raises(CaptureError, match=r"gateway\.audit_limit") as error:
        await train()
    evidence = tmp_path / "runs" / "loop" / "trial" / "capture_mismatches.jsonl"
    assert str(evidence) in str(error.value)
    turn = json.loads(evidence.read_text(encoding="utf-8").splitlines()[0])
    assert turn["temperature"] == 0.6
    assert turn["versions"] == [0] * len(turn["output_ids"])
    worst = turn["worst"][0]
    assert worst["position"] == len(turn["output_ids"]) - 1
    assert worst["difference"] == pytest.approx(SHIFT, abs=1e-4)
    assert turn["episode_id"].count(":") == 2


async def test_a_first_step_that_does_not_fit_ends_the_run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(areal_agent.trainer.servers, "HttpInferenceEngine", Shifted)
    path = settings_file(
        tmp_path, model, gateway={"audit_fraction": 0.0}, actor={"check_first_step": True}
    )

    async def train() -> None:
        async with open_run(path) as run:
            async for _ in batches(run):
                pass

    with pytest.raises(FirstStepError, match=r"differ from the captured ones by 0\.05") as error:
        await train()
    evidence = tmp_path / "runs" / "loop" / "trial" / "first_step.json"
    assert error.value.path == str(evidence)
    worst = json.loads(evidence.read_text(encoding="utf-8"))["worst"]
    assert worst[0]["captured"] - worst[0]["trainer"] == pytest.approx(-SHIFT, abs=1e-3)
    assert not any((tmp_path / "runs" / "loop" / "trial" / "weights").iterdir())
