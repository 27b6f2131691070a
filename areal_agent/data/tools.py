"""Tools: how a Python function is described to a model."""

from collections.abc import Callable
from typing import Any, cast

from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
    get_json_schema,
)

from areal_agent.errors import DataError


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function to a model, from its type hints and its docstring.

    Raises:
        DataError: a hint, the docstring or an argument's line in it is missing.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        schema = cast("dict[str, Any]", get_json_schema(function))
    except (DocstringParsingException, TypeHintParsingException, ValueError) as error:
        raise DataError(
            f"the tool {name!r} cannot be described to a model ({error}): give every argument a "
            "type hint and a line under 'Args:' in a Google-style docstring"
        ) from error
    schema["function"].pop("return", None)
    return schema
