"""What ``areal-agent config`` prints, and the generated reference."""

import runpy
from pathlib import Path

from config_support import load

from areal_agent.config.load import parse_config
from areal_agent.config.render import config_as_json, json_schema, render_config

GENERATE = Path(__file__).parents[3] / "docs" / "generate_configuration.py"


def test_each_value_stands_beside_its_origin() -> None:
    text = render_config(load("saver:\n  keep: 5\n", 'trial_name="1e5"', "eval_gconfig.stop=[a]"))
    lines = {line.split(":")[0]: line for line in text.splitlines()}

    assert lines["trial_name"].split("  # ")[1] == 'override trial_name="1e5"'
    assert lines["  keep"].split("  # ")[1] == "run.yaml:8"
    assert lines["  stop"].startswith("  stop: [a]")
    assert lines["seed"].endswith("# default")
    columns = {line.index("  # ") for line in text.splitlines() if "  # " in line}
    assert len(columns) == 1


def test_the_output_is_a_settings_file() -> None:
    loaded = load(
        "valid_dataset: {use: x, args: {'a b': 1, c: {d: null}, e: {}, '1': '${seed}'}}\n",
        "valid_dataset.args.t='\\${x} # y'",
    )

    again = parse_config(render_config(loaded))

    assert again.config == loaded.config
    assert again.config.valid_dataset.args["t"] == "${x} # y"


def test_comments_stay_on_their_line() -> None:
    loaded = load("", 'tool_parser="a\\nb\nc: d"')

    assert parse_config(render_config(loaded)).config == loaded.config


def test_json_has_config_and_origins() -> None:
    shown = config_as_json(load("", "seed=4"))

    assert shown["config"]["seed"] == 4
    assert shown["origins"]["seed"] == "override seed=4"
    assert shown["origins"]["model"] == "run.yaml:2"


def test_schema_says_what_each_setting_is() -> None:
    schema = json_schema()

    assert schema["additionalProperties"] is False
    assert schema["properties"]["seed"]["description"] == "Every random choice derives from it."
    assert {"experiment_name", "model"} <= set(schema["required"])


def test_the_reference_is_up_to_date() -> None:
    main = runpy.run_path(str(GENERATE))["main"]

    assert main(["--check"]) == 0, "run docs/generate_configuration.py"


def test_the_reference_names_every_setting() -> None:
    page = runpy.run_path(str(GENERATE))["page"]()

    assert "`8` in `gconfig`, `1` in `eval_gconfig`" in page
    assert "| `top_p` | number, > 0.0, ≤ 1.0 | `1.0` | Sample from" in page
    for name in load().origins:
        assert f"| `{name.split('.')[-1]}` |" in page
