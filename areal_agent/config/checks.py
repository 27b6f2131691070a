"""What cannot be right about settings that are each right on their own."""

from collections.abc import Iterator

from areal_agent.config.base import ConfigModel
from areal_agent.config.yaml_text import Path


def check(config: ConfigModel) -> Iterator[tuple[Path, str]]:
    """Yield each contradiction between settings, with the path of the one to change first."""
    del config
    yield from ()
