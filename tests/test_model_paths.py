"""Where a model may be, and what an unknown name is answered."""

import shutil
import sys

import pytest

from electra import model_paths
from electra.errors import UserError
from electra.model_paths import find_model, find_network, resolve_model
from electra.train import checkpoint


@pytest.fixture
def last(finished):
    return checkpoint.checkpoints(finished)[-1]


@pytest.fixture
def here(finished, tmp_path, monkeypatch):
    """A working directory with `runs/first`, a run."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_a_checkpoint_and_a_folder(finished, last, tmp_path, monkeypatch):
    for name in ("discriminator", "generator"):
        for place in (finished, last, last / name):
            assert resolve_model(str(place), name) == last / name
    assert resolve_model(str(finished), "encoder") == last / "discriminator"
    shutil.copytree(last / "generator", tmp_path / "mine")
    assert resolve_model(str(tmp_path / "mine"), "generator") == tmp_path / "mine"
    monkeypatch.chdir(finished.parent)
    assert resolve_model(finished.name, "generator").resolve() == (last / "generator").resolve()
    monkeypatch.setenv("HOME", str(finished.parent))
    assert resolve_model(f"~/{finished.name}", "generator") == last / "generator"


def test_a_network_that_the_run_does_not_have(last, tmp_path):
    shutil.copytree(last / "discriminator", tmp_path / "step" / "discriminator")
    (tmp_path / "step" / "config.yaml").touch()
    found = find_model(str(tmp_path / "step"))
    with pytest.raises(UserError, match=r"has no generator, only discriminator.*objective\.kind"):
        find_network(found, "generator")


def test_a_fine_tuned_model_is_found_in_its_out_folder(last, tmp_path):
    shutil.copytree(last / "discriminator", tmp_path / "tuned" / "model")
    for network in ("discriminator", "encoder"):
        assert resolve_model(str(tmp_path / "tuned"), network) == tmp_path / "tuned" / "model"


def test_a_hub_name_is_downloaded_without_pickles(last, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(last / "discriminator")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("somebody/electra-tiny", "discriminator") == last / "discriminator"
    assert asked[0][0] == "somebody/electra-tiny"
    assert not [p for p in asked[0][1] if p.endswith((".bin", ".pt", "*"))]


def test_a_package_on_the_hub_is_downloaded_with_its_folders(released, monkeypatch):
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    kept = []
    folder = released / "tiny_model_xx"
    there = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    there += ["README.md", "discriminator/pytorch_model.bin", "run.py"]

    def download(name, allow_patterns):
        kept.extend(filter_repo_objects(there, allow_patterns=allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("somebody/tiny-model-xx", "generator") == folder / "generator"
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    networks = ("discriminator", "generator")
    assert set(kept) == {"electra-model.json", *(f"{n}/{f}" for n in networks for f in files)}


def test_an_error_of_the_hub_is_one_line(monkeypatch):
    import huggingface_hub

    def download(*_, **__):
        raise OSError("404 Client Error.\nmany\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError) as caught:
        resolve_model("somebody/nothing", "discriminator")
    assert str(caught.value).endswith("the Hub did not provide it: 404 Client Error.")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'electra\[hub\]'"):
        resolve_model("somebody/nothing", "discriminator")


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "a/b/c", "~/x"])
def test_an_unknown_path_is_refused(name):
    with pytest.raises(UserError, match="no model at"):
        resolve_model(name, "discriminator")


def test_a_folder_without_a_model_is_refused(finished, tmp_path):
    (tmp_path / "letters").mkdir()
    with pytest.raises(UserError, match="neither a run nor a checkpoint"):
        find_model(str(tmp_path / "letters"))
    (tmp_path / "begun").mkdir()
    shutil.copy(finished / "config.yaml", tmp_path / "begun")
    with pytest.raises(UserError, match="no checkpoint yet"):
        find_model(str(tmp_path / "begun"))


@pytest.mark.parametrize("name", ["runs/frst", "frst", "firsts", "./runs/firs"])
def test_a_misspelt_run_is_answered_with_the_nearest(name, here, monkeypatch):
    monkeypatch.setattr(model_paths, "require", lambda *_: pytest.fail("the Hub was asked"))
    with pytest.raises(UserError, match=r"no model at.* Did you mean 'runs/first'\?$"):
        find_model(name)


def test_a_misspelt_folder_is_suggested_when_the_hub_does_not_know_it(here, monkeypatch):
    import huggingface_hub

    def download(*_, **__):
        raise OSError("404 Client Error.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"404 Client Error\. Did you mean 'runs/first'\?$"):
        find_model("run/first")


def test_nothing_similar_is_not_suggested(here):
    (here / "runs" / "zebra").mkdir()  # not a model
    for name in ("runs/none", "zebr"):
        with pytest.raises(UserError, match=r"or a Hub name\.$"):
            find_model(name)
