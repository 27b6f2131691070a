"""S35 for settings: byte-order mark, Windows line ends and a locale that is not UTF-8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_support import LEAST

from areal_agent.config.load import load_config
from areal_agent.errors import ConfigError

TEXT = LEAST + "trial_name: t\ntool_parser: 'größe ≥ 1'\ngconfig:\n  stop:\n  - |\n    a\n    b\n"
SHOW = """
import sys
from areal_agent.config.load import load_config
for path in sys.argv[1:]:
    print(load_config(path).config.model_dump_json().encode().hex())
"""


def test_same_values_in_every_encoding_and_locale(tmp_path: Path) -> None:
    crlf = TEXT.replace("\n", "\r\n")
    variants = {
        "lf": TEXT.encode(),
        "crlf": crlf.encode(),
        "bom_lf": b"\xef\xbb\xbf" + TEXT.encode(),
        "bom_crlf": b"\xef\xbb\xbf" + crlf.encode(),
    }
    for name, data in variants.items():
        (tmp_path / f"{name}.yaml").write_bytes(data)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    shown = subprocess.run(
        [sys.executable, "-c", SHOW, *(f"{tmp_path}/{name}.yaml" for name in variants)],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()

    assert len(shown) == 4
    assert len(set(shown)) == 1
    values = json.loads(bytes.fromhex(shown[0]))
    assert values["experiment_name"] == "demo"
    assert values["tool_parser"] == "größe ≥ 1"
    assert values["gconfig"]["stop"] == ["a\nb\n"]


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(TEXT.encode("latin-1", "replace"))

    with pytest.raises(ConfigError, match=r"latin.yaml:8: expected UTF-8 text, got the byte 0xf6"):
        load_config(path)


def test_settings_need_no_torch() -> None:
    program = (
        "import sys, areal_agent.config.load as load, areal_agent.config.render as render, "
        "areal_agent.registry, areal_agent.config.reference\n"
        f"print(len(render.render_config(load.parse_config({LEAST!r}))) > 100)\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'omegaconf'} & set(sys.modules)))"
    )

    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    ).stdout

    assert shown.split("\n")[:2] == ["True", "[]"]
