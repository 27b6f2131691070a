"""Only online agents may do without a dataset."""

import pytest
from config_support import load

from areal_agent.config.experiment import ExperimentConfig
from areal_agent.config.load import parse_config
from areal_agent.errors import ConfigError

ONLINE = "experiment_name: demo\nmodel: builtin:calculator\nworkflow: {use: online}\n"


def read(text: str) -> ExperimentConfig:
    return parse_config(text, source="run.yaml").config


def test_online_agents_may_bring_their_own_problems() -> None:
    assert read(ONLINE + "total_train_steps: 2\n").train_dataset is None
    named = read(ONLINE + "total_train_epochs: 1\ntrain_dataset: {use: rows.jsonl}\n")
    assert named.train_dataset is not None


@pytest.mark.parametrize(
    "overrides", [["train_dataset=null"], ["train_dataset=null", "workflow=null"]]
)
def test_others_need_problems(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"set train_dataset\.use"):
        load("", *overrides)


def test_without_problems_there_are_no_epochs() -> None:
    with pytest.raises(ConfigError, match="without train_dataset there are no epochs"):
        read(ONLINE + "total_train_epochs: 1\n")
