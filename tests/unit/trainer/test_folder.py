"""Run folders: numbered, refused or overwritten, and never somebody else's."""

from pathlib import Path

import pytest

from areal_agent.config.experiment import ExperimentConfig, UseConfig
from areal_agent.errors import ConfigError
from areal_agent.trainer.folder import create_run_folder


def settings(**changes: object) -> ExperimentConfig:
    values = {
        "experiment_name": "x",
        "model": "m",
        "train_dataset": UseConfig(use="rows.jsonl"),
        "total_train_steps": 1,
    }
    return ExperimentConfig.model_validate(values | changes)


def test_a_second_run_gets_the_next_number(tmp_path: Path) -> None:
    roots = [create_run_folder(settings(), tmp_path).root for _ in range(3)]
    assert [root.name for root in roots] == ["trial", "trial-2", "trial-3"]
    assert roots[0].parent == tmp_path / "runs" / "x"


def test_an_existing_folder_is_refused_on_request(tmp_path: Path) -> None:
    create_run_folder(settings(), tmp_path)
    with pytest.raises(ConfigError, match="choose another trial_name"):
        create_run_folder(settings(on_existing="refuse"), tmp_path)


def test_overwriting_removes_an_old_run(tmp_path: Path) -> None:
    old = create_run_folder(settings(), tmp_path)
    old.metrics.write_text("old")
    new = create_run_folder(settings(on_existing="overwrite"), tmp_path)
    assert new.root == old.root
    assert not new.metrics.exists()


def test_a_folder_that_no_run_made_is_never_deleted(tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "x" / "trial"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="was not made by a run"):
        create_run_folder(settings(on_existing="overwrite"), tmp_path)
    assert (mine / "thesis.tex").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="set fileroot"):
        create_run_folder(settings(), tmp_path)
