"""Exceptions between processes: as data in the worker, as exceptions again in the driver."""

import traceback
from collections.abc import Mapping

from areal_agent import errors
from areal_agent.errors import ArealAgentError, ConfigError

_MAX_TRACEBACK_CHARS = 8_000
_MAX_MESSAGE_CHARS = 2_000


def describe(error: BaseException) -> dict[str, str]:
    """Turn an exception into data; also one whose text cannot be had."""
    try:
        message = str(error)
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        trace = "" if cause is None else "".join(traceback.format_exception(cause))
    except Exception as inner:  # noqa: BLE001 - str() of a user's exception may do anything
        message = f"<its text could not be had: {type(inner).__name__}>"
        trace = "".join(traceback.format_tb(error.__traceback__))
    return {
        "type": type(error).__name__,
        "message": _encodable(message)[:_MAX_MESSAGE_CHARS],
        "traceback": _encodable(trace)[-_MAX_TRACEBACK_CHARS:],
    }


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def revive(error: Mapping[str, str], *, otherwise: type[ArealAgentError]) -> ArealAgentError:
    """Make the exception that a worker named; what is none of this package's is `otherwise`."""
    kind = getattr(errors, error["type"], None)
    if isinstance(kind, type) and issubclass(kind, ArealAgentError):
        made = kind(error["message"])
    else:
        made = otherwise(f"{error['type']}: {error['message']}")
    made.add_note(f"In the worker process:\n{error['traceback']}")
    return made
