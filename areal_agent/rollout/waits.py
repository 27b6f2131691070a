"""What a run waits for while no batch is ready, in words."""

from areal_agent.rollout.batch import RolloutStats
from areal_agent.rollout.gate import Gate
from areal_agent.rollout.workflow import RolloutWorkflow


def waits_for(gate: Gate, workflow: RolloutWorkflow, *, missing: int, has_prompts: bool) -> str:
    """Say it so that it goes on from "waiting for".

    Args:
        gate: what runs and what may start.
        workflow: may know more about its episodes.
        missing: groups that the next batch still needs; none left: the trainer is waited for.
        has_prompts: there are prompts that have not been started.
    """
    if missing <= 0:
        return "trainer: a batch is ready"
    if gate.running_groups:
        held = f"; at most {gate.limit} episodes while the servers have a queue"
        return workflow.waits_for() or (
            f"{gate.running_episodes} episodes of {gate.running_groups} groups; "
            f"{missing} groups to go{held if gate.held_by_limit else ''}"
        )
    if not has_prompts:
        return "nothing: the data has ended"
    if gate.paused:
        return "resume: rollouts are paused"
    if gate.groups_ahead <= 0:
        return f"weights newer than version {gate.version}"
    return "prompts"


def told(stats: RolloutStats) -> list[str]:
    """Say how the rollouts are, for a report."""
    return [
        f"waiting for {stats.waiting_for}",
        f"{stats.running_episodes} episodes of {stats.running} groups run, at most {stats.limit} "
        f"episodes; {stats.buffered} groups wait for the trainer",
        f"{stats.episodes} episodes have ended; {stats.consumed} groups were trained on, "
        f"{stats.dropped} dropped, {stats.swept} too old; version {stats.version}",
    ]
