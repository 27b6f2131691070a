"""What a run of online agents is made of."""

from pathlib import Path

import pytest

from areal_agent.config.load import parse_config
from areal_agent.errors import ConfigError
from areal_agent.gateway.keys import ADMIN_KEY_ENV
from areal_agent.rollout.online import OnlineWorkflow
from areal_agent.trainer.parts import Parts, prepare
from areal_agent.trainer.pinned import pin_paths

SETTINGS = """\
experiment_name: demo
model: builtin:calculator
workflow: {use: online}
total_train_steps: 3
rollout: {consumer_batch_size: 5, max_concurrent_rollouts: 100}
"""


def parts(*overrides: str) -> Parts:
    return prepare(parse_config(SETTINGS, overrides, source="run.yaml"))


def test_without_a_dataset_there_are_empty_rows_for_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ADMIN_KEY_ENV, raising=False)
    made = parts()
    assert list(made.train_rows) == [{}] * 5
    assert made.total_steps == 3
    assert isinstance(made.workflow("online", made.config.gconfig), OnlineWorkflow)


def test_a_host_that_others_reach_is_refused_without_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(ADMIN_KEY_ENV, raising=False)
    with pytest.raises(ConfigError, match="there is no admin key"):
        parts("gateway.host=0.0.0.0")
    monkeypatch.setenv(ADMIN_KEY_ENV, "areal-admin-key")
    with pytest.raises(ConfigError, match="easily guessed"):
        parts("gateway.host=0.0.0.0")
    monkeypatch.delenv(ADMIN_KEY_ENV)
    file = tmp_path / "key"
    file.write_text("k3y-of-many-different-chars", encoding="utf-8")
    made = parts("gateway.host=0.0.0.0", f"gateway.admin_key_file={file}")
    assert made.gateway.desk.key.place == str(file)


def test_the_file_of_the_key_is_pinned(tmp_path: Path) -> None:
    config = parse_config(SETTINGS, ["gateway.admin_key_file=key"], source="run.yaml").config
    assert pin_paths(config, tmp_path).gateway.admin_key_file == tmp_path / "key"
