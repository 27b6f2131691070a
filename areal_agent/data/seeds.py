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
    named = bytearray()
    for part in parts:
        if isinstance(part, str):
            text = part.encode("utf-8", "surrogatepass")
            named += b"s%d:%b" % (len(text), text)
        else:
            number = b"%d" % index(part)
            named += b"i%d:%b" % (len(number), number)
    digest = hashlib.blake2b(named, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
