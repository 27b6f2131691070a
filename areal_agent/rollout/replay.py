"""Runs the code of a recorded episode again, on what it was told then, and compares."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.differences import Decode, rows_differ
from areal_agent.rollout.episode import EpisodeRun, EpisodeSpec, run_episode
from areal_agent.rollout.episode_record import episode_record, prompt_ids_of, rows_of
from areal_agent.rollout.plain import any_json
from areal_agent.rollout.replayed_inputs import (
    ReplayedInputs,
    ReplayEngine,
    model_event,
    tool_event,
)
from areal_agent.rollout.script import PATIENCE_SECONDS, Difference, Script
from areal_agent.rollout.workflow import RolloutWorkflow

SECONDS = 60.0
"""A replay that takes longer is given up."""
GRACE_SECONDS = 0.1
"""An episode that was cut off may still ask for something this long after its last call."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of replaying one episode."""

    id: str
    split: str
    verdict: Literal["same", "differs", "skipped"]
    why: str = ""
    """Why it cannot be replayed, where it was skipped."""
    difference: Difference | None = None


async def replay_episode(
    workflow: RolloutWorkflow,
    record: Mapping[str, Any],
    decode: Decode,
    *,
    vocab_size: int | None = None,
    limits: LimitsConfig | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Replayed:
    """Run `workflow` on what a recorded episode was told.

    Args:
        workflow: the code, as it is now.
        record: a line of ``episodes.jsonl``.
        decode: makes text of ids, to show what differs.
        vocab_size: of the model.
        limits: of an episode; a replay takes no more than a minute whatever they say.
        patience_seconds: how long a call waits for another one that came before it.
    """
    why = unreplayable(record)
    if why:
        return Replayed(record["id"], record["split"], "skipped", why)
    script = script_of(record, decode, patience_seconds=patience_seconds)
    spec = spec_of(record)
    newest = max((v for turn in record["turns"] for v in turn["versions"]), default=0)
    engine = ReplayEngine(script, decode, version=newest)
    inputs = ReplayedInputs(script, record, spec.random_seed)
    running = run_episode(
        workflow,
        engine,
        record["data"],
        spec,
        limits=(limits or LimitsConfig()).model_copy(update={"seconds": SECONDS}),
        vocab_size=vocab_size,
        inputs=inputs,
    )
    run: EpisodeRun | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(running, name=f"replay {spec.id}")
        if was_cut_off(record):
            await _until_cut_off(task, script)
        else:
            await asyncio.wait([task])
    if not task.cancelled():
        run = task.result()
    difference = script.difference or _rest(script, inputs) or _result(record, run, decode)
    verdict = "same" if difference is None else "differs"
    return Replayed(record["id"], record["split"], verdict, difference=difference)


def unreplayable(record: Mapping[str, Any]) -> str:
    """Say why a record cannot be replayed; "" when it can."""
    if record["schema"] < 2:
        return "it was recorded by an older version, which did not keep what was needed"
    if "note" in record:
        return str(record["note"])
    if record["facts"] is None:
        return "what it was told is not recorded"
    if record["data"] is None:
        return "its row of the dataset is not recorded: JSON cannot hold it exactly"
    if not record["turns"] and not record["failed_calls"] and record["metrics"].get("calls"):
        return "its model was an endpoint of others, whose replies are not recorded"
    return ""


def was_cut_off(record: Mapping[str, Any]) -> bool:
    """Tell whether the end came from outside, in its time: it is replayed up to the last call."""
    return record["outcome"] in ("timeout", "cancelled") or record.get("limit") == "seconds"


def script_of(
    record: Mapping[str, Any], decode: Decode, *, patience_seconds: float = PATIENCE_SECONDS
) -> Script:
    """The calls that a record holds."""
    turns = enumerate(record["turns"])
    answered = [model_event(turn, prompt_ids_of(record, n), decode) for n, turn in turns]
    failed = [model_event(call, call["prompt_ids"], decode) for call in record["failed_calls"]]
    tools = [tool_event(tool) for tool in record["tools"]]
    return Script([*answered, *failed, *tools], patience_seconds=patience_seconds)


def spec_of(record: Mapping[str, Any]) -> EpisodeSpec:
    """Which episode a record is of."""
    is_eval = record["split"] != "train"
    return EpisodeSpec(record["id"], record["prompt_id"], **record["facts"], is_eval=is_eval)


async def _until_cut_off(task: "asyncio.Task[EpisodeRun]", script: Script) -> None:
    """Wait until all that was recorded has been asked, and end the episode there."""
    async with asyncio.TaskGroup() as group:
        done = group.create_task(script.is_done.wait())
        await asyncio.wait([task, done], return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
    if not task.done():
        await asyncio.wait([task], timeout=GRACE_SECONDS)
        task.cancel()
        await asyncio.wait([task])


def _rest(script: Script, inputs: ReplayedInputs) -> Difference | None:
    """What was recorded and not asked for."""
    event = script.left()
    if event is not None:
        return Difference("a call is missing", event.text, "the episode ended without it")
    if inputs.unread:
        asked = "the episode ended without it"
        return Difference("the time", f"now() was asked for {inputs.unread} times more", asked)
    return None


def _result(record: Mapping[str, Any], run: EpisodeRun | None, decode: Decode) -> Difference | None:
    """How the result differs from the recorded one."""
    if was_cut_off(record):
        return None
    if run is None:
        return Difference("the result", record["outcome"], "cancelled")
    now = _as_read(run, decode)
    record = _before_judgement(record)
    told = [_outcome(one) for one in (record, now)]
    if told[0] != told[1]:
        return Difference("the result", *told)
    if record["own"] is not None and not record["rows"]:  # the judgement failed, and took the rows
        earned = [row["reward"] for row in now["rows"]]
        same = earned == record["own"]["rewards"]
        return None if same else Difference("the reward", repr(record["own"]), repr(earned))
    rows = rows_of(record)
    differs = rows_differ(rows, rows_of(now), decode)
    if differs is not None:
        return Difference("the result", *differs)
    if record["reward"] != now["reward"] and not rows:
        return Difference("the reward", repr(record["reward"]), repr(now["reward"]))
    return None


def _before_judgement(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record with what the episode earned by itself, where its group was judged together."""
    own = record["own"]
    if own is None:
        return record
    pairs = zip(record["rows"], own["rewards"], strict=False)
    rows = [{**row, "reward": reward} for row, reward in pairs]
    return {**record, "outcome": own["outcome"], "failure": None, "rows": rows}


def _as_read(run: EpisodeRun, decode: Decode) -> dict[str, Any]:
    """The record of an episode as it is when it has been read back."""
    return json.loads(any_json(episode_record(run.episode, decode, split="train", step=0)))


def _outcome(record: Mapping[str, Any]) -> str:
    failure = record["failure"]
    if failure is None:
        return str(record["outcome"])
    return f"{record['outcome']}: {failure['type']}: {failure['message']}"
