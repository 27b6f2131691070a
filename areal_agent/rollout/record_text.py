"""Records for people: a line an episode, or one episode whole. Safe to print on a terminal."""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from areal_agent.rollout.record_reader import Fate, Record
from areal_agent.types import TRAINABLE_OUTCOMES

_UNPRINTABLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_KEPT = "\n\t"

HEADINGS = (
    f"{'id':14} {'prompt':10} {'split':10} {'step':>4} {'outcome':15} {'reward':>8} "
    f"{'turns':>5} {'tokens':>6} {'versions':>8} {'seconds':>7}  what became of it"
)


def safe(text: str) -> str:
    """Return text in which nothing steers a terminal: what cannot be seen is written out."""
    if text.isprintable():
        return text
    return "".join(
        one
        if one in _KEPT or unicodedata.category(one) not in _UNPRINTABLE
        else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def is_dropped(record: Record, fate: Fate | None) -> bool:
    """Tell whether an episode of training was not trained on, for good."""
    if record["split"] != "train":
        return False
    if record["outcome"] not in TRAINABLE_OUTCOMES:
        return True
    return fate is not None and fate.name != "trained"


def what_became(record: Record, fate: Fate | None) -> str:
    """Say in words what became of an episode, and why."""
    outcome = str(record["outcome"])
    failure = record.get("failure")
    if failure is not None:
        return f"{outcome}: {failure['type']}: {failure['message']}"
    if record.get("limit") is not None and outcome not in TRAINABLE_OUTCOMES:
        return f"{outcome}: it reached rollout.limits.{record['limit']}"
    if outcome not in TRAINABLE_OUTCOMES:
        return _OUTCOMES.get(outcome, outcome)
    if record["split"] != "train":
        return "evaluated"
    if fate is None:
        return "not used yet, or the run ended before"
    if fate.name == "trained":
        return f"trained on at step {fate.step}{_because(fate)}"
    return f"{fate.name}{_because(fate)}"


def summary_line(record: Record, fate: Fate | None) -> str:
    """One episode as a line of the table under `HEADINGS`."""
    turns = record.get("turns", [])
    tokens = sum(len(turn["output_ids"]) for turn in turns)
    versions = record.get("versions")
    span = "-" if versions is None else "-".join(str(one) for one in sorted(set(versions)))
    became = safe(" ".join(what_became(record, fate).split()))
    return (
        f"{safe(record['id']):14} {safe(record['prompt_id']):10} {safe(record['split']):10} "
        f"{record['step']:>4} {safe(record['outcome']):15} {number(record['reward']):>8} "
        f"{len(turns):>5} {tokens:>6} {span:>8} {record.get('seconds', 0):>7.2f}  {became:.100}"
    )


def detail(record: Record, fate: Fate | None) -> Iterator[str]:
    """One episode whole, line by line."""
    yield f"episode {safe(record['id'])} of prompt {safe(record['prompt_id'])}"
    yield f"  {safe(record['split'])}, ended at step {record['step']}"
    yield f"  outcome {safe(record['outcome'])}, reward {number(record['reward'])}"
    yield f"  {safe(what_became(record, fate))}"
    yield from _facts(record)
    for place, what in _events(record):
        del place
        yield from what
    yield from _rows(record)
    failure = record.get("failure")
    if failure is not None:
        what = f"{failure['place']}: {failure['type']}: {failure['message']}"
        yield f"failure in {safe(what)}"
        yield from _indented(failure["traceback"])


def number(value: float | None) -> str:
    """A reward as it is shown."""
    return "-" if value is None else f"{value:.4g}"


_OUTCOMES: dict[str, str] = {
    "rejected": "rejected by its workflow",
    "cancelled": "cancelled",
    "stale": "too old when it ended",
}


_REASONS: dict[str, str] = {
    "too_few": "too few episodes of its group may be trained on",
    "fail_fast": "another episode of its group failed",
    "zero_variance": "all rewards of its group are equal",
    "refused": "should_accept refused its group",
    "filter_error": "should_accept failed on its group",
    "run_ended": "the run ended before",
}


def _because(fate: Fate) -> str:
    return f": {_REASONS.get(fate.why, fate.why)}" if fate.why else ""


def _facts(record: Record) -> Iterator[str]:
    if (versions := record.get("versions")) is not None:
        yield f"  weights of version {versions[0]} to {versions[1]}"
    if "seconds" in record:
        yield f"  {record['seconds']:.2f} seconds"
    if metrics := record.get("metrics"):
        shown = ", ".join(f"{name} {_short(value)}" for name, value in metrics.items())
        yield f"  {safe(shown)}"
    if note := record.get("note"):
        yield f"  {safe(note)}"


def _events(record: Record) -> list[tuple[int, list[str]]]:
    """What happened, in the order in which it began."""
    found: list[tuple[int, list[str]]] = []
    for n, turn in enumerate(record.get("turns", [])):
        found.append((turn["at"][0], list(_turn(n, turn))))
    found += [(tool["at"][0], list(_tool(tool))) for tool in record.get("tools", [])]
    found += [(call["at"][0], list(_failed(call))) for call in record.get("failed_calls", [])]
    return sorted(found, key=lambda event: event[0])


def _turn(n: int, turn: Mapping[str, Any]) -> Iterator[str]:
    parent = turn["parent"]
    goes_on = "" if parent is None else f", goes on from turn {parent}"
    yield ""
    yield (
        f"turn {n}{goes_on}: {turn['n_prompt']} + {len(turn['output_ids'])} tokens, "
        f"{turn['seconds']:.2f} s, {safe(turn['stop_reason'])}"
    )
    messages = turn["messages"]
    if isinstance(messages, str):
        yield from _said("prompt", messages)
    else:
        for message in messages:
            yield from _said(str(message.get("role")), _content(message))
    yield from _said("reply", turn["reply"])
    if turn.get("reward") is not None:
        yield f"  reward {number(turn['reward'])}"


def _tool(tool: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"tool {safe(tool['name'])}, {tool['seconds']:.2f} s"
    if tool["args"] is not None:
        args, kwargs = cast("tuple[list[Any], dict[str, Any]]", tuple(tool["args"]))
        given = [_short(one) for one in args] + [f"{k}={_short(v)}" for k, v in kwargs.items()]
        yield from _said("called with", ", ".join(given))
    if tool["shown"]:
        yield from _said("not exact", tool["shown"])
    if tool["error"] is not None:
        yield from _said("raised", f"{tool['error']['type']}: {tool['error']['message']}")
    elif tool["at"][1] is None:
        yield "  never ended"
    elif tool["returned"]:
        yield from _said("returned", _short(tool["result"]))


def _failed(call: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"model call without an answer, {len(call['prompt_ids'])} tokens"
    error = call["error"]
    yield from _said("failed", f"{error['type']}: {error['message']}" if error else "never ended")


def _rows(record: Record) -> Iterator[str]:
    for n, row in enumerate(record.get("rows", [])):
        of = f"the replies of turns {row['turns']}" if "turn" in row else "tokens of its own"
        cut = ", cut off" if row["truncated"] else ""
        yield ""
        yield f"row {n}: {of}, reward {number(row['reward'])}{cut}"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else _short(content)
    calls = cast("Sequence[Any]", message.get("tool_calls") or ())
    return "\n".join([text, *(_short(call.get("function")) for call in calls)]).strip("\n")


def _said(who: str, text: str) -> Iterator[str]:
    first, *others = safe(text).split("\n")
    yield f"  {safe(who)}: {first}"
    yield from (f"    {line}" for line in others)


def _indented(text: str) -> Iterator[str]:
    yield from (f"  {line}" for line in safe(text).rstrip().split("\n"))


def _short(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, ensure_ascii=False, default=str)
