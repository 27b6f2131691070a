"""Files, overrides, interpolation and origins."""

from pathlib import Path

import pytest
from config_support import LEAST, load, refused

from areal_agent.config.experiment import SFTConfig
from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.config.load import load_config, parse_config
from areal_agent.errors import ConfigError


def test_values_come_from_file_override_and_default() -> None:
    loaded = load("gconfig:\n  top_p: 0.5\n", "gconfig.temperature=0.7", "seed=9")

    assert loaded.config.gconfig.top_p == 0.5
    assert loaded.config.gconfig.temperature == 0.7
    assert loaded.config.seed == 9
    assert str(loaded.origins["gconfig.top_p"]) == "run.yaml:8"
    assert str(loaded.origins["gconfig.temperature"]) == "override gconfig.temperature=0.7"
    assert str(loaded.origins["gconfig.top_k"]) == "default"


def test_every_leaf_has_an_origin() -> None:
    loaded = load("eval_gconfig: {stop: [a, b]}\n")

    assert list(loaded.origins)[:3] == ["experiment_name", "trial_name", "fileroot"]
    assert str(loaded.origins["eval_gconfig.stop"]) == "run.yaml:7"
    assert "rollout.server.weight_update" in loaded.origins
    assert "rollout" not in loaded.origins


def test_a_section_given_in_part_keeps_the_default_of_its_place() -> None:
    assert load().config.gconfig.n_samples == 8
    assert load("gconfig: {top_k: 5}\n").config.gconfig.n_samples == 8
    assert load("", "gconfig.top_k=5").config.gconfig.n_samples == 8
    assert GenerationHyperparameters().n_samples == 1


def test_sections_of_another_schema() -> None:
    loaded = parse_config("experiment_name: x\noptimizer: {warmup_steps: 4}\n", schema=SFTConfig)

    assert loaded.config.optimizer.lr == 3e-3
    assert loaded.config.optimizer.warmup_steps == 4


def test_later_override_wins_and_mappings_are_replaced() -> None:
    more = "valid_dataset: {use: held.jsonl, args: {a: 1, b: 2}}\n"

    assert load(more, "seed=1", "seed=2").config.seed == 2
    assert load(more, "valid_dataset.args={c: 3}").config.valid_dataset.args == {"c": 3}
    assert load(more, "valid_dataset.args.a=5").config.valid_dataset.args == {"a": 5, "b": 2}
    assert load(more, "valid_dataset=null").config.valid_dataset is None
    assert load("valid_dataset: null\n", "valid_dataset.use=x").config.valid_dataset.use == "x"


def test_replacing_a_mapping_forgets_where_its_keys_stood() -> None:
    loaded = load("gconfig:\n  top_p: 0.5\n", "gconfig={top_k: 3}")

    assert loaded.config.gconfig.top_p == 1.0
    assert loaded.origins["gconfig.top_p"].kind == "default"
    assert loaded.origins["gconfig.top_k"].kind == "override"


def test_interpolation_sees_defaults_overrides_and_sections() -> None:
    loaded = load("eval_gconfig: ${gconfig}\ntrial_name: s${seed}\n", "seed=5", "gconfig.top_k=7")

    assert loaded.config.trial_name == "s5"
    assert loaded.config.eval_gconfig == loaded.config.gconfig
    assert loaded.config.eval_gconfig.n_samples == 8
    assert str(loaded.origins["trial_name"]) == "run.yaml:8 (s${seed})"
    assert str(loaded.origins["eval_gconfig.top_k"]) == "run.yaml:7 (${gconfig})"


def test_interpolation_keeps_types_and_reads_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUN_NAME", "1e5")
    loaded = load(
        "valid_dataset:\n  use: x\n  args:\n    n: ${seed}\n    l: ['${seed}', a]\n"
        "    e: ${oc.env:RUN_NAME}\n"
    )

    assert loaded.config.valid_dataset.args == {"n": 1, "l": [1, "a"], "e": "1e5"}


def test_an_escaped_interpolation_is_text() -> None:
    loaded = load("valid_dataset: {use: x, args: {t: '\\${seed}'}}\n")

    assert loaded.config.valid_dataset.args == {"t": "${seed}"}


def test_interpolation_that_points_nowhere_or_in_circles() -> None:
    problems = refused("trial_name: ${sed}\ntool_parser: ${oc.env:NOT_SET_ANYWHERE}\n")

    assert problems[0] == "2 problems with the settings in run.yaml:"
    assert problems[1].startswith("run.yaml:7: trial_name: '${sed}' cannot be resolved:")
    assert problems[2].startswith("run.yaml:8: tool_parser: '${oc.env:NOT_SET_ANYWHERE}' cannot")
    assert (
        "cannot be resolved" in refused("trial_name: ${tool_parser}\ntool_parser: ${trial_name}")[1]
    )
    assert "got 'a${'" in refused("trial_name: a${\n")[1]


def test_a_file_gives_its_folder_as_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.yaml").write_text(LEAST, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    loaded = load_config("sub/run.yaml", ["seed=3"])

    assert loaded.base == tmp_path / "sub"
    assert loaded.source == "sub/run.yaml"
    assert loaded.config.train_dataset.use == "train.jsonl"
    assert str(loaded.origins["model"]) == "sub/run.yaml:2"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a settings file, got .*No such file"):
        load_config(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_settings_do_not_change_after_loading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().config.seed = 3
