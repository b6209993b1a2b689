"""CRC-32C, the checksum of TensorFlow's files, in NumPy.

A CRC is the remainder of a polynomial division, so the remainders of two halves give that of the
whole: shift the left one by the length of the right one, and add. All pairs of neighbouring words
are joined at once, then all pairs of pairs, and so on.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, with its bits reversed."""
FIRST_WORD = 0x641F6454
"""A word before the data that leads to the CRC's initial value, 32 ones; a test checks it."""
LEVELS = 16
"""Words are joined in chunks of 2 ** LEVELS, which fit in a processor's cache."""


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes."""
    padding = -len(data) % 4  # zeros in front change nothing
    content = np.zeros(padding + 4 + len(data), np.uint8)
    content[padding : padding + 4] = np.frombuffer(FIRST_WORD.to_bytes(4, "little"), np.uint8)
    content[padding + 4 :] = np.frombuffer(data, np.uint8)
    words = content.view("<u4")
    short = len(words) % (1 << LEVELS)  # the first chunk may be shorter
    remainder = _join(words[:short])
    for begin in range(short, len(words), 1 << LEVELS):
        remainder = _shift(remainder, LEVELS) ^ _join(words[begin : begin + (1 << LEVELS)])
    return int(_shift(remainder, 0)[0]) ^ 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Return the CRC behind the masked form that TensorFlow stores."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _join(words: Words) -> Words:
    """Return the remainder of a sequence of words, as an array with one element."""
    level = 0
    while len(words) != 1:
        if len(words) % 2 or not len(words):
            words = np.concatenate((np.zeros(1, np.uint32), words))
            continue
        words = _shift(words[0::2], level) ^ words[1::2]
        level += 1
    return words


def _shift(remainders: Words, level: int) -> Words:
    """Return the remainders after 2 ** `level` more words of zeros."""
    lowest, low, high, highest = _tables(level)
    shifted: Words = lowest[remainders & 0xFF]
    shifted ^= low[remainders >> 8 & 0xFF]
    shifted ^= high[remainders >> 16 & 0xFF]
    shifted ^= highest[remainders >> 24]
    return shifted


@cache
def _tables(level: int) -> Words:
    """Return what each of the four bytes of a remainder contributes to `_shift`: (4, 256)."""
    if level:
        return _shift(_tables(level - 1), level - 1)  # twice the shift of the level below
    shifted = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    one = np.uint32(1)
    for _ in range(32):
        shifted = shifted >> one ^ (shifted & one) * np.uint32(POLYNOMIAL)
    return shifted
