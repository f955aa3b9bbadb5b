"""A victim that costs next to nothing and always answers the same: two classes, from the hashes of a text's words."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import zlib


def near_free(texts: list[str | tuple[str, ...]]) -> list[list[float]]:
    """Probabilities of two classes.

    A word counts -1000 to 1000 by its CRC-32, a little more the later it stands, so that no two places are worth the
    same. The sum is of integers: it has no rounding.

    Args:
        texts: n texts, or n tuples of columns.

    Returns:
        n rows of two.
    """
    rows = []
    for text in texts:
        words = (text if isinstance(text, str) else " ".join(text)).split()
        p = 1 / (1 + math.exp(-sum(map(operator.mul, map(_weight, words), itertools.count(300))) / 1e6))
        rows.append([1 - p, p])
    return rows


@functools.cache
def _weight(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % 2001 - 1000
