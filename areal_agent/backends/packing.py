"""Cut a batch into micro-batches that fit a token budget.

Rows are sorted by length and padded to the longest of their micro-batch. On a CPU that beats
packing with a block-diagonal mask, and it is as fast as a loop over sequences.
"""

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group rows so that rows times longest row stays within `max_tokens`.

    A row longer than the budget goes alone. Longest rows come first, so that a lack of memory
    shows at once.

    Returns:
        Indices into `lengths`; each appears exactly once.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    out: list[list[int]] = []
    start = 0
    while start < len(order):
        width = max(lengths[order[start]], 1)
        end = start + max(max_tokens // width, 1)
        out.append(order[start:end])
        start = end
    return out
