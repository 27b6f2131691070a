"""The report on a run that makes no progress: what it holds, and how it reads."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from areal_agent.rollout.deadlines import Waits
from areal_agent.rollout.live import LiveEpisode
from areal_agent.rollout.stacks import Place, places_of, users_place

MAX_EPISODES = 200
"""So many episodes, those that have been silent the longest, are in a report."""
SHOWN_EPISODES = 8
"""So many are in its text."""

Describe = Callable[[], Sequence[str]]
"""Says in a few lines how a part of the run is; waits for nothing."""


@dataclass(frozen=True, slots=True)
class StallReport:
    """What a run waits for at one time. Holds only what JSON can hold."""

    why: str
    """What made it be written."""
    at: float
    """``time.time()``."""
    pid: int
    quiet_seconds: float
    """Since the last progress."""
    last_progress: str
    """What that was."""
    waits: list[dict[str, Any]]
    """owner, name, for how many seconds, and how many it may take (None: the supervisor acts)."""
    episodes: list[dict[str, Any]]
    """id, prompt_id, age_seconds, doing, and for how many seconds; place: the innermost line of a
    user's code; stack. The longest silent first."""
    n_episodes: int
    """All that run."""
    parts: dict[str, list[str]]
    """How servers, trainer, reward workers and so on are."""
    loop: list[str] = field(default_factory=list[str])
    """What blocks the event loop, if it is blocked: the stack, outermost first."""
    loop_seconds: float = 0.0
    """For how long."""
    actions: list[str] = field(default_factory=list[str])
    """What the supervisor has done about it."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "StallReport":
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"expected a stall report, got {text[:200]!r}") from error

    def lines(self) -> list[str]:
        """The report as a person reads it."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        out = [
            f"{self.why} ({when}, process {self.pid})",
            f"no progress for {self.quiet_seconds:.0f} s; the last was: {self.last_progress}",
        ]
        if self.loop:
            out.append(f"the event loop has been blocked for {self.loop_seconds:.1f} s at:")
            out += [f"    {one}" for one in self.loop]
        out.append("it waits for:" if self.waits else "it waits for nothing that has a name")
        out += [f"    {_wait_text(wait)}" for wait in self.waits]
        out += self._episode_lines()
        for name, said in self.parts.items():
            out += [f"{name}:", *(f"    {line}" for line in said)]
        if self.actions:
            out += ["done about it:", *(f"    {action}" for action in self.actions)]
        return out

    def _episode_lines(self) -> list[str]:
        shown = self.episodes[:SHOWN_EPISODES]
        if not shown:
            return ["no episode is running"]
        out = [f"{self.n_episodes} episodes are running; silent for the longest time:"]
        for one in shown:
            out.append(
                f"    {one['id']}: {one['age_seconds']:.0f} s old, has waited "
                f"{one['silent_seconds']:.0f} s for {one['doing']}"
            )
            if one["place"]:
                out.append(f"        at {one['place']}")
            if one["stack"] and one["stack"][-1] != one["place"]:
                out.append(f"        in {one['stack'][-1]}")
        if self.n_episodes > len(shown):
            out.append(f"    and {self.n_episodes - len(shown)} more")
        return out


def _wait_text(wait: Mapping[str, Any]) -> str:
    most = wait["deadline_seconds"]
    end = "watched by the supervisor" if most is None else f"at most {most:.0f} s"
    return f"{wait['owner']}: {wait['name']}, for {wait['seconds']:.0f} s so far ({end})"


def waits_now(waits: Waits) -> list[dict[str, Any]]:
    """The waits that go on, as a report has them."""
    now = waits.clock()
    return [
        {
            "owner": wait.owner,
            "name": wait.name,
            "seconds": now - wait.since,
            "deadline_seconds": wait.seconds,
        }
        for wait in list(waits.open)
    ]


def episodes_now(episodes: Iterable[LiveEpisode], now: float) -> list[dict[str, Any]]:
    """Episodes that run, as a report has them."""
    out: list[dict[str, Any]] = []
    for one in episodes:
        stack = episode_places(one)
        users = users_place(stack)
        out.append(
            {
                "id": one.id,
                "prompt_id": one.prompt_id,
                "age_seconds": now - one.started,
                "silent_seconds": now - one.since,
                "doing": one.doing,
                "place": "" if users is None else str(users),
                "stack": [str(place) for place in stack],
            }
        )
    return out


def episode_places(episode: LiveEpisode) -> list[Place]:
    """Where the code of an episode stands, outermost first."""
    return places_of(code.coroutine for code in list(episode.nested))


def described(parts: Mapping[str, Describe]) -> dict[str, list[str]]:
    """Ask each part how it is; one that fails says so."""
    out: dict[str, list[str]] = {}
    for name, describe in list(parts.items()):
        try:
            out[name] = list(describe())
        except Exception as error:  # noqa: BLE001 - a report that lacks a part beats none
            out[name] = [f"could not be asked: {type(error).__name__}: {error}"]
    return out


def write_report(report: StallReport, path: Path) -> None:
    """Write it, replacing the one before at once or not at all; readable by us only.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(report.to_json() + "\n")
    new.replace(path)
