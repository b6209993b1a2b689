"""`electra.load`: the same numbers as transformers, for every kind of model folder."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import electra as package
from electra.api import load
from electra.errors import UserError
from electra.hub import folders
from electra.hub.electric import mark_electric
from electra.train import checkpoint

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
TEXTS = [
    "the old farmer went to the field to plough the barley .",
    "the ship",
    "in the oven the baker began to knead , and the bread was quiet .",
]


@pytest.fixture
def last(finished):
    return checkpoint.checkpoints(finished)[-1]


@pytest.fixture(scope="module")
def tuned(finished, tmp_path_factory):
    """Models that tell persons from places, tag persons, compare texts and answer questions."""
    from rich.console import Console

    from electra.config import override
    from electra.finetune.run import finetune
    from electra.finetune.settings import FinetuneConfig
    from electra.tasks.load import load_task

    out = tmp_path_factory.mktemp("tuned")
    words = {"person": ("farmer", "sailor", "baker"), "place": ("field", "harbour", "oven")}
    data = [(f"the {w} was old {n}", label) for label in words for w in words[label] for n in "ab"]
    with (out / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *data * 4])
    sentences = [
        "\n".join(f"{w} {'B-P' if i == 1 else 'O'}" for i, w in enumerate(text.split()))
        for text, _ in data
    ]
    (out / "data.conll").write_text("\n\n".join(sentences * 2) + "\n")
    console = Console(quiet=True)
    config = override(FinetuneConfig(), ["device=cpu", "epochs=1", "lr=1e-3", "batch=8"])
    pairs = [(text, other, "same" if a == b else "other") for text, a in data for other, b in data]
    with (out / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text1", "text2", "label"), *pairs])
    questions = [{"question": "what ?", "context": t, "answer": t.split()[1]} for t, _ in data]
    (out / "qa.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions * 4))
    chosen = [(t, t.split()[1], "the", int(n == "b")) for t, n in ((t, t[-1]) for t, _ in data)]
    with (out / "choice.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "choice0", "choice1", "label"), *chosen * 4])
    files = {"classify": "data.csv", "tag": "data.conll", "pair": "pairs.csv", "qa": "qa.jsonl"}
    files["choice"] = "choice.csv"
    for kind, name in files.items():
        finetune(str(finished), load_task(kind, out / name), out / kind, [0], config, console)
    return out


def reference(kind, folder):
    """A model of transformers and its inputs for `TEXTS`."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    return model, tokenizer(TEXTS, padding=True, return_tensors="pt")


@torch.no_grad()
def test_encode_equals_transformers(finished, last):
    model, inputs = reference("ElectraModel", last / "discriminator")
    states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    ours = package.load(finished, device="cpu")
    found = ours.encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, mean.numpy(), atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS[1]), mean[1].numpy(), atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS, "cls"), states[:, 0].numpy(), atol=1e-5)
    tensor = ours.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(tensor, mean, atol=1e-5, rtol=0)
    each = ours.encode_tokens(TEXTS)
    for row, expected, length in zip(each, states, mask.sum(1)[:, 0].tolist(), strict=True):
        np.testing.assert_allclose(row, expected[:length].numpy(), atol=1e-5)
    assert ours.encode([]).shape == (0, 32)
    assert ours.encode_tokens([]) == []


@torch.no_grad()
def test_encode_keeps_the_states_of_a_few_texts(finished, monkeypatch):
    """Many texts are pooled in chunks; the embeddings and their order stay the same."""
    from electra import api

    model, sizes = load(finished, "cpu"), []
    texts = [*TEXTS, "the", "", *TEXTS]
    wanted = model.encode(texts, "cls")
    encode = api.inference.encode
    monkeypatch.setattr(api, "CHUNK", 2)
    monkeypatch.setattr(
        api.inference, "encode", lambda m, some: sizes.append(len(some)) or encode(m, some)
    )
    np.testing.assert_allclose(model.encode(texts, "cls"), wanted, atol=1e-5)
    assert max(sizes) == 2
    assert sum(sizes) == len(texts)


@torch.no_grad()
def test_detect_equals_transformers(finished, last):
    model, inputs = reference("ElectraForPreTraining", last / "discriminator")
    expected = model(**inputs).logits.sigmoid()
    lengths = inputs["attention_mask"].sum(1).tolist()
    ours = load(finished, "cpu")
    batch = ours.detect(TEXTS)
    for text, tokens, row, length in zip(TEXTS, batch, expected, lengths, strict=True):
        assert [t.replaced for t in tokens] == pytest.approx(row[1 : length - 1].tolist(), abs=1e-6)
        alone = ours.detect(text)
        assert [t.token for t in alone] == [t.token for t in tokens]
        assert [t.replaced for t in alone] == pytest.approx([t.replaced for t in tokens], abs=1e-6)


@torch.no_grad()
def test_fill_equals_transformers(finished, last):
    import transformers

    folder = last / "generator"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.ElectraForMaskedLM.from_pretrained(folder).eval()
    texts = ["the [MASK] .", "the old [MASK] went to the [MASK] to plough ."]
    batch = load(finished, "cpu").fill(texts, top=4)
    assert [len(masks) for masks in batch] == [1, 2]
    for text, masks in zip(texts, batch, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
        for row, found in zip(logits.softmax(-1), masks, strict=True):
            best = row.topk(4)
            assert [t.token for t in found] == tokenizer.convert_ids_to_tokens(best.indices)
            assert [t.probability for t in found] == pytest.approx(best.values.tolist(), abs=1e-6)


@torch.no_grad()
def test_score_is_minus_the_sum_of_the_energies(last, tmp_path):
    folder = tmp_path / "electric"
    shutil.copytree(last / "discriminator", folder)
    with pytest.raises(UserError, match=r"not trained with objective\.kind=electric"):
        load(folder).score(TEXTS)
    mark_electric(folder)
    model, inputs = reference("ElectraForPreTraining", folder)
    energies = model(**inputs).logits
    lengths = inputs["attention_mask"].sum(1).tolist()
    expected = [-row[1 : n - 1].sum().item() for row, n in zip(energies, lengths, strict=True)]
    assert load(folder, "cpu").score(TEXTS) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(UserError, match="energies, not probabilities"):
        load(folder).detect(TEXTS[0])


def test_classify_equals_the_command(tuned, electra, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    code, shown, _ = electra("predict", tuned / "classify", tmp_path / "texts.txt")
    assert code == 0
    expected = [json.loads(line) for line in shown.splitlines()]
    for place in (tuned / "classify", tuned / "classify" / "model"):
        found = load(place, "cpu").classify(TEXTS)
        assert [r["label"] for r in found] == [r["label"] for r in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.keys() == {"label", "probabilities"}
            assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)
    assert load(tuned / "classify").classify([]) == []


def test_tags(tuned):
    model = load(tuned / "tag", "cpu")
    words = TEXTS[0].split()
    (tags,) = model.tag([words])
    assert len(tags) == len(words)
    assert set(tags) <= {"O", "B-P", "I-P"}
    with pytest.raises(UserError, match=r"a model of the kind 'tag': use tag\(\)"):
        model.classify(TEXTS)
    assert model.encode(TEXTS).shape == (3, 32)  # the encoder of a fine-tuned model


def test_pairs(tuned, electra, tmp_path):
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text1", "text2"), TEXTS[:2]])
    _, shown, _ = electra("predict", tuned / "pair", tmp_path / "new.csv")
    expected = json.loads(shown)["probabilities"]
    (found,) = load(tuned / "pair", "cpu").classify([(TEXTS[0], TEXTS[1])])
    assert found["probabilities"] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(UserError, match=r"reads pairs \(text, text\): text 1 is something else"):
        load(tuned / "pair").classify(TEXTS)


def test_answers(tuned, electra, tmp_path):
    asked = {"question": "who went ?", "context": TEXTS[0]}
    (tmp_path / "new.jsonl").write_text(json.dumps(asked) + "\n")
    _, shown, _ = electra("predict", tuned / "qa", tmp_path / "new.jsonl")
    found = load(tuned / "qa", "cpu").answer(**asked)
    assert found["answer"] == json.loads(shown)["answer"]
    assert found["answer"] in TEXTS[0]
    assert found["n_best"][0].keys() == {"text", "score", "probability"}
    with pytest.raises(UserError, match=r"a model of the kind 'qa': use answer\(\)"):
        load(tuned / "qa").classify(TEXTS)


def test_classify_needs_a_fine_tuned_model_and_single_texts(tuned, finished):
    with pytest.raises(UserError, match="is not a fine-tuned model"):
        load(finished).classify(TEXTS)
    with pytest.raises(UserError, match="is a fine-tuned model, not a discriminator"):
        load(tuned / "classify").detect(TEXTS)
    with pytest.raises(UserError, match="reads single texts: text 2 is something else"):
        load(tuned / "classify").classify([TEXTS[0], (TEXTS[0], TEXTS[1])])


def test_bad_texts_for_fine_tuned_models_are_refused(tuned):
    pair = load(tuned / "pair", "cpu")
    for wrong in ((TEXTS[0],), (*TEXTS[:2], TEXTS[0]), (TEXTS[0], None)):
        with pytest.raises(UserError, match="text 1 is something else"):
            pair.classify([wrong])
    for call in (
        lambda: pair.classify([(TEXTS[0], "\udcff")]),
        lambda: load(tuned / "tag", "cpu").tag([["old", "\udcff"]]),
        lambda: load(tuned / "qa", "cpu").answer("what ?", "\udcff"),
    ):
        with pytest.raises(UserError, match="not valid UTF-8"):
            call()


def test_truncation_is_a_warning(tuned):
    model = load(tuned / "classify", "cpu")
    with pytest.warns(UserWarning, match="1 of 2 examples longer than .* truncated.* is '2'"):
        model.classify([TEXTS[0], "old " * 400])


def test_weights_are_read_once(finished, monkeypatch):
    reads, load_file = [], folders.load_file
    monkeypatch.setattr(folders, "load_file", lambda p: reads.append(p.parent.name) or load_file(p))
    model = load(finished)
    for _ in range(2):
        model.detect(TEXTS[0])
        model.fill("the [MASK]")
    assert reads == ["discriminator", "generator"]


def test_every_kind_of_path(finished, last, monkeypatch):
    import huggingface_hub

    expected = load(finished, "cpu").detect(TEXTS[0])
    downloads = []

    def download(name, allow_patterns):
        downloads.append(name)
        return str(last / "discriminator")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for place in (str(finished), last, last / "discriminator", "somebody/electra-tiny"):
        model = load(place, "cpu")
        assert model.detect(TEXTS[0]) == expected
        assert model.encode(TEXTS).shape == (3, 32)
    assert downloads == ["somebody/electra-tiny"]
    assert load(last / "generator").encode(TEXTS).shape == (3, 16)
    assert "discriminator" in repr(load(last / "discriminator", "cpu"))


def test_later_checkpoints_do_not_change_a_loaded_model(finished, last, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    model = load(run)
    shutil.copytree(last, run / "checkpoints" / "step-99999999")
    assert model.folder.name == last.name


@pytest.mark.parametrize(
    ("device", "said"),
    [("abacus", "'abacus' is not a device"), ("cuda:77", "There is no 'cuda")],
)
def test_unknown_devices_are_refused(device, said, finished):
    with pytest.raises(UserError, match=said):
        load(finished, device)


def test_bad_arguments_are_refused(finished):
    model = load(finished)
    with pytest.raises(UserError, match="There is no pooling 'max': use mean or cls"):
        model.encode(TEXTS, "max")
    with pytest.raises(UserError, match="at least one token"):
        model.fill("the [MASK]", top=0)
    with pytest.raises(UserError, match="at least one token"):
        model.propose(["the", "baker"], 0, top=-1)
    with pytest.raises(UserError, match="a list of tokens, not a text"):
        model.detect_tokens("the")
    with pytest.raises(UserError, match="name of the model is empty"):
        load("")
    with pytest.raises(UserError, match="not valid UTF-8"):
        model.encode(["\udcff"])
    with pytest.raises(UserError, match="no model at"):
        load("nowhere")


def test_the_tokenizer_is_the_models(finished):
    encoding = load(finished).tokenizer.encode(TEXTS[0])
    assert encoding.tokens[0] == "[CLS]"


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers(finished):
    model = load(finished)
    assert model.device.type == "cuda"
    np.testing.assert_allclose(model.encode(TEXTS), load(finished, "cpu").encode(TEXTS), atol=1e-3)
    assert model.encode(TEXTS, convert_to_tensor=True).is_cuda


def test_import_does_not_load_torch():
    code = "import sys, electra; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        package.lod  # noqa: B018


def test_the_example_of_the_page(finished, tmp_path, monkeypatch, capsys):
    (script,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "embeddings (2, 32)"
    tokens = [line.split()[1] for line in shown[1:-2]]
    assert tokens[0] == "the"
    assert tokens[-1] == "."
    assert "farmer" in tokens
    assert all(line.count("(") == 3 for line in shown[-2:])


def test_the_page_names_what_exists():
    called = set(re.findall(r"(?<!-)\bmodel\.(\w+)", PAGE))
    assert called >= {"encode", "encode_tokens", "detect", "fill", "score", "classify", "tag"}
    assert all(hasattr(package.Model, name) for name in called)
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    (table,) = re.findall(r"\| the sentence begins \|.*", PAGE, re.S)
    for line in table.strip().splitlines()[2:]:
        for part in line.split("|")[1].split("…"):
            assert part.strip(" '") in source, line
    heads = {re.sub(r"[^\w\- ]", "", h.lower()) for h in re.findall(r"^## (.+)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) == {h.replace(" ", "-") for h in heads}


def test_one_text_gives_one_result(tuned):
    model, pair = load(tuned / "classify", "cpu"), load(tuned / "pair", "cpu")
    assert model.classify(TEXTS[0]) == model.classify([TEXTS[0]])[0]
    assert pair.classify((TEXTS[0], TEXTS[1])) == pair.classify([(TEXTS[0], TEXTS[1])])[0]
    assert len(model.classify((TEXTS[0], TEXTS[1]))) == 2  # two texts, not a pair


def test_choose_is_predict(tuned, tmp_path):
    from electra.finetune.predict import predict

    model = load(tuned / "choice", "cpu")
    (tmp_path / "new.jsonl").write_text(
        json.dumps({"text": TEXTS[0], "choice0": "oven", "choice1": "the"}) + "\n"
    )
    (wanted,) = predict(str(tuned / "choice"), tmp_path / "new.jsonl", device="cpu")
    found = model.choose(TEXTS[0], ["oven", "the"])
    assert found["label"] == wanted["label"]
    assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-6)
    assert set(model.choose(TEXTS[0], ("a", "the", "oven"))["probabilities"]) == {"0", "1", "2"}
    for options in ("oven", ["oven"], []):
        with pytest.raises(UserError, match="two or more options"):
            model.choose(TEXTS[0], options)
    with pytest.raises(UserError, match=r"of the kind 'choice': use choose\(\)"):
        model.classify(TEXTS)


def test_what_is_no_text_is_refused(finished, tuned):
    model = load(finished, "cpu")
    for call in (model.encode, model.encode_tokens, model.detect, model.fill):
        with pytest.raises(UserError, match="A text must be a string, not int"):
            call([1])
        with pytest.raises(UserError, match="a list of texts, not int"):
            call(1)
    with pytest.raises(UserError, match="A text must be a string, not NoneType"):
        load(tuned / "qa", "cpu").answer("what ?", None)
    with pytest.raises(UserError, match="A text must be a string, not int"):
        load(tuned / "tag", "cpu").tag([["the", 3]])
    with pytest.raises(UserError, match="a list of texts, not int"):
        load(tuned / "tag", "cpu").tag([3])
    with pytest.raises(UserError, match="A text must be a string, not int"):
        load(tuned / "choice", "cpu").choose("the", ["a", 1])


def test_a_truncation_warning_names_the_line_of_the_caller(tuned):
    with pytest.warns(UserWarning, match="truncated") as caught:
        load(tuned / "classify", "cpu").classify("old " * 400)
    assert [w.filename for w in caught if "truncated" in str(w.message)] == [__file__]
