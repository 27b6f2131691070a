"""`GET /metrics`: the engine's counters for Prometheus, in a registry of their own."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from areal_agent.inference.engine.engine import Engine

_COUNTERS = {
    "generated_tokens": "Tokens sampled.",
    "prompt_tokens": "Prompt tokens taken in.",
    "prefix_hit_tokens": "Prompt tokens found in the cache.",
    "requests": "Requests that ended.",
    "busy_seconds": "Seconds spent in prefill and decoding.",
    "updates": "Weight updates.",
}
_GAUGES = {
    "running": "Requests that are being decoded.",
    "waiting": "Requests that wait for a slot.",
    "slots": "Requests that can be decoded together.",
    "version": "Version of the weights.",
}
_PREFIX = "areal_agent_engine_"


class EngineCollector:
    """Reads the engine when Prometheus asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now."""
        stats = self._engine.stats()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=stats[name])
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=stats[name])


def render(engine: Engine) -> bytes:
    """The page that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))  # pyright: ignore[reportArgumentType]
    return generate_latest(registry)
