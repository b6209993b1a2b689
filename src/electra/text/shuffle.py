"""A shuffled order that needs no memory: each position is computed on its own."""

import numpy as np
import numpy.typing as npt

ROUNDS = 6


def shuffled(index: npt.NDArray[np.integer], count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the values at `index` of the seed's pseudo-random permutation of `range(count)`."""
    positions = np.asarray(index)
    if positions.size and (positions.min() < 0 or positions.max() >= count):
        raise IndexError(f"indices must lie in [0, {count})")
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, count]).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    values = feistel(positions.astype(np.uint64).reshape(-1), half_bits, keys)
    # The network permutes 4^half_bits >= count numbers. Applying it again until the value is below
    # `count` (cycle walking) keeps the mapping one-to-one.
    while (outside := np.flatnonzero(values >= count)).size:
        values[outside] = feistel(values[outside], half_bits, keys)
    return values.astype(np.int64).reshape(positions.shape)


def feistel(
    values: npt.NDArray[np.uint64], half_bits: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Permute numbers of 2·half_bits bits with a balanced Feistel network."""
    shift, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & low
    for key in keys:
        left, right = right, left ^ (mix_bits(right ^ key) & low)
    return (left << shift) | right


def mix_bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits of each number with xor-shifts and wrapping products (SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
