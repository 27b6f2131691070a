"""When something is due: every so many epochs, steps or seconds, whichever comes first."""

import time
from collections.abc import Callable, Mapping
from typing import Self

from areal_agent.config.experiment import FrequencyConfig


class FrequencyControl:
    """Counts epochs, steps and seconds; each of the three fires and starts again by itself.

    One control serves one user: two that share it would take each other's turns.
    """

    def __init__(
        self,
        *,
        freq_epochs: int | None = None,
        freq_steps: int | None = None,
        freq_secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._freq_epochs = freq_epochs
        self._freq_steps = freq_steps
        self._freq_secs = freq_secs
        self._clock = clock
        self._epochs = 0
        self._steps = 0
        self._since = clock()

    @classmethod
    def of(cls, config: FrequencyConfig, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Make the control that settings describe."""
        return cls(
            freq_epochs=config.freq_epochs,
            freq_steps=config.freq_steps,
            freq_secs=config.freq_secs,
            clock=clock,
        )

    def check(self, *, epochs: int = 0, steps: int = 1) -> bool:
        """Count `epochs` and `steps` that have ended since the last check; say whether it is due.

        Call it once after each step: with ``freq_steps=2`` it answers False, True, False, True.
        """
        self._epochs += epochs
        self._steps += steps
        due = False
        if self._freq_epochs is not None and self._epochs >= self._freq_epochs:
            self._epochs, due = 0, True
        if self._freq_steps is not None and self._steps >= self._freq_steps:
            self._steps, due = 0, True
        if self._freq_secs is not None and self._clock() - self._since >= self._freq_secs:
            self._since, due = self._clock(), True
        return due

    def state_dict(self) -> dict[str, float]:
        """What was counted since each fired last; the frequencies stay with the settings."""
        return {
            "epochs": self._epochs,
            "steps": self._steps,
            "secs": self._clock() - self._since,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on counting from what `state_dict` gave."""
        self._epochs = int(state["epochs"])
        self._steps = int(state["steps"])
        self._since = self._clock() - state["secs"]
