"""``areal-agent episodes``: lists, filters and shows the records of a run."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from areal_agent.errors import DataError
from areal_agent.rollout.episode_record import SCHEMA_VERSION
from areal_agent.rollout.plain import any_json
from areal_agent.rollout.record_reader import Fate, Record, Records
from areal_agent.rollout.record_text import HEADINGS, detail, is_dropped, safe, summary_line
from areal_agent.types import Outcome


@dataclass(frozen=True, slots=True)
class Filters:
    """Which episodes are wanted: those for which everything that is set holds."""

    ids: Sequence[str] = ()
    outcome: str | None = None
    failed: bool = False
    dropped: bool = False
    prompt: str | None = None
    split: str | None = None
    """What the name of the split begins with."""
    step: int | None = None
    reward_below: float | None = None
    reward_above: float | None = None
    last: int | None = None
    """Only the newest so many."""

    def take(self, record: Record, fate: Fate | None) -> bool:
        """Tell whether an episode is wanted."""
        reward = record["reward"]
        return (
            (not self.ids or record["id"] in self.ids)
            and (self.outcome is None or record["outcome"] == self.outcome)
            and (not self.failed or record.get("failure") is not None)
            and (not self.dropped or is_dropped(record, fate))
            and (self.prompt is None or record["prompt_id"] == self.prompt)
            and (self.split is None or record["split"].startswith(self.split))
            and (self.step is None or record["step"] == self.step)
            and (self.reward_below is None or (reward is not None and reward < self.reward_below))
            and (self.reward_above is None or (reward is not None and reward > self.reward_above))
        )


def listed(run: Path, filters: Filters, *, json: bool = False) -> Iterator[str]:
    """Yield lines to print: a table; whole episodes where ids are given; or JSON.

    Raises:
        DataError: there are no records, or none with a wanted id.
    """
    records = Records(run)
    fates = records.fates()
    found = records.episodes(lambda record: filters.take(record, fates.get(record["id"])))
    if filters.last is not None:
        found = iter(deque(found, maxlen=filters.last))
    n = 0
    for record in found:
        n += 1
        yield from _shown(
            record, fates.get(record["id"]), is_first=n == 1, filters=filters, json=json
        )
    if filters.ids and n == 0:
        raise DataError(
            f"no episode of {records.path} is called {', '.join(filters.ids)}: "
            "areal-agent episodes RUN lists all"
        )
    if not json and not filters.ids:
        yield f"{n} episodes" if n else _none(records, filters)
    if records.broken and not json:
        yield f"{records.broken} lines are no records and could not be read"


def _none(records: Records, filters: Filters) -> str:
    if not records.n_episodes:
        return f"no episode has ended so far in {records.path}"
    text = f"none of {records.n_episodes} episodes is as asked for"
    if filters.outcome is not None and filters.outcome not in get_args(Outcome):
        text += f"; outcomes are {', '.join(get_args(Outcome))}, not {filters.outcome!r}"
    return text


def _shown(
    record: Record, fate: Fate | None, *, is_first: bool, filters: Filters, json: bool
) -> Iterator[str]:
    if json:
        told = None if fate is None else {"fate": fate.name, "step": fate.step, "why": fate.why}
        yield any_json({**record, "fate": told}).decode("utf-8")
    elif filters.ids:
        if not is_first:
            yield ""
        yield from _readable(record, lambda: detail(record, fate))
    else:
        if is_first:
            yield HEADINGS
        yield from _readable(record, lambda: iter([summary_line(record, fate)]))


def _readable(record: Record, lines: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Yield lines; a record that holds something else than ours do is named instead."""
    try:
        yield from list(lines())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        yield (
            f"{safe(record['id'])}: its record cannot be shown (schema {record.get('schema')!r}, "
            f"expected {SCHEMA_VERSION}): {type(error).__name__}: {safe(str(error))}; "
            "--json prints it as it is"
        )
