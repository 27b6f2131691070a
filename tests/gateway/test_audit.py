"""The audit of captured turns: what is exact, what differs, and what nobody can tell."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_agent.config.inference import GatewayConfig
from areal_agent.errors import CaptureError, ServerError
from areal_agent.rollout.audit import CaptureAudit
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import GenerationHyperparameters, ModelRequest, Scores


class Scoring(FakeEngine):
    """Scores as a test says; until `free` is set, scores wait."""

    def __init__(self, script: Any = None, *, scored: Any = -0.5) -> None:
        super().__init__(script)
        self.scored = scored
        self.free = asyncio.Event()
        self.free.set()
        self.asked: list[tuple[list[int], float]] = []

    async def score(self, rows: Sequence[Sequence[int]], *, temperature: float = 1.0) -> Scores:
        self.asked += [(list(row), temperature) for row in rows]
        await self.free.wait()
        if isinstance(self.scored, BaseException):
            raise self.scored
        return Scores([[0.0, *[self.scored] * (len(row) - 1)] for row in rows], self.version)


def ask(seed: int = 1, **gconfig: Any) -> ModelRequest:
    return ModelRequest([1, 2], GenerationHyperparameters(seed=seed, **gconfig), rid=f"r{seed}")


def counts(audit: CaptureAudit) -> tuple[float, ...]:
    found = audit.take_metrics()
    return tuple(found[f"capture/{name}"] for name in ("exact", "mismatch", "unverifiable"))


@asynccontextmanager
async def auditing(
    engine: FakeEngine, path: Path, *, seconds: float = 20.0, **config: Any
) -> AsyncGenerator[CaptureAudit]:
    settings = GatewayConfig(**{"audit_fraction": 1.0, **config})
    async with (
        asyncio.timeout(20),
        CaptureAudit(engine, settings, path / "differs.jsonl", score_seconds=seconds) as audit,
    ):
        yield audit


async def test_what_comes_out_the_same_is_exact(tmp_path: Path) -> None:
    engine = Scoring()
    async with auditing(engine, tmp_path) as audit:
        for seed, temperature in ((1, 0.6), (2, 1.0)):
            await audit.watched.agenerate(ask(seed, temperature=temperature))
        await audit.watched.agenerate(ask(3, greedy=True))
        await audit.settle()
        assert counts(audit) == (3, 0, 0)
        assert counts(audit) == (0, 0, 0)
    ids = [1, 2, 7, 8, 9]
    assert engine.asked == [(ids, 0.6), (ids, 1.0), (ids, 1.0)]
    assert list(tmp_path.iterdir()) == []


async def test_the_reply_does_not_wait(tmp_path: Path) -> None:
    engine = Scoring()
    engine.free.clear()
    async with auditing(engine, tmp_path) as audit:
        await audit.watched.agenerate(ask())
        await audit.settle(0.01)  # does not wait for long either
        assert counts(audit) == (0, 0, 0)
        engine.free.set()
        await audit.settle()
        assert counts(audit) == (1, 0, 0)


async def test_a_recorded_logprob_that_is_not_the_servers_ends_the_run(tmp_path: Path) -> None:
    engine = Scoring(lambda request: Reply(logprobs=[-0.5, -0.9, -0.6]))

    async def run() -> None:
        async with auditing(engine, tmp_path) as audit:
            request = ask(temperature=0.6)
            named = replace(request, metadata={"episode_id": "0:4:1", "turn": 2})
            await audit.watched.agenerate(named)
            await asyncio.sleep(10)  # what the run does is cancelled

    with pytest.raises(CaptureError, match="1 captured turns") as error:
        await run()
    path = tmp_path / "differs.jsonl"
    assert str(path) in str(error.value)
    assert error.value.path == str(path)
    evidence = json.loads(path.read_text(encoding="utf-8"))
    worst = evidence.pop("worst")
    assert evidence == {
        "episode_id": "0:4:1",
        "turn": 2,
        "request_id": "r1",
        "temperature": 0.6,
        "version": 0,
        "prompt_ids": [1, 2],
        "output_ids": [7, 8, 9],
        "versions": [0, 0, 0],
        "stored_logprobs": [-0.5, -0.9, -0.6],
        "scored_logprobs": [-0.5, -0.5, -0.5],
    }
    assert [(one["position"], one["token"]) for one in worst] == [(1, 8), (2, 9), (0, 7)]
    assert worst[0]["difference"] == pytest.approx(0.4)


async def test_what_is_not_a_number_differs(tmp_path: Path) -> None:
    engine = Scoring(lambda request: Reply(logprobs=[-0.5, float("nan"), -0.6]))
    async with auditing(engine, tmp_path, audit_limit=1) as audit:
        await audit.watched.agenerate(ask())
        await audit.settle()
        assert counts(audit) == (0, 1, 0)
    evidence = json.loads((tmp_path / "differs.jsonl").read_text(encoding="utf-8"))
    assert [one["position"] for one in evidence["worst"]] == [1, 2, 0]


@pytest.mark.parametrize(("tolerance", "expected"), [(0.3, (0, 2, 0)), (0.5, (2, 0, 0))])
async def test_tolerance_and_limit(
    tmp_path: Path, tolerance: float, expected: tuple[int, ...]
) -> None:
    async with auditing(
        Scoring(scored=-0.9), tmp_path, audit_tolerance=tolerance, audit_limit=2
    ) as audit:
        for seed in (1, 2):
            await audit.watched.agenerate(ask(seed))
        await audit.settle()
        assert counts(audit) == expected


async def test_a_turn_that_spans_versions_is_not_scored(tmp_path: Path) -> None:
    engine = Scoring(lambda request: Reply(ids=[3] * 8))
    async with auditing(engine, tmp_path) as audit, asyncio.TaskGroup() as group:
        group.create_task(audit.watched.agenerate(ask()))
        while not engine.running:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine.bump()
    assert counts(audit) == (0, 0, 1)
    assert engine.asked == []


async def test_new_weights_before_the_score_leave_it_unknown(tmp_path: Path) -> None:
    """Also when they come while it is being scored: the answer says what scored it."""
    engine = Scoring(scored=-0.9)
    engine.free.clear()
    async with auditing(engine, tmp_path) as audit:
        for seed in (1, 2):
            await audit.watched.agenerate(ask(seed))
        while not engine.asked:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        engine.bump()
        engine.free.set()
        await audit.settle()
        assert counts(audit) == (0, 0, 2)
    assert len(engine.asked) == 1


@pytest.mark.parametrize("failure", [ServerError("answered 500"), None])
async def test_a_score_that_fails_or_hangs_leaves_it_unknown(
    tmp_path: Path, failure: Exception | None
) -> None:
    engine = Scoring(scored=failure)
    if failure is None:
        engine.free.clear()
    async with auditing(engine, tmp_path, seconds=0.05) as audit:
        await audit.watched.agenerate(ask())
        await audit.settle()
        assert counts(audit) == (0, 0, 1)


async def test_more_than_can_wait_is_unknown(tmp_path: Path) -> None:
    engine = Scoring()
    engine.free.clear()
    async with auditing(engine, tmp_path) as audit:
        response = await engine.agenerate(ask())
        for seed in range(300):
            audit.hear(ask(seed), response)
        assert counts(audit) == (0, 0, 300 - 256)
        engine.free.set()
        await audit.settle()
        assert counts(audit) == (256, 0, 0)


async def test_the_same_turns_are_chosen_in_each_run(tmp_path: Path) -> None:
    chosen: dict[float, list[set[int]]] = {}
    for fraction in (0.1, 0.1, 0.5):
        engine = FakeEngine()
        audit = CaptureAudit(engine, GatewayConfig(audit_fraction=fraction), tmp_path)
        found = {seed for seed in range(2000) if audit.chooses(ask(seed))}
        chosen.setdefault(fraction, []).append(found)
    first, again = chosen[0.1]
    assert first == again
    assert 150 < len(first) < 250
    assert first < chosen[0.5][0]


async def test_without_a_share_nothing_is_in_the_way(tmp_path: Path) -> None:
    engine = Scoring()
    async with auditing(engine, tmp_path, audit_fraction=0.0) as audit:
        assert audit.watched is engine
        assert audit.take_metrics() == {}
