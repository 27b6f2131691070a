"""What a batch of rollouts says about the policy and about how stale it is."""

from collections import Counter

from areal_agent.rollout.executor import GroupBatch
from areal_agent.trajectory import RolloutBatch
from areal_agent.types import TRAINABLE_OUTCOMES


def rollout_metrics(groups: GroupBatch, batch: RolloutBatch) -> dict[str, float]:
    """Rewards, lengths, outcomes and ages of one batch.

    Ages are in versions: version at consumption minus version of the token (``staleness/token``)
    or of a group's oldest token (``staleness/max``, ``staleness/groups_of_age_<n>``).
    """
    episodes = groups.episodes
    scored = [
        episode
        for episode in episodes
        if episode.outcome in TRAINABLE_OUTCOMES and episode.reward is not None
    ]
    n = max(len(scored), 1)
    outcomes = Counter(episode.outcome for episode in episodes)
    versions = batch.versions[batch.loss_mask]
    spanning = sum(episode.versions is not None and _spans(episode.versions) for episode in scored)
    rewards = [episode.reward for episode in scored if episode.reward is not None]
    out: dict[str, float] = {
        "rollout/reward": sum(rewards) / n,
        "rollout/episodes": len(episodes),
        "rollout/episode_seconds": sum(episode.seconds for episode in scored) / n,
        "rollout/turns": sum(len(episode.interactions) for episode in scored) / n,
        "rollout/output_tokens": batch.n_loss_tokens / n,
        "rollout/truncated_share": outcomes["truncated"] / max(len(episodes), 1),
        "rollout/episodes_spanning_versions": spanning,
        "staleness/max": max(groups.ages, default=0),
        "staleness/mean": sum(groups.ages) / max(len(groups.ages), 1),
        "staleness/token_mean": float((groups.version - versions).float().mean()),
        "staleness/versions_in_batch": len(versions.unique()),
    }
    ages = Counter(groups.ages)
    out |= {f"staleness/groups_of_age_{n}": ages[n] for n in range(max(ages, default=0) + 1)}
    names = {name for episode in scored for name in episode.metrics}
    for name in sorted(names):
        values = [episode.metrics[name] for episode in scored if name in episode.metrics]
        out[f"rollout/{name}"] = sum(values) / len(values)
    return out


def _spans(versions: tuple[int, int]) -> bool:
    return versions[0] != versions[1]
