"""A task that any model can be trained on: a random one too gets different rewards in a group."""

import asyncio
import time
from typing import Any

from areal_agent import InferenceEngine, RolloutWorkflow


def problems(n: int = 16) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": f"{i} + {i}?"}]} for i in range(n)]


class Failing(RolloutWorkflow):
    """Cannot do anything."""

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> None:
        raise ZeroDivisionError("the workflow divides by nothing")


class Hangs(RolloutWorkflow):
    """Holds up everything once, and waits for what never comes."""

    def __init__(self) -> None:
        self.has_blocked = False

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> None:
        if not self.has_blocked:
            self.has_blocked = True
            time.sleep(2.0)  # noqa: ASYNC251 - what is to be found
        await self.somebody_who_never_answers()

    async def somebody_who_never_answers(self) -> None:
        await asyncio.Event().wait()


class Asks:
    """An agent that asks once; always worth the same."""

    async def run(self, data: dict[str, Any], client: Any) -> float:
        await client.chat.completions.create(model="policy", messages=data["messages"])
        return 0.5
