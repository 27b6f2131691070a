"""Counters of an engine: written by its thread, read by anyone."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

_MERGE_SECONDS = 0.02
_SPANS = 4096


@dataclass(slots=True)
class Meters:
    """Totals since the start; they only grow."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    """Prompt tokens that did not have to be computed."""
    requests: int = 0
    """Requests that ended, whatever way."""
    steps: int = 0
    updates: int = 0
    busy_seconds: float = 0.0
    """Time spent in prefill and decoding."""
    _spans: deque[tuple[float, float]] = field(
        default_factory=lambda: deque[tuple[float, float]](maxlen=_SPANS)
    )

    def busy(self, seconds: float) -> None:
        """Note that a step of `seconds` has just ended."""
        end = time.time()
        start = end - seconds
        self.busy_seconds += seconds
        if self._spans and start - self._spans[-1][1] < _MERGE_SECONDS:
            start = self._spans.pop()[0]
        self._spans.append((start, end))

    def spans(self) -> list[tuple[float, float]]:
        """Recent busy intervals in `time.time()`; gaps under 20 ms are closed."""
        return list(self._spans)

    def snapshot(self) -> dict[str, Any]:
        """All counters by name."""
        return {
            "generated_tokens": self.generated_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prefix_hit_tokens": self.prefix_hit_tokens,
            "requests": self.requests,
            "steps": self.steps,
            "updates": self.updates,
            "busy_seconds": self.busy_seconds,
        }
