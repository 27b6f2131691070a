"""What a run came to: the numbers of ``summary.json``."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path


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

    def write(self, path: Path) -> None:
        """Write the file in one go."""
        text = json.dumps(json.loads(self.to_json()), indent=2) + "\n"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
