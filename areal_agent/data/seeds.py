"""One way to get a seed: a hash of whatever names the choice.

``derive_seed(run_seed, epoch, prompt, sample, turn)`` is the same number on every machine and in
every process, and changing any part gives an unrelated one.
"""

import hashlib
from operator import index

SEED_BITS = 63
"""Seeds are below two to this."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on each part, its type and its place.

    Raises:
        TypeError: there is no part, or one is neither a whole number nor a str.
    """
    if not parts:
        raise TypeError("expected at least one part that names the random choice, got none")
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        kind, text = ("s", part) if isinstance(part, str) else ("i", str(index(part)))
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{kind}{len(data)}:".encode("ascii") + data)
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)
