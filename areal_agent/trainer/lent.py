"""What a run lends to its episodes: HTTP clients, and worker processes for reward functions."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from areal_agent.config.experiment import ExperimentConfig
from areal_agent.launch.reward_pool import RewardPool
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.context import use_clients
from areal_agent.rollout.reward_workers import use_rewards
from areal_agent.trainer.parts import most_episodes


class Lent(NamedTuple):
    """Open until the run ends."""

    clients: HttpClients
    rewards: RewardPool


async def lend_to_episodes(stack: AsyncExitStack, config: ExperimentConfig, logs: Path) -> Lent:
    """Open what episodes share, until `stack` is closed."""
    clients = await stack.enter_async_context(HttpClients(max_episodes=most_episodes(config)))
    stack.enter_context(use_clients(clients))
    rewards = await stack.enter_async_context(RewardPool(config.rollout.reward, log_dir=logs))
    stack.enter_context(use_rewards(rewards))
    return Lent(clients, rewards)
