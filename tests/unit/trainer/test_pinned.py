"""Settings in a run folder can be run again from anywhere."""

from pathlib import Path

from areal_agent.config.experiment import ExperimentConfig, UseConfig
from areal_agent.config.load import dump_config, parse_config
from areal_agent.trainer.pinned import pin_paths


def settings() -> ExperimentConfig:
    return ExperimentConfig(
        experiment_name="x",
        model="models/tiny",
        workflow=UseConfig(
            use="tool_agent",
            args={"tools": ["t.py:f", "json:dumps"], "reward_fn": "../r.py:g", "max_turns": 3},
        ),
        train_dataset=UseConfig(use="rows.jsonl"),
        valid_dataset=UseConfig(use="t.py:rows", args={"n": 3}),
        total_train_steps=1,
    )


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    pinned = pin_paths(settings(), tmp_path)
    assert pinned.model == str(tmp_path / "models/tiny")
    assert pinned.workflow is not None
    assert pinned.workflow.use == "tool_agent"
    assert pinned.workflow.args == {
        "tools": [f"{tmp_path}/t.py:f", "json:dumps"],
        "reward_fn": f"{tmp_path}/../r.py:g",
        "max_turns": 3,
    }
    assert pinned.train_dataset.use == f"{tmp_path}/rows.jsonl"
    assert pinned.valid_dataset is not None
    assert pinned.valid_dataset.use == f"{tmp_path}/t.py:rows"


def test_built_in_models_keep_their_name(tmp_path: Path) -> None:
    config = settings().model_copy(update={"model": "builtin:calculator"})
    assert pin_paths(config, tmp_path).model == "builtin:calculator"


def test_what_is_pinned_reads_back_the_same(tmp_path: Path) -> None:
    pinned = pin_paths(settings(), tmp_path)
    assert parse_config(dump_config(pinned)).config == pinned
