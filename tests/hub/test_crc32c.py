"""CRC-32C against published values and the textbook's algorithm."""

import numpy as np
import pytest

from electra.hub.crc32c import LEVELS, crc32c, unmask

CHUNK = 4 << LEVELS


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, section B.4, and the usual check value
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == crc32c(memoryview(data)) == expected


@pytest.mark.parametrize(
    "size", [*range(12), 1001, CHUNK - 5, CHUNK - 4, CHUNK - 3, CHUNK, CHUNK + 1, 2 * CHUNK + 7]
)
def test_every_length_equals_the_textbook(size, textbook_crc32c):
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == textbook_crc32c(data)


def test_unmask_inverts_the_mask():
    for crc in (0, 1, 0x8A9136AA, 0xFFFFFFFF):
        masked = ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
        assert unmask(masked) == crc
