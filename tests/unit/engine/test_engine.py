"""The engine as its users see it: exact logprobs and versions, whatever happens midway."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB, HeldModel, byte_tokenizer, load, make_model, reference_logprobs

from areal_agent.errors import EngineFault, WeightUpdateError
from areal_agent.inference.engine.engine import Engine
from areal_agent.inference.engine.fallback import FallbackModel, load_reference
from areal_agent.inference.engine.request import GenerateRequest, Generation, SamplingParams

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("old"), seed=0)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture
def model(old: Path) -> HeldModel:
    return load(old)


@pytest.fixture
async def engine(model: HeldModel) -> AsyncGenerator[Engine]:
    async with make_engine(model) as engine:
        yield engine


def make_engine(model: Any, **fields: Any) -> Engine:
    return Engine(
        model,
        decode=lambda ids: TOKENIZER.decode(ids, skip_special_tokens=True),
        **{"max_model_len": 256, **fields},
    )


def prompt(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed + n).integers(4, VOCAB, size=n).tolist()


def ask(ids: list[int], key: str | None = None, id: str = "r", **fields: Any) -> GenerateRequest:
    return GenerateRequest(id, ids, SamplingParams(**fields), cache_key=key)


async def result(engine: Engine, request: GenerateRequest) -> Generation:
    async with asyncio.timeout(30):
        return await engine.submit(request).result()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_logprobs_are_exact(engine: Engine, old: Path, temperature: float) -> None:
    requests = [
        ask(prompt(3 + 7 * i), max_tokens=10 + 9 * i, temperature=temperature, seed=i)
        for i in range(8)
    ]
    tickets = [engine.submit(request) for request in requests]
    for request, ticket in zip(requests, tickets, strict=True):
        found = await ticket.result()
        assert len(found.token_ids) == request.params.max_tokens
        row = request.prompt + found.token_ids
        expected = reference_logprobs(old, row, temperature or 1.0)[len(request.prompt) :]
        assert found.logprobs == pytest.approx(expected, abs=1e-4)
        assert found.versions == [0] * len(found.token_ids)
        assert found.finish_reason == "length"


async def test_greedy_takes_the_likeliest(engine: Engine, old: Path) -> None:
    found = await result(engine, ask(prompt(9), max_tokens=12, temperature=0.0))
    reference = load_reference(old, dtype=torch.float32, device=torch.device("cpu"))
    ids = torch.tensor([prompt(9)])
    for token in found.token_ids:
        assert token == int(reference(input_ids=ids).logits[0, -1].argmax())
        ids = torch.cat((ids, torch.tensor([[token]])), 1)


async def test_the_same_seed_gives_the_same_reply_in_any_company(model: HeldModel) -> None:
    request = ask(prompt(20), max_tokens=25, seed=5)
    async with make_engine(model) as engine:
        alone = await result(engine, request)
        others = [engine.submit(ask(prompt(4 + i), max_tokens=9 + i, seed=i)) for i in range(9)]
        crowded = await result(engine, request)
        other_seed = await result(engine, ask(prompt(20), max_tokens=25, seed=6))
        for ticket in others:
            await ticket.result()
    assert alone.token_ids == crowded.token_ids
    assert alone.token_ids != other_seed.token_ids


async def test_a_resumed_reply_goes_on_as_if_never_interrupted(engine: Engine) -> None:
    whole = await result(engine, ask(prompt(20), max_tokens=30, seed=5))
    rest = await result(engine, ask(prompt(20) + whole.token_ids[:11], max_tokens=19, seed=5))
    assert whole.token_ids[11:] == rest.token_ids


@pytest.mark.parametrize("mode", ["keep", "recompute"])
async def test_an_update_midway_changes_versions_exactly_there(
    model: HeldModel, old: Path, new: Path, mode: Any
) -> None:
    model.hold_at = 10
    async with make_engine(model, weight_update=mode) as engine:
        ids = [prompt(11), prompt(30)]
        tickets = [engine.submit(ask(p, max_tokens=40, seed=3)) for p in ids]
        await model.pause_here(engine, "keep")
        assert await engine.update_weights(new, 7) == 7
        await engine.resume()
        for p, ticket in zip(ids, tickets, strict=True):
            found = await ticket.result()
            assert found.versions == [0] * 11 + [7] * 29  # one by prefill, ten by decoding
            row = p + found.token_ids
            before = reference_logprobs(old, row)[len(p) : len(p) + 11]
            assert found.logprobs[:11] == pytest.approx(before, abs=1e-4)
            after = reference_logprobs(new, row)[len(p) + 11 :]
            mixed = mixed_logprobs(old, new, row, len(p) + 10)[len(p) + 11 :]
            expected, other = (after, mixed) if mode == "recompute" else (mixed, after)
            assert found.logprobs[11:] == pytest.approx(expected, abs=1e-4)
            assert np.abs(np.subtract(found.logprobs[11:], other)).max() > 1e-2


def mixed_logprobs(old: Path, new: Path, row: list[int], cut: int) -> list[float]:
    """Logprobs when the first `cut` tokens were fed to the old weights, the rest to the new."""
    cpu = torch.device("cpu")
    with torch.inference_mode():
        first = load_reference(old, dtype=torch.float32, device=cpu)(
            input_ids=torch.tensor([row[:cut]]), use_cache=True
        )
        cache = getattr(first, "cache", None) or first.past_key_values
        model = FallbackModel.from_folder(new, dtype=torch.float32, device=cpu)
        model._grow(0)
        model._slots[0].cache = cache
        logits = [model._forward(model._slots[0], [token]) for token in row[cut:]]
    picked = torch.log_softmax(torch.stack(logits)[:-1], -1)
    following = torch.tensor(row[cut + 1 :])[:, None]
    return [0.0] * (cut + 1) + picked.gather(1, following)[:, 0].tolist()


async def test_an_update_that_aborts_hands_back_what_there_is(model: HeldModel, new: Path) -> None:
    model.hold_at = 10
    async with make_engine(model, max_running=1) as engine:
        ticket = engine.submit(ask(prompt(11), max_tokens=40))
        queued = engine.submit(ask(prompt(5), max_tokens=3))
        await model.pause_here(engine, "keep")
        await engine.update_weights(new, 1, "abort")
        found = await ticket.result()
        assert (len(found.token_ids), found.finish_reason) == (11, "abort")
        await engine.resume()
        assert (await queued.result()).versions == [1, 1, 1]


async def test_pause_with_abort_and_queue(model: HeldModel) -> None:
    model.hold_at = 4
    async with make_engine(model) as engine:
        ticket = engine.submit(ask(prompt(11), max_tokens=40))
        await model.pause_here(engine, "abort")
        assert (await ticket.result()).finish_reason == "abort"
        waiting = engine.submit(ask(prompt(5), max_tokens=2))
        await engine.score([[1, 2]], 1.0)  # commands are obeyed meanwhile
        assert engine.stats()["waiting"] == 1
        assert engine.paused
        await engine.resume()
        assert (await waiting.result()).finish_reason == "length"


def without(folder: Path, copy: Path, change: Any) -> Path:
    """Copy a model folder with its tensors changed."""
    shutil.copytree(folder, copy)
    state = load_file(copy / "model.safetensors")
    change(state)
    save_file(state, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


NAME = "model.layers.1.mlp.up_proj.weight"
BROKEN: dict[str, tuple[Any, str]] = {
    "missing": (lambda s: s.pop(NAME), f"missing {NAME}"),
    "unknown": (lambda s: s.update(x=torch.ones(1)), "not expected x"),
    "shape": (lambda s: s.update({NAME: torch.ones(2, 2)}), r"of shape \(48, 32\), got \(2, 2\)"),
    "nan": (lambda s: s[NAME].view(-1)[5:6].fill_(float("nan")), "finite numbers in"),
    "infinity": (lambda s: s[NAME].view(-1)[5:6].fill_(float("inf")), "finite numbers in"),
    "overflow": (lambda s: s["model.norm.weight"].fill_(3e38), "logits that are not finite"),
    "other head": (lambda s: s.update({"lm_head.weight": torch.ones(VOCAB, 32)}), "ties its head"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_failed_update_leaves_the_old_weights_serving(
    engine: Engine, old: Path, new: Path, tmp_path: Path, name: str
) -> None:
    change, message = BROKEN[name]
    before = await result(engine, ask(prompt(9), max_tokens=8, seed=1))
    with pytest.raises(WeightUpdateError, match=message):
        await engine.update_weights(without(new, tmp_path / "broken", change), 4)
    async with asyncio.timeout(5):
        after = await result(engine, ask(prompt(9), max_tokens=8, seed=1))
    assert (after.token_ids, after.versions) == (before.token_ids, [0] * 8)
    assert engine.version == 0


async def test_folders_that_hold_no_weights(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(WeightUpdateError, match="with none"):
        await engine.update_weights(tmp_path / "absent", 1)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(WeightUpdateError, match="could not read"):
        await engine.update_weights(tmp_path, 1)


async def test_weights_of_another_config_are_refused(engine: Engine, tmp_path: Path) -> None:
    make_model(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    with pytest.raises(WeightUpdateError, match="not that of the model that is served"):
        await engine.update_weights(tmp_path, 1)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightUpdateError, match=r"cannot read config\.json"):
        await engine.update_weights(tmp_path, 1)
    assert engine.version == 0


async def test_versions_never_go_back(engine: Engine, old: Path) -> None:
    assert await engine.update_weights(old, 3) == 3
    assert await engine.update_weights(old, 3) == 3
    with pytest.raises(WeightUpdateError, match="expected version 3 or later, got 2"):
        await engine.update_weights(old, 2)
    assert engine.version == 3


async def test_after_an_update_nothing_old_is_reused(model: HeldModel, new: Path) -> None:
    request = ask(prompt(40), key="c", max_tokens=10, seed=2)
    async with make_engine(model) as engine:
        await result(engine, request)
        await engine.update_weights(new, 1)
        updated = await result(engine, request)
    async with make_engine(load(new)) as engine:
        fresh = await result(engine, request)
    assert updated.cached_tokens == 0
    assert updated.token_ids == fresh.token_ids
    assert updated.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


async def test_a_reused_prefix_changes_nothing(engine: Engine, old: Path) -> None:
    first = await result(engine, ask(prompt(30), key="c", max_tokens=10, seed=2))
    turn = prompt(30) + first.token_ids + prompt(6)
    second = await result(engine, ask(turn, key="c", max_tokens=10, seed=2))
    assert second.cached_tokens == 39
    expected = reference_logprobs(old, turn + second.token_ids)[len(turn) :]
    assert second.logprobs == pytest.approx(expected, abs=1e-4)
    assert engine.stats()["prefix_hit_tokens"] == 39


async def test_equal_prompts_share_the_work_not_the_reply(engine: Engine, old: Path) -> None:
    tickets = [engine.submit(ask(prompt(30), max_tokens=12, seed=i)) for i in range(6)]
    found = [await ticket.result() for ticket in tickets]
    assert len({tuple(f.token_ids) for f in found}) == 6
    for f in found:
        expected = reference_logprobs(old, prompt(30) + f.token_ids)[30:]
        assert f.logprobs == pytest.approx(expected, abs=1e-4)
    assert sorted(f.cached_tokens for f in found) == [0, 29, 29, 29, 29, 29]


async def test_cancelling_frees_the_slot(model: HeldModel) -> None:
    model.hold_at = 3
    async with make_engine(model, max_running=1) as engine:
        long = engine.submit(ask(prompt(5), max_tokens=200))
        queued = engine.submit(ask(prompt(6), max_tokens=200))
        short = engine.submit(ask(prompt(7), max_tokens=2))
        await model.wait_held()
        long.cancel()
        queued.cancel()
        model.go_on.set()
        assert len((await short.result()).token_ids) == 2
        assert len((await long.result()).token_ids) < 200
        assert (await queued.result()).token_ids == []
        assert model.steps < 10
        assert engine.stats()["running"] == engine.stats()["waiting"] == 0


async def test_abort_by_id(model: HeldModel) -> None:
    model.hold_at = 3
    async with make_engine(model) as engine:
        tickets = [engine.submit(ask(prompt(5 + i), id=f"r{i}", max_tokens=30)) for i in range(3)]
        await model.pause_here(engine, "keep")
        assert await engine.abort(["r1", "unknown"]) == 1
        assert (await tickets[1].result()).finish_reason == "abort"
        await engine.resume()
        assert [len((await tickets[i].result()).token_ids) for i in (0, 2)] == [30, 30]


async def test_stop_ids_and_stop_strings(engine: Engine) -> None:
    free = await result(engine, ask(prompt(5), max_tokens=40, seed=9))
    end = free.token_ids[20]
    first = free.token_ids.index(end)
    by_id = await result(engine, ask(prompt(5), max_tokens=40, seed=9, stop_ids=frozenset({end})))
    assert by_id.token_ids == free.token_ids[: first + 1]
    assert by_id.finish_reason == "stop"
    text = "".join(TOKENIZER.decode(free.token_ids[:20], skip_special_tokens=True))
    stop = next(text[i : i + 2] for i in range(5, len(text) - 2) if "\ufffd" not in text[i : i + 2])
    by_text = await result(engine, ask(prompt(5), max_tokens=40, seed=9, stop=(stop,)))
    assert by_text.finish_reason == "stop"
    assert by_text.stop_string == stop
    assert by_text.token_ids == free.token_ids[: len(by_text.token_ids)]
    assert by_text.text == text[: text.index(stop)]


async def test_the_models_own_limit_ends_a_reply(model: HeldModel) -> None:
    async with make_engine(model, max_model_len=24) as engine:
        found = await result(engine, ask(prompt(20), max_tokens=100))
    assert (len(found.token_ids), found.finish_reason) == (4, "length")


async def test_parts_come_one_by_one_and_add_up(engine: Engine) -> None:
    ticket = engine.submit(ask(prompt(5), max_tokens=15, seed=1), stream=True)
    parts = [part async for part in ticket.parts()]
    found = await ticket.result()
    assert len(parts) == 15
    assert [i for ids, _, _ in parts for i in ids] == found.token_ids
    assert [p for _, logprobs, _ in parts for p in logprobs] == found.logprobs


async def test_a_fault_fails_everyone_and_stays(
    model: HeldModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.hold_at = 3
    model.error = RuntimeError("out of memory")
    async with make_engine(model, max_running=1) as engine:
        running = engine.submit(ask(prompt(5), max_tokens=30))
        waiting = engine.submit(ask(prompt(6), max_tokens=30), stream=True)
        await model.wait_held()
        async with asyncio.TaskGroup() as group:
            scoring = group.create_task(outcome(engine.score([[1, 2]], 1.0)))
            await asyncio.sleep(0)
            model.go_on.set()
        for ticket in (running, waiting):
            with pytest.raises(EngineFault, match="out of memory"):
                await ticket.result()
        assert [part async for part in waiting.parts()] == []
        assert "out of memory" in str(scoring.result())
        assert isinstance(engine.fault, RuntimeError)
        with pytest.raises(EngineFault, match="out of memory"):
            engine.submit(ask(prompt(5)))
        running.cancel()
    assert "the engine has broken" in caplog.text


async def outcome(awaitable: Any) -> BaseException | None:
    try:
        await awaitable
    except EngineFault as error:
        return error
    return None


async def test_leaving_fails_what_is_in_flight(model: HeldModel) -> None:
    model.hold_at = 3
    async with make_engine(model) as engine:
        ticket = engine.submit(ask(prompt(5), max_tokens=200))
        await model.wait_held()
        model.go_on.set()
    with pytest.raises(EngineFault, match="stopped"):
        await ticket.result()
    with pytest.raises(EngineFault, match="stopped"):
        engine.submit(ask(prompt(5)))


async def test_an_engine_that_was_not_entered_refuses(model: HeldModel) -> None:
    with pytest.raises(EngineFault, match="not running"):
        make_engine(model).submit(ask(prompt(5)))


async def test_score_tells_the_version(engine: Engine, new: Path) -> None:
    rows = [prompt(12), prompt(3)]
    await engine.update_weights(new, 5)
    logprobs, version = await engine.score(rows, 0.6)
    assert version == 5
    for row, found in zip(rows, logprobs, strict=True):
        assert found == pytest.approx(reference_logprobs(new, row, 0.6), abs=1e-4)


async def test_the_slower_path_has_the_same_manners(old: Path, new: Path) -> None:
    cpu = torch.device("cpu")
    slow = FallbackModel.from_folder(old, dtype=torch.float32, device=cpu)
    requests = [ask(prompt(4 + 3 * i), max_tokens=6 + 2 * i, seed=i) for i in range(5)]
    async with make_engine(load(old)) as engine:
        fast = [await result(engine, request) for request in requests]
    async with make_engine(slow, weight_update="recompute") as engine:
        tickets = [engine.submit(request) for request in requests]
        found = [await ticket.result() for ticket in tickets]
        await engine.update_weights(new, 1)
        updated = await result(engine, ask(prompt(9), max_tokens=5))
    assert [f.token_ids for f in found] == [f.token_ids for f in fast]
    expected = reference_logprobs(new, prompt(9) + updated.token_ids)[9:]
    assert updated.logprobs == pytest.approx(expected, abs=1e-4)


async def test_busy_time_is_measured(engine: Engine) -> None:
    await result(engine, ask(prompt(5), max_tokens=20))
    stats, spans = engine.stats(), engine.busy_spans()
    assert stats["generated_tokens"] == 20
    assert stats["prompt_tokens"] == 5
    assert 0 < stats["busy_seconds"] <= sum(b - a for a, b in spans) + 0.01
