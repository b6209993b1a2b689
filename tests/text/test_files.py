"""Files are written whole or not at all."""

import pytest

from electra.text.files import write_whole


def test_broken_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    write_whole(path, b"old ", b"content")
    with pytest.raises(TypeError):
        write_whole(path, b"new", "no bytes")
    assert path.read_bytes() == b"old content"
    assert list(tmp_path.iterdir()) == [path]
