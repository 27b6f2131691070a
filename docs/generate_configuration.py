"""Write docs/configuration.md from the settings' help strings; ``--check`` only compares."""

import sys
from pathlib import Path

from areal_agent.config.experiment import ExperimentConfig, SFTConfig
from areal_agent.config.reference import reference_markdown

PAGE = Path(__file__).with_name("configuration.md")


def page() -> str:
    """Return what the page should hold."""
    return reference_markdown(
        {
            "Reinforcement learning": ExperimentConfig,
            "Supervised fine-tuning": SFTConfig,
        }
    )


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is up to date. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(f"expected no argument or --check, got {arguments}", file=sys.stderr)
        return 2
    if arguments == ["--check"]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE.name} is out of date: run docs/generate_configuration.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
