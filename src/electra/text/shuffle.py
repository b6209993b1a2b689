"""A shuffled order that needs no memory: any place of it is computed alone."""

import numpy as np
import numpy.typing as npt

ROUNDS = 6


def shuffled(index: npt.NDArray[np.integer], count: int, seed: int) -> npt.NDArray[np.int64]:
    """The values at `index` of a pseudo-random permutation of range(count) given by the seed."""
    places = np.asarray(index)
    if places.size and (places.min() < 0 or places.max() >= count):
        raise IndexError(f"indices must lie in [0, {count})")
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, count]).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    values = feistel(places.astype(np.uint64).reshape(-1), half, keys)
    # The network permutes 4^half >= count numbers; walking on until below count stays one-to-one.
    while (outside := np.flatnonzero(values >= count)).size:
        values[outside] = feistel(values[outside], half, keys)
    return values.astype(np.int64).reshape(places.shape)


def feistel(
    values: npt.NDArray[np.uint64], half: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A balanced Feistel network over numbers of 2·half bits, one-to-one for any `mixed`."""
    shift, low = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & low
    for key in keys:
        left, right = right, left ^ (mixed(right ^ key) & low)
    return (left << shift) | right


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit mixing of each number (xor-shift and multiply, wrapping around)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
