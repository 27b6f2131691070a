"""An episode as JSON values: the schema of ``episodes.jsonl``, and rows made of it again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_agent.rollout.plain import Json, exact_json
from areal_agent.types import (
    Call,
    Episode,
    GenerationHyperparameters,
    Interaction,
    ModelRequest,
    ModelResponse,
)

SCHEMA_VERSION = 2
"""Raised whenever a field changes its meaning."""

NOT_SAMPLED = -1
"""Version of a token of a row that no engine sampled."""

Decode = Callable[[Sequence[int]], str]


def episode_record(episode: Episode, decode: Decode, *, split: str, step: int) -> dict[str, Any]:
    """Everything about one episode; ``docs/records.md`` explains each field.

    Ids and messages of a turn are those that its parent's prompt and reply do not hold already.
    """
    tape = episode.tape
    record: dict[str, Any] = {
        **_head(episode, split, step),
        "started": None if tape is None else round(tape.started_at, 4),
        "seconds": round(episode.seconds, 4),
        "versions": episode.versions,
        "metrics": dict(episode.metrics),
        "failure": _failure(episode),
    }
    turns = _Turns(_model_calls(episode), decode)
    record["turns"] = turns.records
    if tape is not None:
        data = exact_json(dict(tape.data))
        record |= {
            "tools": [_tool(call) for call in tape.calls if call.kind == "tool"],
            "failed_calls": [_failed(call) for call in tape.calls if _is_failed(call)],
            "rows": [_row(row, turns) for row in tape.rows],
            "own": tape.own,
            "facts": dict(tape.facts),
            "data": None if data is None else Json(data),
            "clock": list(tape.clock),
            "random_seed": tape.random_seed,
        }
    return record


def brief_record(episode: Episode, error: Exception, *, split: str, step: int) -> dict[str, Any]:
    """What is left of an episode whose record could not be made."""
    note = f"the rest could not be recorded: {type(error).__name__}: {error}"
    return {**_head(episode, split, step), "note": note}


def fate_record(
    fate: str, episodes: Sequence[str], *, prompt_id: str, step: int, version: int, why: str
) -> dict[str, Any]:
    """What became of the episodes of a group, once that is known."""
    return {
        "schema": SCHEMA_VERSION,
        "kind": "fate",
        "fate": fate,
        "episodes": list(episodes),
        "prompt_id": prompt_id,
        "step": step,
        "version": version,
        "why": why,
    }


def prompt_ids_of(record: Mapping[str, Any], turn: int) -> list[int]:
    """All ids that turn `turn` of a record was sampled after."""
    one = record["turns"][turn]
    parent = one["parent"]
    before = [] if parent is None else whole_ids_of(record, parent)
    return [*before, *one["prompt_ids"]]


def whole_ids_of(record: Mapping[str, Any], turn: int) -> list[int]:
    """The ids of a turn's prompt and reply."""
    return [*prompt_ids_of(record, turn), *record["turns"][turn]["output_ids"]]


def rows_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record in full: ids, mask, logprobs, versions, reward, truncated."""
    rows: list[dict[str, Any]] = []
    for row in record["rows"]:
        if "turn" in row:
            ids = whole_ids_of(record, row["turn"])
            whole = _Whole(len(ids))
            for turn in row["turns"]:
                one = record["turns"][turn]
                whole.put(len(prompt_ids_of(record, turn)), one["logprobs"], one["versions"])
            found = {"input_ids": ids, **whole.lists()}
        else:
            found = {name: row[name] for name in ("input_ids", *_PER_TOKEN)}
        rows.append({**found, "reward": row["reward"], "truncated": row["truncated"]})
    return rows


_PER_TOKEN = ("loss_mask", "logprobs", "versions")


@dataclass(slots=True)
class _Whole:
    """Lists over all tokens of a row, from replies at their places."""

    length: int
    mask: list[bool] = field(init=False)
    logprobs: list[float] = field(init=False)
    versions: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.mask = [False] * self.length
        self.logprobs = [0.0] * self.length
        self.versions = [NOT_SAMPLED] * self.length

    def put(self, start: int, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        end = start + len(versions)
        self.mask[start:end] = [True] * len(versions)
        self.logprobs[start:end] = logprobs
        self.versions[start:end] = versions

    def lists(self) -> dict[str, Any]:
        return {"loss_mask": self.mask, "logprobs": self.logprobs, "versions": self.versions}


class _Turns:
    """The model's calls that were answered, and their records."""

    def __init__(self, calls: Sequence[tuple[Call, float | None]], decode: Decode) -> None:
        self.responses: list[ModelResponse] = []
        self.wholes: list[list[int]] = []
        self.parents: list[int | None] = []
        self.records: list[dict[str, Any]] = []
        messages: list[Sequence[Any]] = []
        for call, reward in calls:
            request, response = call.request, call.response
            assert request is not None
            assert response is not None
            prompt = list(response.input_tokens)
            parent = self._parent_of(prompt)
            said: Sequence[Any] = request.metadata.get("messages") or ()
            n_known, n_said = 0, 0
            if parent is not None:
                n_known = len(self.wholes[parent])
                before = messages[parent]
                n_said = len(before) if said[: len(before)] == before else 0
            new_ids = prompt[n_known:]
            self.records.append(
                {
                    "parent": parent,
                    "n_prompt": len(prompt),
                    "prompt_ids": new_ids,
                    **_reply(response, decode),
                    "messages": list(said[n_said:]) if said else _text(new_ids, decode),
                    "reward": reward,
                    "sampling": request.gconfig.model_dump(),
                    **_times(call),
                    "latency": response.latency_seconds,
                    "ttft": response.ttft_seconds,
                }
            )
            self.responses.append(response)
            self.wholes.append([*prompt, *response.output_tokens])
            self.parents.append(parent)
            messages.append(said)

    def _parent_of(self, prompt: list[int]) -> int | None:
        for turn in range(len(self.wholes) - 1, -1, -1):
            before = self.wholes[turn]
            if prompt[: len(before)] == before:
                return turn
        return None


def _head(episode: Episode, split: str, step: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "kind": "episode",
        "id": episode.id,
        "prompt_id": episode.prompt_id,
        "split": split,
        "step": step,
        "outcome": episode.outcome,
        "reward": episode.reward,
        "limit": episode.limit,
    }


def _failure(episode: Episode) -> dict[str, str] | None:
    failure = episode.failure
    if failure is None:
        return None
    return {
        "place": failure.place,
        "type": failure.type,
        "message": failure.message,
        "traceback": failure.traceback,
    }


def _model_calls(episode: Episode) -> list[tuple[Call, float | None]]:
    """The answered calls in the order of their beginning, each with its reward if it has one."""
    rewards = {id(one.response): one.reward for one in episode.interactions}
    if episode.tape is not None:
        calls = [call for call in episode.tape.calls if call.response is not None]
        return [(call, rewards.get(id(call.response))) for call in calls]
    return [(_call_of(one, place), one.reward) for place, one in enumerate(episode.interactions)]


def _call_of(one: Interaction, place: int) -> Call:
    """What is known of a call from its interaction alone."""
    gconfig = one.gconfig or GenerationHyperparameters()
    metadata: dict[str, Any] = {"messages": list(one.messages)}
    call = Call("model", "model", 2 * place, 2 * place + 1, seconds=one.response.latency_seconds)
    call.request = ModelRequest(one.response.input_tokens, gconfig, metadata=metadata)
    call.response = one.response
    return call


def _times(call: Call) -> dict[str, Any]:
    return {
        "at": [call.began, call.ended],
        "started": round(call.started_seconds, 4),
        "seconds": round(call.seconds, 4),
    }


def _reply(response: ModelResponse, decode: Decode) -> dict[str, Any]:
    return {
        "output_ids": list(response.output_tokens),
        "reply": _text(response.output_tokens, decode),
        "logprobs": list(response.output_logprobs),
        "versions": list(response.output_versions),
        "stop_reason": response.stop_reason,
        "temperature": response.temperature,
    }


def _text(ids: Sequence[int], decode: Decode) -> str:
    try:
        return decode(ids)
    except Exception as error:  # noqa: BLE001 - ids of no token; the ids themselves are recorded
        return f"<not decoded: {type(error).__name__}>"


def _tool(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "args": None if call.args is None else Json(call.args),
        "result": None if call.result is None else Json(call.result),
        "shown": call.shown,
        "error": call.error,
        "returned": call.result is not None,
        **_times(call),
    }


def _is_failed(call: Call) -> bool:
    return call.kind == "model" and call.response is None


def _failed(call: Call) -> dict[str, Any]:
    assert call.request is not None
    return {
        "prompt_ids": list(call.request.input_ids),
        "sampling": call.request.gconfig.model_dump(),
        "error": call.error,
        **_times(call),
    }


def _row(row: Any, turns: _Turns) -> dict[str, Any]:
    """One row: by the turns that it is made of where it is, otherwise in full."""
    record: dict[str, Any] = {"reward": row.reward, "truncated": row.truncated}
    ids, mask = list(row.input_ids), list(row.loss_mask)
    for last in range(len(turns.wholes) - 1, -1, -1):
        if turns.wholes[last] != ids:
            continue
        trained = _trained(row, mask, last, turns)
        if trained is not None:
            return {**record, "turn": last, "turns": trained}
    temperatures = None if row.temperatures is None else list(row.temperatures)
    return {
        **record,
        "input_ids": ids,
        "loss_mask": mask,
        "logprobs": list(row.logprobs),
        "versions": list(row.versions),
        "temperatures": temperatures,
    }


def _trained(row: Any, mask: list[bool], last: int, turns: _Turns) -> list[int] | None:
    """The turns whose replies are trained on, if that and their own values are all of the row."""
    whole = _Whole(len(mask))
    temperatures = [1.0] * len(mask)
    trained: list[int] = []
    turn: int | None = last
    while turn is not None:
        response = turns.responses[turn]
        start = len(response.input_tokens)
        if response.output_tokens and mask[start]:
            whole.put(start, response.output_logprobs, response.output_versions)
            n = len(response.output_tokens)
            temperatures[start : start + n] = [response.temperature or 0.0] * n
            trained.append(turn)
        turn = turns.parents[turn]
    if mask != whole.mask:
        return None
    told = row.temperatures
    if not _agree(row.logprobs, whole.logprobs, mask) or not _agree(
        row.versions, whole.versions, mask
    ):
        return None
    if told is None:
        same = all(turns.responses[turn].temperature is None for turn in trained)
    else:
        same = _agree(told, temperatures, mask)
    return trained[::-1] if same else None


def _agree(row: Sequence[float], whole: Sequence[float], mask: Sequence[bool]) -> bool:
    """Tell whether two lists agree where tokens were sampled."""
    if row == whole:
        return True  # most often, and fast
    return all(one == other for one, other, m in zip(row, whole, mask, strict=True) if m)
