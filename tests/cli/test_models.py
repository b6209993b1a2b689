"""`electra import`: what it prints, and which options go together."""

import pytest


def test_it_names_the_networks_and_their_sizes(electra, finished, tmp_path):
    out = tmp_path / "model"
    code, said, err = electra("import", finished, "--out", out)
    assert (code, err) == (0, "")
    for name in ("discriminator", "generator"):
        (line,) = (line for line in said.splitlines() if line.startswith(str(out / name)))
        assert "layers 2" in line
        assert "vocabulary 150" in line
    assert electra("detect", out, "the old farmer")[0] == 0


def test_an_extended_vocabulary_is_reported(electra, finished, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the millwright met the millwright .\n" * 20, encoding="utf-8")
    out = tmp_path / "model"
    words = ("import", finished, "--out", out, "--extend-vocabulary", 5, "--text", text)
    code, said, err = electra(*words)
    assert code == 0, err
    before, after = (
        float(part.split()[0])
        for line in said.splitlines()
        if line.startswith("pieces per word: ")
        for part in line.removeprefix("pieces per word: ").split(", ")
    )
    assert after < before
    assert "new pieces: " in said


@pytest.mark.parametrize("options", [("--extend-vocabulary", 5), ("--text", "a.txt")])
def test_new_pieces_need_a_number_and_a_text(options, refused, finished, tmp_path):
    out = tmp_path / "model"
    assert "go together" in refused("import", finished, "--out", out, *options)
    assert not out.exists()
