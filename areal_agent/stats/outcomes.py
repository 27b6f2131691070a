"""What became of episodes, in words that tell "the model was wrong" from "we broke"."""

from collections.abc import Mapping

from areal_agent.types import TRAINABLE_OUTCOMES

_NOT_FAILED = frozenset({*TRAINABLE_OUTCOMES, "rejected", "stale"})


def outcome_facts(
    outcomes: Mapping[str, float], dropped: Mapping[str, float], *, wrong: float
) -> list[str]:
    """Say how many episodes ended how; what did not occur is left out.

    Args:
        outcomes: episodes by outcome.
        dropped: groups that were left out of training, by reason.
        wrong: episodes that were judged and earned nothing.
    """
    judged = sum(outcomes.get(name, 0) for name in TRAINABLE_OUTCOMES) + outcomes.get("stale", 0)
    failed = {name: n for name, n in outcomes.items() if name not in _NOT_FAILED and n}
    facts = [f"model wrong {wrong:,.0f} of {judged:,.0f}"] if judged else []
    facts += [
        f"{name} {outcomes[name]:,.0f}" for name in ("rejected", "stale") if outcomes.get(name)
    ]
    if failed:
        facts.append(f"we failed {sum(failed.values()):,.0f} ({_listed(failed)})")
    lost = {name: n for name, n in dropped.items() if n}
    if lost:
        facts.append(f"groups dropped {sum(lost.values()):,.0f} ({_listed(lost)})")
    return facts


def counts_under(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The metrics whose names begin with `prefix`, without it."""
    return {name[len(prefix) :]: n for name, n in metrics.items() if name.startswith(prefix)}


def _listed(counts: Mapping[str, float]) -> str:
    by_size = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {n:,.0f}" for name, n in by_size)
