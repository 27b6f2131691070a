"""Overrides as they are typed on a command line: ``section.key=value``."""

from areal_agent.config import yaml_text
from areal_agent.config.origins import Given, Origin
from areal_agent.errors import ConfigError


def apply(given: Given, override: str) -> None:
    """Put one override into what a file gave; a mapping replaces the one that was there.

    Raises:
        ConfigError: `override` is not ``a.b=c``, or its value opens a bracket or a quote and then
            does not parse.
    """
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(
            f"override {override!r}: expected section.key=value, for instance "
            "actor.optimizer.lr=1e-4"
        )
    if key.lstrip().startswith(("-", "+", "~")):
        raise ConfigError(
            f"override {override!r}: expected a name before '=': leave out {key.lstrip()[0]!r}; "
            "null takes a value away"
        )
    try:
        value = yaml_text.parse_value(text)
    except ConfigError as error:
        raise ConfigError(
            f"override {override!r}: {text!r} opens a bracket or a quote, so it is read as YAML: "
            f"{error}. To give it as text, quote it: {key}={_quoted(text)}"
        ) from error
    given.put(path, value, Origin("override", override))


def _quoted(text: str) -> str:
    return "'" + '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' + "'"
