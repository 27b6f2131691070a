"""Which finished groups are trained on, and why the others are not."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from areal_agent.algorithms.advantages import rewards_differ
from areal_agent.errors import ConfigError
from areal_agent.rollout.outcomes import describe, interrupts
from areal_agent.rollout.plain import shown
from areal_agent.trajectory import TrajectoryGroup
from areal_agent.types import Failure

ShouldAccept = Callable[[TrajectoryGroup], object]
"""Returns True or False: says whether a finished group may be trained on."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a group is not trained on."""

    reason: str
    """One word: ``zero_variance``, ``refused`` or ``filter_error``; names a metric."""
    cause: str
    """The same in words, for an error."""
    failure: Failure | None = None


_ZERO_VARIANCE = Refusal(
    "zero_variance", "all rewards of the group are equal (rollout.dynamic_sampling)"
)
_REFUSED = Refusal("refused", "should_accept refused the group")


class GroupFilter:
    """Asks each of its parts in turn; the first refusal counts."""

    def __init__(
        self, should_accept: ShouldAccept | None = None, *, dynamic_sampling: bool = False
    ) -> None:
        """Take the parts.

        Raises:
            ConfigError: `should_accept` is no plain function of a group.
        """
        if should_accept is not None:
            check_filter(should_accept)
        self._should_accept = should_accept
        self._dynamic_sampling = dynamic_sampling

    def refusal(self, group: TrajectoryGroup) -> Refusal | None:
        """Return why `group` is not trained on, or None when it is. Raises nothing."""
        if self._dynamic_sampling and not rewards_differ(group.rewards):
            return _ZERO_VARIANCE
        if self._should_accept is None:
            return None
        try:
            return None if _verdict(self._should_accept(group)) else _REFUSED
        except BaseException as error:
            # A user's filter must not end the run: SystemExit would, from within a task.
            if interrupts(error):
                raise
            failure = describe(error, "accept")
            return Refusal("filter_error", "should_accept failed", failure)


def _verdict(answer: object) -> bool:
    """Return a filter's answer; anything may be true of what is no answer, such as a text."""
    if isinstance(answer, Coroutine):
        cast("Coroutine[Any, Any, object]", answer).close()
    if answer is None or isinstance(answer, str | bytes | Awaitable):
        raise TypeError(f"expected True or False from should_accept, got {shown(answer)}")
    return bool(answer)


def check_filter(should_accept: object) -> None:
    """Refuse what cannot be a filter.

    Raises:
        ConfigError: it is no function, is async, or takes no group.
    """
    if not callable(should_accept):
        raise ConfigError(
            f"expected a function as should_accept, got {should_accept!r:.120}: write "
            "`def should_accept(group): ...`, which returns True or False"
        )
    call = getattr(type(should_accept), "__call__", None)  # noqa: B004 - not whether it is there
    if inspect.iscoroutinefunction(should_accept) or inspect.iscoroutinefunction(call):
        raise ConfigError(
            "should_accept is async, but groups are filtered at once: write `def`, and do what "
            "takes time in the workflow or the reward"
        )
    try:
        inspect.signature(should_accept).bind(None)
    except TypeError as error:
        raise ConfigError(f"should_accept must take one argument, the group: {error}") from error
    except ValueError:
        return  # built-in functions do not tell what they take
