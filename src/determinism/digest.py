"""The digest that stands for bytes: XXH3 with 128 bits. The only place that names the algorithm.

Collisions: two different byte strings share a digest with probability 2**-128 if they were not made to collide on
purpose; XXH3 is no protection against somebody who wants them to (https://github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

ALGORITHM = "xxh3-128"

digest_bytes = xxhash.xxh3_128_digest
"""Digest of one contiguous buffer: 16 bytes."""


def digest_text(text: str) -> bytes:
    """Digest of a text, of its UTF-8 bytes."""
    return digest_bytes(text.encode("utf-8", "surrogatepass"))


def digest_many(parts: Iterable[bytes]) -> bytes:
    """Digest of several digests, in order."""
    return digest_bytes(b"".join(parts))
