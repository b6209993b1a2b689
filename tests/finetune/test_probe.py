"""`electra probe`: scores against a slow reference, one sentence at a time and without padding."""

import json
import math
import random
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from rich.console import Console

from electra.api import load
from electra.errors import UserError
from electra.finetune import probe as probe_module
from electra.finetune.probe import PhenomenonAccuracy, probe, probe_baselines, score_rows
from electra.hub.electric import mark_electric
from electra.hub.folders import export, load_discriminator, load_generator
from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.tasks.blimp import Pair, load_blimp
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer, load_vocabulary, save_tokenizer

CPU = torch.device("cpu")
QUIET = Console(quiet=True)
WORDS = ("old", "young", "farmer", "sailor", "plough", "dig", "the", "harbour", "oven", "bread")


@pytest.fixture(scope="module")
def both(tmp_path_factory, tokenizer_folder):
    """A folder with both networks, random weights."""
    tokenizer = load_tokenizer(tokenizer_folder)
    torch.manual_seed(0)
    model = EncoderConfig(
        layers=2,
        hidden=32,
        heads=2,
        embedding=16,
        max_positions=40,
        vocab_size=tokenizer.get_vocab_size(),
        init_std=0.2,
    )
    folder = tmp_path_factory.mktemp("probe")
    for network in build_pair(model, GeneratorConfig(width=0.5)):
        name = type(network).__name__.lower()
        for p in network.parameters():
            p.data += 0.1 * torch.randn_like(p)
        export(network, folder / name, 0)
        save_tokenizer(tokenizer, folder / name, max_length=40)
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 14))) for _ in range(count)]


def pairs(count: int = 30) -> list[Pair]:
    made = zip(sentences(count), sentences(count, seed=1), strict=True)
    return [
        Pair(phenomenon=("agreement", "binding", "npi")[n % 3], paradigm="x", good=a, bad=b)
        for n, (a, b) in enumerate(made)
    ]


def ids_of(folder, text: str) -> list[int]:
    tokenizer, vocab = load_tokenizer(folder), load_vocabulary(folder)
    return [vocab.cls, *tokenizer.encode(text, add_special_tokens=False).ids, vocab.sep]


@torch.no_grad()
def slow(folder, network: str, text: str) -> float:
    """One sentence, token by token."""
    ids, total = ids_of(folder, text), 0.0
    if network == "discriminator":
        row = torch.tensor([ids])
        logits = load_discriminator(folder)(row, torch.zeros_like(row))[0].tolist()
        ratios = [math.exp(logit) * 0.92 / 0.08 for logit in logits[1:-1]]
        return sum(math.log(1 / (1 + ratio)) for ratio in ratios)
    for place in range(1, len(ids) - 1):
        total += math.log(masked_probability(folder, ids, place))
    return total


@torch.no_grad()
def masked_probability(folder, ids: list[int], place: int) -> float:
    """What the generator gives the token at `place` when it is masked."""
    row = torch.tensor([[*ids[:place], load_vocabulary(folder).mask, *ids[place + 1 :]]])
    generator = load_generator(folder)
    logits = generator(row, torch.zeros_like(row), None, torch.tensor([[place]]))[0, 0]
    return logits.softmax(-1)[ids[place]].item()


@pytest.mark.parametrize("network", ["discriminator", "generator"])
@pytest.mark.parametrize("tokens", [32768, 64])
def test_scores_equal_those_of_single_sentences(network, tokens, both, monkeypatch):
    monkeypatch.setattr(probe_module, "TOKENS", tokens)
    folder, texts = both / network, sentences(20)
    load = load_discriminator if network == "discriminator" else load_generator
    rows = [np.array(ids_of(folder, text)) for text in texts]
    told = []
    found = score_rows(
        [load(folder)], rows, load_vocabulary(folder), CPU, lambda *counts: told.append(counts)
    )[network]
    assert found.tolist() == pytest.approx([slow(folder, network, t) for t in texts], abs=1e-3)
    assert told[-1] == (20, 20)
    assert (len(told) > 1) == (tokens == 64)


def test_the_combined_score_is_a_weighted_sum(both):
    folders, texts = (both / "discriminator", both / "generator"), sentences(5)
    rows = [np.array(ids_of(folders[0], text)) for text in texts]
    networks = [load_discriminator(folders[0]), load_generator(folders[1])]
    found = score_rows(networks, rows, load_vocabulary(folders[0]), CPU, lambda *_: None)
    assert list(found) == ["discriminator", "generator", "combined"]
    for text, score in zip(texts, found["combined"], strict=True):
        each = [slow(folder, folder.name, text) for folder in folders]
        assert score == pytest.approx(each[0] + 0.1 * each[1], abs=1e-3)


def test_the_share_of_replaced_tokens_is_taken_out_of_the_score():
    """A discriminator that predicts just the share of pre-training knows nothing: one half."""
    share = torch.tensor([0.08, 0.5])
    found = probe_module.original_log_probs(share.logit()).exp()
    assert found.tolist() == pytest.approx([0.5, 0.08], abs=1e-6)


@pytest.mark.parametrize("network", ["discriminator", "generator"])
def test_accuracy_per_phenomenon(network, both):
    examples = pairs()
    found = probe(str(both), examples, [network], QUIET, device="cpu")[network]
    assert [p.phenomenon for p in found] == ["agreement", "binding", "npi"]
    for each in found:
        ours = [p for p in examples if p.phenomenon == each.phenomenon]
        right = [
            slow(both / network, network, p.good) > slow(both / network, network, p.bad)
            for p in ours
        ]
        assert each.pairs == len(ours) == 10
        assert each.accuracy == pytest.approx(sum(right) / 10)


def test_electric_uses_energies(both, tmp_path):
    """As `electra score` does: a sum of energies is no sum of verdicts."""
    folder = tmp_path / "discriminator"
    shutil.copytree(both / "discriminator", folder)
    mark_electric(folder)
    examples = pairs(90)
    good, bad = (load(folder).score([getattr(p, n) for p in examples]) for n in ("good", "bad"))
    (found,) = probe(str(folder), examples, ["discriminator"], QUIET, device="cpu").values()
    for n, each in enumerate(found):
        right = [a > b for a, b in zip(good[n::3], bad[n::3], strict=True)]
        assert each.accuracy == pytest.approx(sum(right) / 30)
    (usual,) = probe(str(both), examples, ["discriminator"], QUIET, device="cpu").values()
    assert found != usual
    shutil.copytree(both / "generator", tmp_path / "generator")
    found_by_both = probe(str(tmp_path), examples, ["discriminator", "generator"], QUIET)
    assert list(found_by_both) == ["discriminator", "generator"], "energies need no generator"


def test_swapped_pairs_give_one_minus_accuracy(both):
    examples = pairs()
    turned = [
        Pair(phenomenon=p.phenomenon, paradigm=p.paradigm, good=p.bad, bad=p.good) for p in examples
    ]
    networks = ["discriminator", "generator"]
    one_way, other_way = (
        [
            p
            for each in probe(str(both), given, networks, QUIET, device="cpu").values()
            for p in each
        ]
        for given in (examples, turned)
    )
    for one, two in zip(one_way, other_way, strict=True):
        assert one.accuracy + two.accuracy == pytest.approx(1)


def test_ties_count_half(both):
    same = [Pair(phenomenon="x", paradigm="x", good=t, bad=t) for t in sentences(6)]
    networks = ["discriminator", "generator"]
    for (found,) in probe(str(both), same, networks, QUIET, device="cpu").values():
        assert found.accuracy == 0.5
    some = [*pairs(3)[:1], *same]
    for first, *_ in probe(str(both), some, networks, QUIET, device="cpu").values():
        assert first.accuracy in (0.0, 1.0)


def test_too_long_sentence_is_refused(both):
    long = Pair(phenomenon="x", paradigm="x", good="dig", bad=" ".join(["dig"] * 39))
    with pytest.raises(UserError, match=r"longer than the 40 tokens .*: shorten or remove '"):
        probe(str(both), [long], ["discriminator"], QUIET, device="cpu")


@pytest.fixture
def blimp(tmp_path):
    """A folder with BLiMP's files."""
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in ("agreement", "binding", "npi"):
        lines = [
            json.dumps(
                {
                    "sentence_good": p.good,
                    "sentence_bad": p.bad,
                    "linguistics_term": name,
                    "UID": f"{name}_1",
                }
            )
            for p in pairs()
            if p.phenomenon == name
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_command(electra, both, blimp):
    code, out, _ = electra("probe", both, "--data", blimp, "--network", "both", "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(r["network"], r["phenomenon"]) for r in lines] == [
        (network, name)
        for network in ("discriminator", "generator", "combined")
        for name in ("agreement", "binding", "npi", "all")
    ]
    for network, each in probe(str(both), pairs(), ["discriminator", "generator"], QUIET).items():
        wanted = [p.accuracy for p in each]
        found = [r["accuracy"] for r in lines if r["network"] == network]
        assert found == [*wanted, pytest.approx(sum(wanted) / 3)]  # of ten pairs each
    code, out, _ = electra("probe", both, "--data", blimp, "--network", "both")
    assert code == 0
    rows = [line for line in out.splitlines() if "%" in line and "Chance" not in line]
    for row, *each in zip(rows, lines[:4], lines[4:8], lines[8:], strict=True):
        shares = [f"{line['accuracy']:.1%}" for line in each]
        wanted = [each[0]["phenomenon"], str(each[0]["pairs"]), *shares]
        assert row.replace("│", " ").split() == wanted


def test_phenomenon_is_not_markup(electra, both, blimp):
    file = blimp / "npi.jsonl"
    file.write_text(file.read_text().replace('"npi"', '"[/npi]"'))
    code, out, _ = electra("probe", both, "--data", blimp)
    assert code == 0
    assert "[/npi]" in out


def test_errors(refused, both, blimp, tuned, tmp_path):
    command = ("probe", both, "--data", blimp)
    assert "discriminator, generator or both" in refused(*command, "--network", "encoder")
    assert "There is no folder" in refused("probe", both, "--data", tmp_path / "none")
    assert "is a fine-tuned model, not a discriminator" in refused("probe", tuned, "--data", blimp)
    folder = both / "discriminator"
    sentence = refused("probe", folder, "--data", blimp, "--network", "generator")
    assert "not hold the weights of a generator" in sentence


def test_overall_accuracy_is_over_pairs(electra, both, blimp, monkeypatch):
    found = [
        PhenomenonAccuracy(phenomenon="a", accuracy=1.0, pairs=20),
        PhenomenonAccuracy(phenomenon="b", accuracy=0.4, pairs=10),
    ]
    monkeypatch.setattr("electra.finetune.probe.probe", lambda *_: {"discriminator": found})
    _, out, _ = electra("probe", both, "--data", blimp, "--json")
    whole = json.loads(out.splitlines()[-1])
    assert (whole["phenomenon"], whole["pairs"]) == ("all", 30)
    assert whole["accuracy"] == pytest.approx((20 + 4) / 30)


def test_baselines_against_counting(electra, both, blimp, data_folder, tokenizer_folder):
    """Every training row counted token by token, and each pair decided by hand."""
    shards = Shards.open(data_folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    counts = Counter()
    for row in shards.gather("train", np.arange(shards.rows("train"))):
        counts.update(row[: row[-1]].tolist())
    total = sum(counts.values()) + shards.vocabulary_size

    def right(pair, score) -> float:
        good, bad = (score(tokenizer.encode(s, add_special_tokens=False).ids) for s in pair)
        return 0.5 if math.isclose(good, bad, rel_tol=1e-12) else float(good > bad)

    def by_frequency(ids) -> float:
        return math.fsum(math.log((counts[i] + 1) / total) for i in ids)

    every = [(pair.good, pair.bad) for pair in load_blimp(blimp)]
    frequency = [right(pair, by_frequency) for pair in every]
    length = [right(pair, lambda ids: -len(ids)) for pair in every]
    assert 0 < sum(frequency) < len(every)
    assert 0.5 in length
    code, out, _ = electra("probe", both, "--data", blimp, "--baseline", data_folder, "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    found = {line["network"]: line["accuracy"] for line in lines if line["phenomenon"] == "all"}
    assert list(found) == ["discriminator", "frequency", "length"]
    assert found["frequency"] == pytest.approx(np.mean(frequency))
    assert found["length"] == pytest.approx(np.mean(length))


def test_a_baseline_needs_shards(refused, both, blimp, tmp_path):
    assert str(tmp_path) in refused("probe", both, "--data", blimp, "--baseline", tmp_path)


def test_the_same_words_in_another_order_are_a_tie_for_the_baselines(data_folder):
    shuffled = []
    for number, text in enumerate(sentences(200)):
        words = text.split()
        random.Random(number).shuffle(words)
        shuffled.append(Pair(phenomenon="x", paradigm="x", good=text, bad=" ".join(words)))
    for name, (found,) in probe_baselines(shuffled, data_folder).items():
        assert found.accuracy == 0.5, name
