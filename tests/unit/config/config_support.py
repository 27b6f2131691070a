"""What the tests of settings share: the least that a settings file must say."""

from typing import Any

import pytest

from areal_agent.config.load import LoadedConfig, parse_config
from areal_agent.errors import ConfigError

LEAST = """\
experiment_name: demo
model: builtin:calculator
workflow: {use: rlvr}
train_dataset:
  use: train.jsonl
total_train_steps: 3
"""


def load(more: str = "", *overrides: str) -> LoadedConfig[Any]:
    """Read the least, more lines after it, and overrides."""
    return parse_config(LEAST + more, overrides, source="run.yaml")


def refused(more: str = "", *overrides: str) -> list[str]:
    """Return the problems of settings that must not load, one a line."""
    with pytest.raises(ConfigError) as caught:
        load(more, *overrides)
    return [line.strip() for line in str(caught.value).splitlines()]
