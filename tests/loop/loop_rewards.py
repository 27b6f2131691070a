"""A reward in a file of its own: worker processes import it fast."""


def parity(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **_: object
) -> float:
    """1 when the sampled ids add up to an even number."""
    return float(sum(completion_ids) % 2 == 0)
