"""The run folder: where everything that a run leaves behind lies."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from areal_agent.config.experiment import ExperimentConfig
from areal_agent.errors import ConfigError
from areal_agent.rollout.stall_socket import REPORT_FILE

MARKER = ".areal-agent-run"
"""A file in each run folder; nothing without it is ever deleted."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run. Pure: `create` alone touches the disk."""

    root: Path

    @property
    def settings(self) -> Path:
        """The resolved settings."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.root / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """One JSON object an episode."""
        return self.root / "episodes.jsonl"

    @property
    def mismatches(self) -> Path:
        """One JSON object for each turn that the audit found to differ; there if there are any."""
        return self.root / "capture_mismatches.jsonl"

    @property
    def first_step(self) -> Path:
        """What the check of the first step found to differ; there if it did."""
        return self.root / "first_step.json"

    @property
    def stall(self) -> Path:
        """What the run waited for when it last made no progress; there if it did."""
        return self.root / REPORT_FILE

    @property
    def summary(self) -> Path:
        """What the run came to."""
        return self.root / "summary.json"

    @property
    def admin_key(self) -> Path:
        """The key that starts online sessions, when it was made at random."""
        return self.root / "admin.key"

    @property
    def logs(self) -> Path:
        """Output of the servers and of the trainer."""
        return self.root / "logs"

    @property
    def weights(self) -> Path:
        """Weights on their way to the servers; the last two versions are kept."""
        return self.root / "weights"

    @property
    def checkpoints(self) -> Path:
        """Periodic exports."""
        return self.root / "checkpoints"

    @property
    def final(self) -> Path:
        """The trained model, an ordinary Hugging Face folder."""
        return self.root / "model"


def create_run_folder(config: ExperimentConfig, base: Path, *, trains: bool = True) -> RunFolder:
    """Make the folder ``fileroot/experiment_name/trial_name``, as `on_existing` says.

    A relative `fileroot` is taken from `base`. What does not train has no place for weights.

    Raises:
        ConfigError: the folder exists and may not be reused, or cannot be made.
    """
    parent = (base / config.fileroot / config.experiment_name).absolute()
    root = parent / config.trial_name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if config.on_existing == "overwrite" and root.exists():
            _remove_run(root)
        if config.on_existing == "number":
            root = _claim_numbered(root)
        else:
            root.mkdir()
        (root / MARKER).touch()
        folder = RunFolder(root)
        for path in (folder.logs, *((folder.weights, folder.checkpoints) if trains else ())):
            path.mkdir()
    except FileExistsError as error:
        raise ConfigError(
            f"the run folder {root} exists: choose another trial_name, or set on_existing to "
            "'number' or 'overwrite'"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {root}: {error}; set fileroot") from error
    return folder


def _claim_numbered(root: Path) -> Path:
    """Make `root`, or the first free ``root-2``, ``root-3``, …; two runs never get the same."""
    number = 1
    while True:
        path = root if number == 1 else root.with_name(f"{root.name}-{number}")
        try:
            os.mkdir(path)
        except FileExistsError:
            number += 1
        else:
            return path


def _remove_run(root: Path) -> None:
    if not (root / MARKER).is_file():
        raise ConfigError(
            f"{root} was not made by a run (it has no {MARKER}): it is not overwritten; choose "
            "another trial_name or remove it by hand"
        )
    shutil.rmtree(root)
