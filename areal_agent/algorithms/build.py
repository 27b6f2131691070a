"""Algorithms and losses by name, so that they can be named in settings and in other processes."""

from collections.abc import Mapping
from typing import Any

from areal_agent import registry
from areal_agent.algorithms.base import Algorithm, Loss

BUILTIN: Mapping[str, str] = {
    "grpo": "areal_agent.algorithms.grpo:Grpo",
    "sft": "areal_agent.algorithms.sft:Sft",
}
"""Short names. Each class has ``from_settings`` and ``loss``."""


def _make(name: str, settings: Mapping[str, Any]) -> Any:
    return registry.resolve(name, kind="algorithms", builtin=BUILTIN).from_settings(settings)


def build_algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """Make the algorithm `name` (short name or ``module:Class``) from its dumped settings.

    Raises:
        ConfigError: the name is unknown, or the settings do not fit it.
    """
    return _make(name, settings)


def build_loss(name: str, settings: Mapping[str, Any]) -> Loss:
    """Make the loss of `name` alone, which need not be a whole `Algorithm`.

    Raises:
        ConfigError: as for `build_algorithm`.
    """
    return _make(name, settings).loss
