"""Records of episodes: what a line holds, that it is whole, and that the run never waits for it."""

import asyncio
import gc
import json
import logging
import resource
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from record_support import GCONFIG, dialogue, ran, text
from rollout_support import Calls, OneCall

from areal_agent import workflow_context
from areal_agent.rollout.episode_record import episode_record, rows_of, whole_ids_of
from areal_agent.rollout.plain import any_json
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import Episode, GenerationHyperparameters, ModelRequest


async def recorded(workflow, engine=None, data=None, **facts):
    """The record of an episode after a trip through JSON."""
    episode = await ran(workflow, engine, data, **facts)
    return json.loads(any_json(episode_record(episode, text, split="train", step=2)))


async def test_a_record_holds_what_a_turn_added_and_its_rows_can_be_made_again():
    workflow, engine = dialogue([4, 5], [6, 7], [8])
    episode = await ran(workflow, engine, {"messages": [{"role": "user", "content": "?"}]})
    record = json.loads(any_json(episode_record(episode, text, split="train", step=2)))
    assert (record["schema"], record["kind"], record["id"]) == (2, "episode", "0:3:1")
    assert (record["outcome"], record["reward"], record["versions"]) == ("ok", 0.75, [0, 0])
    assert record["facts"] == {"seed": 5, "epoch": 0, "index": 3, "sample": 1}
    assert record["data"] == {"messages": [{"role": "user", "content": "?"}]}
    turns = record["turns"]
    assert [turn["parent"] for turn in turns] == [None, 0, 1]
    assert [turn["prompt_ids"] for turn in turns] == [[1, 2], [3], [3]]
    assert [turn["n_prompt"] for turn in turns] == [2, 5, 8]
    assert [turn["reply"] for turn in turns] == ["ef", "gh", "i"]
    assert [[m["role"] for m in turn["messages"]] for turn in turns] == [
        ["user"],
        ["assistant", "tool"],
        ["assistant", "tool"],
    ]
    assert turns[0]["logprobs"] == [-1 / 3, -1 / 3]
    assert [turn["at"] for turn in turns] == [[0, 1], [2, 3], [4, 5]]
    assert len({turn["sampling"]["seed"] for turn in turns}) == 3
    assert record["rows"] == [{"reward": 0.75, "truncated": False, "turn": 2, "turns": [0, 1, 2]}]
    [again], [row] = rows_of(record), episode.tape.rows
    assert whole_ids_of(record, 2) == again["input_ids"] == row.input_ids
    assert again["loss_mask"] == row.loss_mask
    assert again["logprobs"] == row.logprobs
    assert again["versions"] == row.versions


async def test_rows_that_are_not_made_of_turns_are_recorded_in_full():
    async def episode(engine, data):
        response = await engine.agenerate(ModelRequest([1, 2], GCONFIG))
        row = Trajectory.from_response(response, 1.0)
        ids = [*row.input_ids]
        changed = Trajectory(
            ids, [False, False, False, True, True], [-0.25] * 5, [-1, -1, -1, 0, 0], 0.5
        )
        return [row, changed]

    record = await recorded(Calls(episode))
    assert record["rows"][0]["turns"] == [0]
    assert "turn" not in record["rows"][1]
    again = rows_of(record)[1]
    assert again["input_ids"] == [1, 2, 7, 8, 9]
    assert again["loss_mask"] == [False, False, False, True, True]
    assert (again["logprobs"], again["reward"]) == ([-0.25] * 5, 0.5)
    assert record["turns"][0]["messages"] == "bc"


async def test_failures_calls_without_an_answer_and_tools_are_recorded():
    def broken(left):
        raise LookupError("no such page")

    async def episode(engine, data):
        with pytest.raises(LookupError):
            await workflow_context.tool(broken, "x")
        await engine.agenerate(ModelRequest([1], GCONFIG))

    engine = FakeEngine(lambda request: ValueError("garbage"))
    record = await recorded(Calls(episode), engine)
    assert record["outcome"] == "workflow_error"
    assert record["failure"]["type"] == "ValueError"
    assert "garbage" in record["failure"]["traceback"]
    [tool], [call] = record["tools"], record["failed_calls"]
    assert (tool["name"], tool["args"], tool["returned"]) == ("broken", [["x"], {}], False)
    assert tool["error"]["type"] == "LookupError"
    assert (call["prompt_ids"], call["error"]["message"]) == ([1], "garbage")
    assert (record["rows"], record["turns"]) == ([], [])


class Hostile(dict):
    """Raises when it is looked at."""

    def __repr__(self):
        raise RuntimeError("no")

    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.arange(3)[::2], [0, 2]),
        (torch.tensor([1, 2]), [1, 2]),
        (b"\xff", "b'\\xff'"),
        ("half a pair: \ud83d", "half a pair: \ud83d"),
        (2**70, 2**70),
        ({1: 2}, {"1": 2}),
        ({3, 4}, [3, 4]),
        (object, "<class 'object'>"),
    ],
)
def test_no_value_breaks_a_line(value, seen):
    line = any_json({"before": 1, "value": value, "deep": {"value": [value]}})
    assert b"\n" not in line
    assert json.loads(line) == {"before": 1, "value": seen, "deep": {"value": [seen]}}


async def test_an_episode_whose_record_cannot_be_made_leaves_its_head(tmp_path):
    path = tmp_path / "episodes.jsonl"
    async with EpisodeRecorder(path, text) as recorder:
        metrics = {"loop": 1.0}
        metrics["loop"] = Hostile(a=1)
        recorder.record(Episode("a", "p", "ok", metrics=metrics), split="train", step=0)
        recorder.record(Episode("b", "p", "ok", metrics=Hostile(a=1)), split="train", step=0)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["id"] for one in found] == ["a", "b"]
    assert all(one["outcome"] == "ok" for one in found)


@contextmanager
def full_disk(at):
    """No file may grow beyond `at` bytes: the system's own error, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.005)


def lines_of(path):
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


async def test_a_full_disk_costs_records_but_no_half_lines_and_not_the_run(tmp_path, caplog):
    """Fault matrix: disk full for records."""
    path = tmp_path / "episodes.jsonl"
    caplog.set_level(logging.INFO)
    episodes = [await ran(*dialogue([4, 5])) for _ in range(60)]
    async with EpisodeRecorder(path, text, max_waiting_tokens=200, retry_seconds=0.01) as recorder:
        recorder.record(episodes[0], split="train", step=0)
        await until(path.exists)
        await until(lambda: path.stat().st_size)
        n = path.stat().st_size
        with full_disk(int(1.5 * n)):
            for episode in episodes[1:]:
                recorder.record(episode, split="train", step=0)
                await asyncio.sleep(0)
            await until(lambda: caplog.records)
            await asyncio.sleep(0.05)
            assert path.stat().st_size == n
        lost = recorder.take_metrics()["records/lost"]
        assert 0 < lost < 59
        assert recorder.take_metrics() == {"records/lost": 0.0}
        await until(lambda: path.stat().st_size > n)
    assert len(lines_of(path)) == 60 - lost
    levels = [record.levelname for record in caplog.records]
    assert levels.count("WARNING") == 2
    assert "records/lost counts them" in caplog.text
    assert caplog.records[-1].getMessage().startswith(f"{lost:.0f} records of episodes were lost: ")


async def test_a_disk_that_stays_full_does_not_hold_up_the_end(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with full_disk(100):
        async with asyncio.timeout(10), EpisodeRecorder(path, text) as recorder:
            recorder.record(await ran(OneCall()), split="train", step=0)
        assert recorder.lost == 1
    assert path.read_bytes() == b""


async def test_a_folder_that_is_gone_does_not_end_the_run(tmp_path):
    async with asyncio.timeout(10), EpisodeRecorder(tmp_path / "no" / "f", text) as recorder:
        recorder.record(await ran(OneCall()), split="train", step=0)
    assert recorder.lost == 1


async def test_the_last_line_of_a_killed_process_is_ended(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b'{"kind":"episode"}\n{"kind":"epi')
    async with EpisodeRecorder(path, text) as recorder:
        recorder.fate("dropped", ["a"], prompt_id="p", step=1, version=2, why="too few")
    _, torn, last = path.read_bytes().splitlines()
    assert torn == b'{"kind":"epi'
    assert json.loads(last)["why"] == "too few"


async def test_long_episodes_and_short_ones_keep_their_order(tmp_path):
    path = tmp_path / "episodes.jsonl"
    long = GenerationHyperparameters(max_new_tokens=6000, max_tokens=8000)

    async def talks(engine, data):
        return Trajectory.from_response(await engine.agenerate(ModelRequest([1], long)), 1.0)

    engine = FakeEngine(lambda request: Reply([5] * 5000))
    episodes = [await ran(Calls(talks), engine), await ran(OneCall())]
    async with EpisodeRecorder(path, text) as recorder:
        for episode in episodes:
            recorder.record(episode, split="train", step=0)
    assert [len(one["turns"][0]["output_ids"]) for one in lines_of(path)] == [5000, 3]


async def test_thousands_of_records_leave_nothing_behind(tmp_path):
    async with EpisodeRecorder(tmp_path / "episodes.jsonl", text) as recorder:
        sizes = []
        for _ in range(5):
            for _ in range(10):
                episodes = [await ran(OneCall()) for _ in range(5)]
                for _ in range(20):
                    for episode in episodes:
                        recorder.record(episode, split="train", step=0)
            await until(lambda: not recorder._queue)
            await asyncio.sleep(0.15)
            gc.collect()
            sizes.append(len(gc.get_objects()))
    assert recorder.lost == 0
    assert max(sizes[1:]) - sizes[0] < 500
