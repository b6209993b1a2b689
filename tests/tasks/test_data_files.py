"""Which file of a folder is which split."""

import pytest

from electra.errors import UserError
from electra.tasks.data_files import find_data, find_split_files


def test_a_missing_file_or_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="no file or folder"):
        find_data(tmp_path / "nowhere", [])
    with pytest.raises(UserError, match="holds no train file"):
        find_split_files(tmp_path)


def test_two_files_for_one_split_are_refused(tmp_path):
    for name in ("train.csv", "training.tsv"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="several files for train"):
        find_split_files(tmp_path, extensions=(".csv", ".tsv"))


def test_files_with_other_names_or_extensions_are_ignored(tmp_path):
    for name in ("train.csv", "devices.csv", "test.md", ".dev.csv"):
        (tmp_path / name).touch()
    assert find_split_files(tmp_path, extensions=(".csv",)) == {"train": tmp_path / "train.csv"}
