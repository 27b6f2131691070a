"""Trainer and server on the real stack: the same logprobs for the same weights, and whole updates.

S18 and S21 from end to end. One run goes through all of it; the tests look at what it saw.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from loop_support import settings, write_settings
from safetensors.torch import load_file, save_file

from areal_agent import GenerationHyperparameters, ModelRequest, ModelResponse, Trajectory, open_run
from areal_agent.aio import collect
from areal_agent.config.inference import ServerConfig
from areal_agent.errors import WeightUpdateError
from areal_agent.inference.base import InferenceEngine
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.launch.local import launch_embedded_servers
from areal_agent.net.clients import HttpClients
from areal_agent.trainer.run import Run
from areal_agent.trajectory import RolloutBatch, TrajectoryGroup, collate

pytestmark = pytest.mark.timeout(300)

TEMPERATURES = (1.0, 0.6)
TRAINING_TEMPERATURE = 0.6
CLOSE = 1e-4
KEY = "key of a fresh server"
GREEDY = GenerationHyperparameters(greedy=True, max_new_tokens=12, max_tokens=64, ignore_eos=True)
PROMPTS = ([40, 41, 42, 43, 44, 45], [50, 20, 60, 21], [70, 71, 72])


@dataclass
class Refusal:
    """What became of an update that cannot be loaded."""

    message: str
    seconds: float
    """From asking for the update to a reply to the next request."""
    replies: list[ModelResponse]
    running: ModelResponse
    """A request that was in flight."""


@dataclass
class Story:
    """What one run saw."""

    before: list[ModelResponse] = field(default_factory=list)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    after: list[ModelResponse] = field(default_factory=list)
    fresh: list[ModelResponse] = field(default_factory=list)
    """Of a server that started with the weights of `after`."""
    scores: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    scored: dict[tuple[int, float], float] = field(default_factory=dict)
    """Largest difference of scored logprobs, by version and temperature."""
    sampled: dict[tuple[int, float], float] = field(default_factory=dict)
    """The same of logprobs that came with sampled tokens."""
    mixed: dict[int, float] = field(default_factory=dict)
    """The same of a batch with many temperatures, by version."""
    mixed_update: dict[str, float] = field(default_factory=dict)
    """Metrics of an update on such a batch, fresh from the server."""
    probe: float = 1.0


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Story:
    root = tmp_path_factory.mktemp("first-step")
    values = settings(
        root,
        model,
        gconfig={"temperature": TRAINING_TEMPERATURE},
        rollout={"max_head_offpolicyness": 0},
    )
    return asyncio.run(tell(write_settings(root, values), model, root))


async def tell(path: Path, model: Path, root: Path) -> Story:
    story = Story()
    async with open_run(path) as run:
        rollouts = run.rollouts()
        batch = await anext(rollouts)
        await compare(run, batch, story, version=0)
        story.before = await greedy(run.engine)
        for name, folder in broken_folders(model, root).items():
            story.refusals[name] = await refused(run.engine, folder)
        story.probe = (await run.update(batch))["publish/probe_abs_max"]
        story.after = await greedy(run.engine)
        await compare(run, await anext(rollouts), story, version=1)
        rows = [reply.input_tokens + reply.output_tokens for reply in story.after]
        story.scores["after"] = (await run.engine.score(rows)).logprobs
        async with AsyncExitStack() as stack:
            fresh = await fresh_server(run.folder.weights / "v000001", root, stack)
            story.fresh = await greedy(fresh)
            story.scores["fresh"] = (await fresh.score(rows)).logprobs
        story.mixed_update = await run.update(await mixed(run))
        await rollouts.aclose()
    return story


async def compare(run: Run, batch: RolloutBatch, story: Story, *, version: int) -> None:
    """Compare the server with the trainer, on the batch and on a reply at each temperature."""
    assert set(batch.versions[batch.loss_mask].tolist()) == {version}
    story.sampled[version, TRAINING_TEMPERATURE] = await sampling_difference(run, batch)
    for temperature in TEMPERATURES:
        at = replace(batch, temperatures=torch.full_like(batch.logprobs, temperature))
        expected = await run.backend.logprobs(at)
        lengths = at.attention_mask.sum(1).tolist()
        rows = [ids[:n] for ids, n in zip(at.input_ids.tolist(), lengths, strict=True)]
        got = torch.zeros_like(expected)
        scores = await run.engine.score(rows, temperature=temperature)
        assert scores.version == version
        for i, row in enumerate(scores.logprobs):
            got[i, : len(row)] = torch.tensor(row)
        gap = (got - expected).abs()[batch.loss_mask]
        story.scored[version, temperature] = float(gap.max())
    plain = run.config.gconfig.new(n_samples=1, temperature=1.0)
    replies = await collect(
        run.engine.agenerate(ModelRequest(list(prompt), plain)) for prompt in PROMPTS
    )
    groups = [TrajectoryGroup("p", [[Trajectory.from_response(reply, 0.0)] for reply in replies])]
    story.sampled[version, 1.0] = await sampling_difference(run, collate(groups))
    story.mixed[version] = await sampling_difference(run, await mixed(run))


async def mixed(run: Run) -> RolloutBatch:
    """A batch whose turns were each sampled at a temperature of its own, two a row."""
    engine, rows = run.engine, list[list[Trajectory]]()
    for i, prompt in enumerate(PROMPTS):
        turns: list[ModelResponse] = []
        ids = list(prompt)
        for temperature in (0.4 + 0.3 * i, 1.7 - 0.2 * i):
            gconfig = GenerationHyperparameters(
                temperature=temperature, max_new_tokens=12, max_tokens=64
            )
            turns.append(await engine.agenerate(ModelRequest(ids, gconfig)))
            ids = [*turns[-1].input_tokens, *turns[-1].output_tokens, 40]
        rows.append([Trajectory.from_turns(turns, float(i))])
    return collate([TrajectoryGroup("p", rows)], temperature=TRAINING_TEMPERATURE)


async def sampling_difference(run: Run, batch: RolloutBatch) -> float:
    expected = await run.backend.logprobs(batch)
    return float((batch.logprobs - expected).abs()[batch.loss_mask].max())


async def greedy(engine: InferenceEngine) -> list[ModelResponse]:
    """Replies to the prompts; each prompt is one conversation, so that its prefix is reused."""
    return await collect(
        engine.agenerate(ModelRequest(list(prompt), GREEDY, rid=f"conversation {i}"))
        for i, prompt in enumerate(PROMPTS)
    )


async def refused(engine: HttpInferenceEngine, folder: Path) -> Refusal:
    long = GREEDY.new(max_new_tokens=100, max_tokens=120)

    async def update() -> tuple[str, float]:
        started = time.monotonic()
        with pytest.raises(WeightUpdateError) as error:
            await engine.update_weights(folder, 1)
        return str(error.value), started

    async def run_on() -> ModelResponse:
        return await engine.agenerate(ModelRequest(list(PROMPTS[0]), long))

    (message, started), running = await collect((update(), run_on()))
    replies = await greedy(engine)
    return Refusal(message, time.monotonic() - started, replies, running)


def broken_folders(model: Path, root: Path) -> dict[str, Path]:
    """Folders that no server may take."""
    weights = load_file(model / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    wrong = {"shape": weights[name][:, :-1].contiguous(), "nan": weights[name].clone()}
    wrong["nan"][3, 5] = torch.nan
    folders = {"missing": root / "nothing"}
    for what, tensor in wrong.items():
        folders[what] = root / what
        folders[what].mkdir()
        save_file(weights | {name: tensor}, folders[what] / "model.safetensors")
    return folders


async def fresh_server(folder: Path, root: Path, stack: AsyncExitStack) -> HttpInferenceEngine:
    launch = launch_embedded_servers(
        ServerConfig(), folder, n_servers=1, log_dir=root / "fresh", control_key=KEY
    )
    servers = await stack.enter_async_context(launch)
    clients = await stack.enter_async_context(HttpClients())
    engine = HttpInferenceEngine(
        [endpoint.url for endpoint in servers.endpoints],
        clients=clients,
        model=folder.name,
        control_key=KEY,
    )
    return await stack.enter_async_context(engine)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("version", [0, 1])
def test_trainer_and_server_agree(story: Story, version: int, temperature: float) -> None:
    assert story.scored[version, temperature] < CLOSE
    assert story.sampled[version, temperature] < CLOSE


@pytest.mark.parametrize("version", [0, 1])
def test_they_agree_where_each_turn_has_its_own_temperature(story: Story, version: int) -> None:
    assert story.mixed[version] < CLOSE


def test_the_first_step_on_mixed_temperatures_has_ratio_1(story: Story) -> None:
    told = story.mixed_update
    assert told["update/applied_steps"] == 1
    assert told["update/loss_tokens"] > 30
    assert told["mismatch/current_abs_max"] < CLOSE
    assert told["update/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert told["publish/probe_abs_max"] < CLOSE


def test_the_probe_after_an_update_agrees(story: Story) -> None:
    assert story.probe < CLOSE


@pytest.mark.parametrize("what", ["missing", "shape", "nan"])
def test_a_failed_update_leaves_the_old_weights_serving(story: Story, what: str) -> None:
    refusal = story.refusals[what]
    assert refusal.seconds < 5.0
    assert {"missing": "nothing", "shape": "up_proj", "nan": "up_proj"}[what] in refusal.message
    for reply, before in zip(refusal.replies, story.before, strict=True):
        assert reply.output_tokens == before.output_tokens
        assert set(reply.output_versions) == {0}
    assert len(refusal.running.output_tokens) == 100
    assert set(refusal.running.output_versions) == {0}


def test_after_an_update_the_server_is_like_a_fresh_one(story: Story) -> None:
    for before, after, fresh in zip(story.before, story.after, story.fresh, strict=True):
        assert set(after.output_versions) == {1}
        assert after.output_tokens == fresh.output_tokens
        assert after.output_logprobs == pytest.approx(fresh.output_logprobs, abs=CLOSE)
        assert after.output_logprobs != pytest.approx(before.output_logprobs, abs=CLOSE)
    for served, fresh in zip(story.scores["after"], story.scores["fresh"], strict=True):
        assert served == pytest.approx(fresh, abs=CLOSE)
