"""What a run came to: the numbers of ``summary.json``."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from areal_agent.stats.outcomes import outcome_facts
from areal_agent.trainer.folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The end of a run in numbers. Rates are held out; None where nothing was measured."""

    eval_before: float | None
    """Mean held-out reward of the initial weights, sampled as `eval_gconfig` says."""
    eval_before_stderr: float | None
    eval_after: float | None
    """The same of the final weights."""
    eval_after_stderr: float | None
    eval_after_greedy: float | None
    """Mean held-out reward of the final weights, decoded greedily."""
    eval_problems: int
    """Held-out problems behind each of these."""
    steps: int
    """Batches trained on."""
    version: int
    """Weight version at the end: updates that were published."""
    train_seconds: float
    """Wall time from the first rollout to the last update."""
    overlap_share: float | None
    """Share of the trainer's busy time in which a server was generating."""
    overlap_possible: float | None
    """What that share could be: see `areal_agent.stats.overlap`."""
    versions_spanned_max: int
    """Most weight versions among the sampled tokens of one batch."""
    staleness_max: int
    """Largest age of a trained token in versions, at consumption."""
    max_head_offpolicyness: int
    episodes: Mapping[str, int]
    """Training episodes by outcome."""
    zero_rewards: int
    """Those of them that were judged and earned nothing."""
    groups_dropped: Mapping[str, int]
    """Groups that were left out of training, by reason."""
    loop_lag_p99_ms: float
    """How late the driver's event loop was while it trained: 99th percentile over time."""
    seed: int
    run_folder: str
    model_folder: str

    def to_json(self) -> str:
        """One line of JSON; NaN becomes null."""
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return json.dumps(values)

    def table(self, folder: RunFolder) -> list[tuple[str, str]]:
        """Name and value of what a person wants to see at the end."""
        rows = [
            ("held-out accuracy before", _rate(self.eval_before, self.eval_before_stderr)),
            ("held-out accuracy after", _rate(self.eval_after, self.eval_after_stderr)),
            ("held-out accuracy after, greedy", _rate(self.eval_after_greedy, None)),
            ("held-out problems", str(self.eval_problems)),
            ("steps", f"{self.steps} in {self.train_seconds:.1f} s"),
            ("staleness, largest", f"{self.staleness_max} of {self.max_head_offpolicyness}"),
            ("versions in one batch, most", str(self.versions_spanned_max)),
            (
                "overlap of training with generation",
                f"{_percent(self.overlap_share)} of {_percent(self.overlap_possible)} possible",
            ),
            (
                "training episodes",
                "; ".join(
                    outcome_facts(self.episodes, self.groups_dropped, wrong=self.zero_rewards)
                ),
            ),
            ("model", str(folder.final)),
            ("metrics", str(folder.metrics)),
            ("episodes", str(folder.episodes)),
            ("summary", str(folder.summary)),
        ]
        return rows

    def write(self, path: Path) -> None:
        """Write the file in one go."""
        text = json.dumps(json.loads(self.to_json()), indent=2) + "\n"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def _rate(value: float | None, stderr: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ± {stderr:.3f}"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0%}"
