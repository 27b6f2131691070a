"""An agent that runs in worker processes, as an agent of this process."""

from contextlib import AsyncExitStack
from typing import Any

from areal_agent.launch.agent_pool import AgentPool
from areal_agent.launch.agent_process import AgentSpec
from areal_agent.rollout.clock import uncounted
from areal_agent.rollout.live import doing


class ProcessAgent:
    """Runs each episode in a process that no other episode uses at the time.

    Waiting for a process is not counted as the episode's time. An episode that is cancelled, or
    runs out of time, takes its process with it.
    """

    def __init__(self, pool: AgentPool, agent: AgentSpec) -> None:
        self._pool = pool
        self._agent = agent

    async def run(self, data: dict[str, Any], base_url: str, api_key: str) -> Any:
        """See `Agent`."""
        async with AsyncExitStack() as stack:
            with uncounted(), doing("a process for its agent"):
                process = await stack.enter_async_context(self._pool.lend())
            with doing(f"its agent in process {process.pid}"):
                return await process.run(self._agent, data, base_url=base_url, api_key=api_key)
