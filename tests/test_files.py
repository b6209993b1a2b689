"""Files are written whole or not at all."""

import os
import shutil

import pytest
from safetensors import SafetensorError

from electra.files import is_disk_full, locked, new_folder, write_atomic


def test_broken_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    write_atomic(path, b"old ", b"content")
    with pytest.raises(TypeError):
        write_atomic(path, b"new", "no bytes")
    assert path.read_bytes() == b"old content"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_name_the_path_and_not_its_temporary_name(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_atomic(tmp_path / "missing" / "a.bin", b"")
    assert error.value.filename == str(tmp_path / "missing" / "a.bin")
    long = tmp_path / ("a" * 254)  # which no temporary name is
    with pytest.raises(OSError, match="too long") as error, new_folder(long):
        pass
    assert error.value.filename == str(long)


def test_a_full_disk_is_known_whoever_tells():
    assert is_disk_full(OSError(28, "No space left on device"))
    assert is_disk_full(SafetensorError("I/O error: No space left on device (os error 28)"))
    assert is_disk_full(
        shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")])
    )
    assert not is_disk_full(OSError(13, "Permission denied"))
    assert not is_disk_full(SafetensorError("I/O error: Permission denied (os error 13)"))
    assert not is_disk_full(ValueError("28"))


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "a" / "model"
    with pytest.raises(TypeError), new_folder(final) as staging:
        (staging / "x").write_bytes("no bytes")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    assert not any((tmp_path / "a").iterdir())
    for content in (b"old", b"new"):
        with new_folder(final) as staging:
            (staging / "x").write_bytes(content)
            assert not (final / "x").exists() or (final / "x").read_bytes() == b"old"
    assert (final / "x").read_bytes() == b"new"
    with pytest.raises(ValueError, match="late"), new_folder(final) as staging:
        raise ValueError("late")
    assert (final / "x").read_bytes() == b"new"
    assert list(final.parent.iterdir()) == [final]


def abandoned(path, name):
    """A folder that a killed process has left."""
    left = path.with_name(name)
    left.mkdir(parents=True)
    (left / "x").write_bytes(b"left")
    return left


def test_a_new_folder_removes_those_that_killed_processes_have_left(tmp_path):
    final = tmp_path / "model"
    for name in (".model.12.tmp", "..model.12.tmp.12.tmp", f".model.{os.getpid()}.tmp"):
        abandoned(final, name)
    others = [abandoned(final, name) for name in (".models.1.tmp", ".model.tmp", "model.1.tmp")]
    in_use = abandoned(final, ".model.13.tmp")
    with locked(in_use, "no"), new_folder(final) as staging:
        (staging / "x").write_bytes(b"new")
    assert (final / "x").read_bytes() == b"new"
    assert {*tmp_path.iterdir()} == {final, in_use, *others}


def test_a_folder_that_was_being_replaced_comes_back(tmp_path):
    """Its process was killed between the two renames."""
    final = tmp_path / "model"
    abandoned(final, ".model.12.tmp")
    abandoned(final, ".model.12.tmp.old")
    with pytest.raises(ValueError, match="late"), new_folder(final):
        raise ValueError("late")
    assert (final / "x").read_bytes() == b"left"
    assert [*tmp_path.iterdir()] == [final]
