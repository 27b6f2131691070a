"""How much of the trainer's time the servers use: arithmetic on intervals of time.

A span is (start, end) in seconds of one clock. Spans may come in any order and overlap.
"""

import math
from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as disjoint spans in order; empty ones are left out."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(first: Iterable[Span], second: Iterable[Span]) -> list[Span]:
    """Return the time that lies in both, as disjoint spans in order."""
    a, b = union(first), union(second)
    out: list[Span] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def difference(first: Iterable[Span], second: Iterable[Span]) -> list[Span]:
    """Return the time that lies in the first and not in the second, as disjoint spans in order."""
    out: list[Span] = []
    holes = union(second)
    for start, end in union(first):
        for hole_start, hole_end in holes:
            if hole_end <= start:
                continue
            if hole_start >= end:
                break
            out.append((start, min(hole_start, end)))
            start = max(start, hole_end)
        out.append((start, end))
    return union(out)


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds that lie in at least one span."""
    return sum(end - start for start, end in union(spans))


def covered_between(spans: Iterable[Span], times: Sequence[float]) -> list[float]:
    """For each time, the seconds in `spans` up to it that no earlier entry counted."""
    merged = union(spans)
    out: list[float] = []
    last = -math.inf
    for time in times:
        out.append(covered(intersection(merged, [(last, time)])))
        last = max(last, time)
    return out


def overlap_share(
    trainer_spans: Iterable[Span], server_spans: Iterable[Span], *, window: Span | None = None
) -> float | None:
    """Share of the trainer's busy time in which a server is generating.

    Args:
        trainer_spans: when the trainer computed.
        server_spans: when any server was generating.
        window: only this time counts. None takes all.

    Returns:
        0 to 1, or None when the trainer was never busy.
    """
    busy = union(trainer_spans) if window is None else intersection(trainer_spans, [window])
    seconds = covered(busy)
    if seconds == 0:
        return None
    return min(covered(intersection(busy, server_spans)) / seconds, 1.0)


def overlap_possible(
    generate_seconds: Sequence[float],
    train_seconds: Sequence[float],
    publish_seconds: Sequence[float],
    *,
    max_head_offpolicyness: int,
    server_share: float = 1.0,
) -> float | None:
    """Return the `overlap_share` that the gate and the measured stage times allow.

    Replays the run with nothing in the way: batch i is generated as soon as batch i - 1 is and
    version i - `max_head_offpolicyness` is served; it is trained on as soon as it is generated and
    the version before is served; then it is published.

    Args:
        generate_seconds: per batch, how long episodes are in flight until it is complete, counted
            from the batch before it.
        train_seconds: per batch, from its being handed over to the end of training on it.
        publish_seconds: per batch, from the end of training to the new version being served.
        max_head_offpolicyness: how many versions generation may be ahead.
        server_share: share of the time with episodes in flight in which a server is generating; in
            the rest all of them are between two calls, which no scheduling changes.
    """
    generating: list[Span] = []
    training: list[Span] = []
    served = [0.0]  # served[v]: when version v is
    stages = zip(generate_seconds, train_seconds, publish_seconds, strict=True)
    for i, (generate, train, publish) in enumerate(stages):
        free = generating[-1][1] if generating else 0.0
        start = max(free, served[max(i - max_head_offpolicyness, 0)])
        generating.append((start, start + generate))
        start = max(start + generate, served[i])
        training.append((start, start + train))
        served.append(start + train + publish)
    share = overlap_share(training, generating)
    return None if share is None else share * server_share
