"""Installed models: found by name without being imported, and checked by their SHA-256."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from electra import model_packages
from electra.errors import UserError
from electra.hub.folders import load_discriminator, load_generator, read_weights
from electra.model_packages import (
    MANIFEST,
    RELEASED,
    check_files,
    find_installed,
    find_package,
    write_manifest,
)
from electra.model_paths import find_model, find_tokenizer, resolve_model

ROOT = Path(__file__).parents[1]


def test_an_installed_model_is_found_but_not_imported(installed, monkeypatch):
    folder = installed("tiny-model-xx")
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert find_installed("tiny-model-xx") == folder
    assert find_model("tiny-model-xx") == folder
    assert resolve_model("tiny-model-xx", "encoder") == folder / "discriminator"
    assert resolve_model("tiny-model-xx", "generator") == folder / "generator"
    assert find_installed("tiny-model-yy") is None
    assert find_installed("somebody/tiny-model-xx") is None


def test_missing_files_of_an_installed_model(installed):
    entries = installed("tiny-model-yy").parent / "tiny_model_yy-1.0.0.dist-info"
    (entries / "entry_points.txt").write_text("[electra.models]\ntiny-model-yy = nowhere.at_all\n")
    with pytest.raises(UserError, match="'tiny-model-yy' are missing"):
        find_installed("tiny-model-yy")
    (installed("tiny-model-xx") / MANIFEST).unlink()
    with pytest.raises(UserError, match="'tiny-model-xx' are missing: install the model again"):
        find_installed("tiny-model-xx")


def test_a_folder_comes_before_an_installed_model(installed, finished, tmp_path, monkeypatch):
    installed("tiny-model-xx")
    monkeypatch.chdir(tmp_path)
    Path("tiny-model-xx").symlink_to(finished)
    with pytest.warns(UserWarning, match="'tiny-model-xx' is a folder here and an installed model"):
        found = find_model("tiny-model-xx")
    assert found.parent == Path("tiny-model-xx/checkpoints")


def test_the_source_folder_of_a_package_is_a_model(package):
    assert find_package(package) == package / "tiny_model_xx"
    assert resolve_model(str(package), "generator") == package / "tiny_model_xx" / "generator"
    assert find_package(package.parent) is None


@pytest.mark.parametrize("name", ["tiny-model-x", "tiny_model_xx", "Tiny-Model-XX"])
def test_an_unknown_name_is_answered_with_an_installed_one(name, installed):
    installed("tiny-model-xx")
    with pytest.raises(UserError, match=r"Did you mean 'tiny-model-xx'\?$"):
        find_model(name)


def test_released_models_are_suggested_with_the_command_that_installs_them(installed, monkeypatch):
    monkeypatch.setitem(RELEASED, "tiny-model-xx", "pip install weights/tiny-model-xx")
    with pytest.raises(
        UserError, match=r"clone of the repository, run  pip install weights/tiny-m"
    ):
        find_model("tiny-model-xx")
    with pytest.raises(UserError, match=r"Did you mean 'tiny-model-xx'\? It is installed by  pip"):
        find_model("tiny-model")
    installed("tiny-model-xx")
    with pytest.raises(UserError, match=r"Did you mean 'tiny-model-xx'\?$"):
        find_model("tiny-model")


def test_the_tokenizer_of_a_package(package, installed, monkeypatch):
    """By its name or folder; another path stays as it is, for the tokenizer's own errors."""
    monkeypatch.setitem(RELEASED, "tiny-model-xx", "pip install weights/tiny-model-xx")
    with pytest.raises(UserError, match="is not installed: in a clone of the repository, run  pip"):
        find_tokenizer(Path("tiny-model-xx"))
    inside = Path("tiny_model_xx") / "discriminator"
    assert find_tokenizer(package) == package / inside
    assert find_tokenizer(Path("tiny-model-x")) == Path("tiny-model-x")
    file = package / inside / "tokenizer.json"
    assert find_tokenizer(file) == file
    folder = installed("tiny-model-xx")
    assert find_tokenizer(Path("tiny-model-xx")) == folder / "discriminator"


def test_released_models_are_those_in_the_repository():
    there = {path.parent.name for path in ROOT.glob("weights/*/pyproject.toml")}
    assert there == RELEASED.keys()
    for name, command in RELEASED.items():
        assert command == f"pip install weights/{name}"


@pytest.mark.parametrize("target", ["sdist", "wheel"])
def test_the_package_of_the_code_leaves_them_out(target, tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.iterdir()
    if target == "wheel":
        with zipfile.ZipFile(built) as wheel:
            names = wheel.namelist()
    else:
        with tarfile.open(built) as archive:
            names = [name.partition("/")[2] for name in archive.getnames()]
    assert [name for name in names if name.endswith("model_packages.py")]
    assert not [name for name in names if name.startswith("weights/")]


@pytest.mark.parametrize("position", [100, -1])  # in the header, and in the last tensor
def test_a_damaged_weights_file_is_refused(package, position):
    path = package / "tiny_model_xx" / "discriminator" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_discriminator(path.parent)
    assert str(caught.value) == (
        f"{path} is damaged: its SHA-256 is not that of tiny-model-xx 1.0.0; install the model "
        "again, with pip's --force-reinstall."
    )
    load_generator(package / "tiny_model_xx" / "generator")  # is whole


def test_every_file_of_a_network_is_checked(package, monkeypatch):
    folder = package / "tiny_model_xx" / "generator"
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("farmer", "former"))
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        read_weights(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        check_files(Path())
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json of tiny-model-xx 1\.0\.0 is missing"):
        read_weights(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "x"}', '{"sha256": 3}'])
def test_a_damaged_manifest_is_refused(package, content):
    (package / "tiny_model_xx" / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=r"electra-model\.json is damaged: install the model again"):
        load_generator(package / "tiny_model_xx" / "generator")


def test_folders_without_a_manifest_are_not_hashed(model_folder, monkeypatch):
    monkeypatch.setattr(model_packages, "file_sha256", lambda _: pytest.fail("hashed"))
    load_discriminator(model_folder)


def test_the_manifest_lists_the_files_of_the_networks(package):
    folder = package / "tiny_model_xx"
    stored = json.loads((folder / MANIFEST).read_text())
    assert stored["name"] == "tiny-model-xx"
    assert stored["sha256"].keys() == {
        f"{network}/{file}"
        for network in ("discriminator", "generator")
        for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    assert write_manifest(folder, "tiny-model-xx", "1.0.0") == stored["sha256"]
