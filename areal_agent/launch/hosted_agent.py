"""An agent as a worker process runs it: made by name, sync or async, and its reward as JSON."""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from areal_agent.errors import ConfigError
from areal_agent.registry import bind, construct, is_function_of_data, resolve, resolve_args
from areal_agent.rewarding import as_reward

EXTRAS = ("base_url", "api_key", "client")
"""What `run` may name besides the data."""

_INLINE_ONLY = ("http_client", "httpx2_client", "engine")

_TEXT = (str, bytes, bytearray, memoryview)


class HostedAgent:
    """An agent that was found by its name."""

    def __init__(self, name: str, run: Callable[..., Any]) -> None:
        """Check what `run` asks for, and import the client's package if that is among it.

        Raises:
            ConfigError: it takes no data, or names what there is only inline.
        """
        self._run = run
        self._is_async = inspect.iscoroutinefunction(run)
        signature = inspect.signature(run)
        try:
            signature.bind_partial({})
        except TypeError:
            raise ConfigError(
                f"{name}: expected `def run(self, data, ...)`, got {signature}"
            ) from None
        takes_all = any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()
        )
        named = [part for part in _INLINE_ONLY if part in signature.parameters]
        if named:
            raise ConfigError(
                f"{name} names {' and '.join(named)}, which a worker process does not have: name "
                "client, base_url or api_key, or set gateway.hosting to inline"
            )
        self._wants = [part for part in EXTRAS if takes_all or part in signature.parameters]
        if "client" in self._wants:
            importlib.import_module("openai")  # before the first episode's time begins

    def __call__(self, data: Mapping[str, Any], *, base_url: str, api_key: str) -> Any:
        """Run one episode; returns its reward as JSON can hold it.

        Raises:
            RewardError: what was returned is no reward.
            BaseException: what the agent raised.
        """
        at = {"base_url": base_url, "api_key": api_key}
        extra = {name: at[name] for name in self._wants if name in at}
        if self._is_async:
            return plain(asyncio.run(self._asynchronous(data, extra, at)))
        if "client" not in self._wants:
            return plain(self._run(data, **extra))
        from openai import OpenAI

        with OpenAI(base_url=base_url, api_key=api_key) as client:
            return plain(self._run(data, **extra, client=client))

    async def _asynchronous(
        self, data: Mapping[str, Any], extra: Mapping[str, str], at: Mapping[str, str]
    ) -> Any:
        if "client" not in self._wants:
            return await self._run(data, **extra)
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=at["base_url"], api_key=at["api_key"]) as client:
            return await self._run(data, **extra, client=client)


def load_agent(use: str, args: Mapping[str, Any], base: Path) -> HostedAgent:
    """Find an agent: a class or an instance with `run`, a function of data, or what makes one.

    A function is an agent itself when its first parameter is called ``data``; `args` are then
    handed to it with each call.

    Raises:
        ConfigError: it cannot be found or made, or is no agent.
    """
    found = resolve(use, kind="workflows", base=base)
    args = resolve_args(args, base)
    if not isinstance(found, type) and callable(getattr(found, "run", None)):
        if args:
            raise ConfigError(f"the agent {use} is an instance already and takes no args")
        return HostedAgent(use, found.run)
    if not callable(found):
        raise ConfigError(f"expected an agent, its class or a function at {use}, got {found!r:.80}")
    if is_function_of_data(found):
        return HostedAgent(use, bind(found, args, use))
    if hasattr(found, "arun_episode"):
        raise ConfigError(
            f"{use} is a RolloutWorkflow, which works with the run's own engine: set "
            "gateway.hosting to inline"
        )
    made = construct(found, args, use)
    if not callable(getattr(made, "run", None)):
        raise ConfigError(
            f"expected {use} to give an agent with `run(self, data, ...)`, got "
            f"{type(made).__name__}"
        )
    return HostedAgent(use, made.run)


def plain(value: object) -> Any:
    """Return what an agent returned as JSON can hold it; the driver judges whether it is a reward.

    Raises:
        RewardError: it is neither numbers nor None.
    """
    if isinstance(value, Mapping):
        rewards = cast("Mapping[object, object]", value)
        return {str(name): _scalar(one) for name, one in rewards.items()}
    if isinstance(value, Sequence) and not isinstance(value, _TEXT):
        return [_scalar(one) for one in cast("Sequence[object]", value)]
    return _scalar(value)


def _scalar(value: object) -> float | None:
    return None if value is None else as_reward(value)
