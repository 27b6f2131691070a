"""What ``areal-agent replay`` prints of a replay."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from areal_agent.rollout.record_text import safe
from areal_agent.rollout.replay import Replayed

HINT = (
    "If its code has not changed, it asks time, chance or the network itself: write "
    "workflow_context.now(), random() and tool() instead, see docs/replay.md."
)


def told(done: Replayed) -> Iterator[str]:
    """Lines about an episode that differs; none for others."""
    if done.difference is None:
        return
    yield f"episode {safe(done.id)} ({safe(done.split)}) differs at {safe(done.difference.what)}"
    yield f"  recorded: {safe(done.difference.recorded)}"
    yield f"  now:      {safe(done.difference.now)}"


def as_json(done: Replayed) -> str:
    """One line of JSON about an episode."""
    differs = done.difference
    return json.dumps(
        {
            "id": done.id,
            "split": done.split,
            "verdict": done.verdict,
            "why": done.why,
            "difference": None
            if differs is None
            else {"what": differs.what, "recorded": differs.recorded, "now": differs.now},
        }
    )


def total(results: Sequence[Replayed]) -> Iterator[str]:
    """The last lines."""
    verdicts = Counter(done.verdict for done in results)
    reasons = Counter(done.why for done in results if done.verdict == "skipped")
    for why, n in reasons.items():
        yield f"{n} skipped: {safe(why)}"
    if verdicts["differs"]:
        yield HINT
    yield f"{len(results)} episodes: {verdicts['same']} the same, {verdicts['differs']} differ"
