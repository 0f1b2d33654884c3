"""The digest that represents bytes: 128-bit XXH3. The only module that names the algorithm.

Collisions: two different byte strings share a digest with probability 2**-128 unless they were made to collide; XXH3
does not protect against deliberate collisions (https://github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

ALGORITHM = "xxh3-128"

digest_bytes = xxhash.xxh3_128_digest
"""Digest of one contiguous buffer: 16 bytes."""


def digest_text(text: str) -> bytes:
    """Return the digest of a string's UTF-8 bytes."""
    return digest_bytes(text.encode("utf-8", "surrogatepass"))


def digest_many(parts: Iterable[bytes]) -> bytes:
    """Return the digest of several digests, in order."""
    return digest_bytes(b"".join(parts))
