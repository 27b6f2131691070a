"""What one episode has used of what it may use."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from areal_agent.config.rollout_limits import LimitName, LimitsConfig, OnLimit
from areal_agent.errors import LimitReached
from areal_agent.rollout.live import current_episode
from areal_agent.rollout.stoppable import Stoppable
from areal_agent.types import GenerationHyperparameters, ModelResponse

if TYPE_CHECKING:
    from areal_agent.trajectory import Trajectory

T = TypeVar("T")

Capture = Callable[[float], "Sequence[Trajectory] | None"]
"""Gives the rows of what an episode did so far, with this reward; None when there is nothing."""


class EpisodeLimits:
    """Counts what an episode uses. Once it hit a limit, it has hit it, whatever its code does."""

    def __init__(self, config: LimitsConfig) -> None:
        self.config = config
        self.hit: LimitName | None = None
        """The first limit that was hit."""
        self.capture: Capture | None = None
        """How to keep what there is; None: from the calls that the engine saw."""
        self.output_tokens = 0
        """Sampled so far."""
        self._turns = 0
        self._asked_tools = 0
        self._run_tools = 0

    @property
    def policy(self) -> OnLimit:
        """What the settings say of the limit that was hit."""
        assert self.hit is not None, "no limit was hit"
        return getattr(self.config, f"on_{self.hit}")

    def begin_call(self, asked: GenerationHyperparameters) -> int:
        """Count a call of the model; returns how many tokens it may sample.

        Raises:
            LimitReached: there may be no more calls, or no more tokens, or it hit another limit.
        """
        config, most = self.config, asked.max_new_tokens
        if self.hit is not None:
            raise self._reached(self.hit, "call the model again")
        if config.turns is not None and self._turns >= config.turns:
            raise self._reached("turns", "call the model again")
        if config.output_tokens is not None:
            most = min(most, config.output_tokens - self.output_tokens)
            if most <= 0:
                raise self._reached("output_tokens", "sample more tokens")
        self._turns += 1
        return most

    def end_call(
        self, asked: GenerationHyperparameters, most: int, response: ModelResponse
    ) -> None:
        """Count what a call sampled that might sample `most`."""
        self.output_tokens += len(response.output_tokens)
        was_cut = len(response.output_tokens) >= most and response.stop_reason == "length"
        if most < asked.max_new_tokens and was_cut:
            self._hit("output_tokens")

    def asked_for_tools(self, n: int) -> None:
        """Count calls of tools that a reply asks for, before any of them is run.

        Raises:
            LimitReached: they are too many.
        """
        self._asked_tools += n
        self._check_tools()

    def runs_tool(self) -> None:
        """Count a tool that is about to run. Whether asked for or run, a call counts once.

        Raises:
            LimitReached: it is one too many.
        """
        self._run_tools += 1
        self._check_tools()

    def out_of_time(self) -> None:
        """The episode took too long."""
        self._hit("seconds")

    def _check_tools(self) -> None:
        most = self.config.tool_calls
        if most is not None and max(self._asked_tools, self._run_tools) > most:
            raise self._reached("tool_calls", "call more tools")

    def _reached(self, name: LimitName, wish: str) -> LimitReached:
        self._hit(name)
        value = getattr(self.config, name)
        return LimitReached(
            f"the episode may not {wish}: it has reached rollout.limits.{name} {value}"
        )

    def _hit(self, name: LimitName) -> None:
        self.hit = name if self.hit is None else self.hit


def current_limits() -> EpisodeLimits:
    """Return what the running episode counts with; outside of one, something without limits."""
    episode = current_episode()
    return EpisodeLimits(_NONE) if episode is None or episode.limits is None else episode.limits


async def stoppable(code: Coroutine[Any, Any, T]) -> T:
    """Await code of users that lies within an episode; see `Stoppable`."""
    episode = current_episode()
    nested = [] if episode is None else episode.nested
    seconds = current_limits().config.grace_seconds
    return await Stoppable(code, grace_seconds=seconds, nested=nested)


_NONE = LimitsConfig(turns=None, output_tokens=None, tool_calls=None)
