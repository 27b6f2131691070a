"""S31: parse, dump, parse is the identity; no value changes its meaning on the way."""

import json
import math
from typing import Any

import pytest
from config_support import load
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agent.config import yaml_text
from areal_agent.config.experiment import ExperimentConfig, SFTConfig
from areal_agent.config.load import dump_config, parse_config
from areal_agent.config.render import config_as_json, render_config

TRICKY = [
    None, "null", "~", "Null", "1e5", "1e-5", 1e-5, 1e5, 1e22, "0", 0, "", " ", "[a]", "{a: b}",
    "a: b", "a #b", "- a", "yes", "no", "on", "true", True, "007", "0x1f", "1_000", "12:30",
    "2024-01-31", "1.", ".5", "-", "?", "!", "&a", "*a", "%", "@x", "`x", "|", ">", "'", '"', "\\",
    "<<", "=", "???", ".inf", "nan", "${seed}", "\\${seed}", "\\\\${a}", "$${a}", "${", "a\nb",
    "a\r\nb", "a\rb", "\tb", " b ", "\x85", "\u2028", "\ufeff", "\x00", "é", "🂡", "..."
]  # fmt: skip


def as_args(value: Any) -> ExperimentConfig:
    return load().config.model_copy(
        update={"train_dataset": load().config.train_dataset.model_copy(update={"args": value})}
    )


@pytest.mark.parametrize("value", TRICKY, ids=repr)
def test_tricky_values_survive_dump_and_override(value: Any) -> None:
    config = as_args({"v": value, "deep": [{"w": value}]})

    again = parse_config(dump_config(config)).config

    assert again == config
    assert type(again.train_dataset.args["v"]) is type(value)
    typed = yaml_text.parse_value(yaml_text.dump_value(value))
    assert typed == value
    assert type(typed) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("~", None),
        ('"null"', "null"),
        ('"1e5"', "1e5"),
        ('"0"', "0"),
        ("0", 0),
        ("1e5", 100000.0),
        ("1e-5", 1e-5),
        ('""', ""),
        ('"[a]"', "[a]"),
        ('"a: b"', "a: b"),
        ('{"FLAG": "0"}', {"FLAG": "0"}),
        ("no", "no"),
        ("007", "007"),
        ("[1, '1', null]", [1, "1", None]),
    ],
)
def test_one_spelling_means_the_same_in_a_file_and_on_the_command_line(
    text: str, value: Any
) -> None:
    in_file = load(f"valid_dataset:\n  use: x\n  args:\n    v: {text}\n").config
    typed = load("valid_dataset: {use: x}\n", f"valid_dataset.args.v={text}").config

    assert in_file.valid_dataset.args == {"v": value}
    assert typed == in_file
    assert type(typed.valid_dataset.args["v"]) is type(value)


def test_only_brackets_and_quotes_are_more_than_one_scalar_on_the_command_line() -> None:
    assert yaml_text.parse_value("a: b") == "a: b"
    assert yaml_text.parse_value("a #b") == "a #b"
    assert yaml_text.parse_value("- a") == "- a"
    assert yaml_text.parse_value("") == ""


def test_typed_fields_keep_null_and_text() -> None:
    assert load("tool_parser: hermes\n", "tool_parser=null").config.tool_parser is None
    assert load("", 'tool_parser="null"').config.tool_parser == "null"
    assert load("", 'trial_name="1e5"').config.trial_name == "1e5"
    assert load("", "actor.optimizer.lr=1e-5").config.actor.optimizer.lr == 1e-5
    assert load("actor: {optimizer: {lr: 1e-5}}\n").config.actor.optimizer.lr == 1e-5


def test_a_null_given_is_not_the_default() -> None:
    config = load("", "evaluator.n_problems=null", "saver.keep=null").config

    again = parse_config(dump_config(config)).config

    assert again.evaluator.n_problems is None
    assert again.saver.keep is None
    assert load().config.evaluator.n_problems == 256


def test_infinity_in_arguments_survives() -> None:
    config = as_args({"v": [math.inf, -math.inf]})

    assert parse_config(dump_config(config)).config == config


def test_other_processes_read_the_same_from_json() -> None:
    config = load("gconfig: {stop: ['1e5', 'null']}\n", "evaluator.n_problems=null").config

    assert ExperimentConfig.model_validate_json(config.model_dump_json()) == config
    assert config_as_json(load())["config"] == json.loads(load().config.model_dump_json())


def test_defaults_are_valid_as_they_stand() -> None:
    dumped = SFTConfig(experiment_name="x")

    assert SFTConfig.model_validate(dumped.model_dump()) == dumped
    assert ExperimentConfig.model_validate(load().config.model_dump()) == load().config


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS | st.sampled_from(TRICKY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@settings(deadline=None)
@given(
    name=NAMES,
    parser=st.none() | TEXT,
    args=st.dictionaries(TEXT, VALUES, max_size=4),
    stop=st.lists(TEXT, max_size=3),
    lr=st.floats(min_value=1e-30, max_value=1e30),
    n_problems=st.none() | st.integers(1, 10**9),
    decoupled=st.booleans(),
)
def test_parse_dump_parse_is_the_identity(
    name: str,
    parser: str | None,
    args: dict[str, Any],
    stop: list[str],
    lr: float,
    n_problems: int | None,
    decoupled: bool,
) -> None:
    config = ExperimentConfig.model_validate(
        {
            "experiment_name": name,
            "model": "builtin:calculator",
            "tool_parser": parser,
            "workflow": {"use": "rlvr", "args": args},
            "train_dataset": {"use": "x.jsonl"},
            "total_train_epochs": 2,
            "gconfig": {"n_samples": 4, "stop": stop},
            "actor": {"optimizer": {"lr": lr}},
            "evaluator": {"n_problems": n_problems},
            "algorithm": {"use_decoupled_loss": decoupled},
        }
    )

    loaded = parse_config(dump_config(config))

    assert loaded.config == config
    assert dump_config(loaded.config) == dump_config(config)
    assert parse_config(render_config(loaded)).config == config


@settings(deadline=None)
@given(VALUES)
def test_a_value_on_one_line_reads_back(value: Any) -> None:
    written = yaml_text.dump_value(value)

    assert yaml_text.parse_value(written) == value
    assert "\n" not in written
