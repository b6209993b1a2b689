"""Compute: the published figures by the paper's rules, and torch's own count of real steps."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra import cli
from electra.models.electra import (
    Discriminator,
    Generator,
    GeneratorConfig,
    build_pair,
    generator_sizes,
)
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.flops import Work, encoder_flops, forward_flops, row_flops, works_of
from electra.models.paper_flops import (
    BERT_BASE,
    ELECTRA_SMALL,
    MODELS,
    paper_inference_flops,
    paper_row_flops,
)
from electra.objectives.batch import unpack
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build
from electra.objectives.objective import Objective, VocabInfo
from electra.objectives.settings import Kind, ObjectiveConfig
from electra.recipes import recipe

KINDS = get_args(Kind)
NAMED = {model.name: model for model in MODELS}
TINY = EncoderConfig(layers=2, hidden=64, embedding=48, vocab_size=100)


@pytest.mark.parametrize(
    ("name", "published", "derived"),
    [
        ("ELMo", (3.3e18, 3.3e18), 3.41e18),
        ("GPT", (4.0e19, 4.0e19), 3.97e19),
        ("BERT-Small", (1.4e18, 1.4e18), 1.42e18),
        ("BERT-Base", (6.4e19, 6.4e19), 6.43e19),
        ("BERT-Large", (1.9e20, 1.9e20), 1.92e20),
        ("ELECTRA-Small", (1.3e18, 1.4e18), 1.29e18),  # the authors' counter; the paper: 1.4e18
        ("ELECTRA-Base", (6.4e19, 6.4e19), 6.42e19),
        ("ELECTRA-400K", (7.1e20, 7.1e20), 7.12e20),
        ("ELECTRA-1.75M", (3.1e21, 3.1e21), 3.11e21),
        ("RoBERTa-100K", (6.4e20, 6.4e20), 3.19e21 / 5),
        ("RoBERTa", (3.2e21, 3.2e21), 3.19e21),
        ("XLNet", (3.9e21, 3.9e21), 3.86e21),
        ("ALBERT", (3.1e22, 3.1e22), 3.11e22),
    ],
)
def test_published_training(name, published, derived):
    """Within 5 % of what the paper prints, within 0.5 % of its rules worked out by others."""
    found = NAMED[name].train_flops()
    assert 0.95 * published[0] < found < 1.05 * published[1]
    assert found == pytest.approx(derived, rel=0.005)
    assert NAMED[name].train == published[1]


@pytest.mark.parametrize(
    ("name", "published", "derived"),
    [
        ("GPT", 3.0e10, None),
        ("BERT-Small", 3.7e9, 3.68e9),
        ("ELECTRA-Small", 3.7e9, 3.68e9),
        ("BERT-Base", 2.9e10, 2.86e10),
        ("ELECTRA-Base", 2.9e10, 2.86e10),
    ],
)
def test_published_inference(name, published, derived):
    found = NAMED[name].inference_flops()
    assert found == pytest.approx(published, rel=0.05)
    assert found == pytest.approx(derived or published, rel=0.002 if derived else 0.05)
    assert NAMED[name].inference == published


def test_the_rules_by_hand():
    """One layer of 2 with a vocabulary of 10, three tokens: each term of the rules apart."""
    sizes = EncoderConfig(layers=1, hidden=2, embedding=3, feed_forward=5, vocab_size=10)
    attention = 3 * 2 * 2 * 2 + 3 * 2 + 2 * 2 * 3 + 3 * (5 + 4 + 1) + 2 * 2 * 3
    attention += 2 * 2 * 2 + 2 + 4 * 2 + 2 + 5  # output, bias, dropout, residual, LayerNorm
    feed_forward = 2 * 2 * 5 + 8 * 5 + 5 + 2 * 2 * 5 + 2 + 4 * 2 + 2 + 5 * 2
    lookup = 2 * 3 * (3 + 2) + 2 * 3 + 5 * 3 + 4 * 3
    tower = attention + feed_forward + 2 * 2 * 3 + 2
    body = 3 * (tower + lookup)
    one_hot = 3 * 2 * 3 * 10
    word = 2 * 2 * 3 + 3 + 8 * 3 + 5 * 3 + 2 * 3 * 10 + 5 * 10 + 2 * 10
    verdict = 2 * 2 * 2 + 2 + 8 * 2 + 2 * 2
    frozen = Work(sizes=sizes, trained=False)
    assert paper_row_flops([frozen], 3) == body + one_hot
    assert paper_row_flops([Work(sizes=sizes, words=2)], 3) == 2 * (body + one_hot + 2 * word)
    assert paper_inference_flops(sizes, 3) == body + one_hot + 3 * verdict
    # Two towers on one lookup; the state of the second is one more input of a word
    two = body + 3 * tower + one_hot + 2 * (word + 2 * 2 * 3)
    assert paper_row_flops([Work(sizes=sizes, words=2, towers=2)], 3) == 2 * two
    half = Work(sizes=sizes, share=0.5)  # in every other step
    assert paper_row_flops([half], 3) == body + one_hot


def objective_of(model: EncoderConfig, generator: GeneratorConfig, kind: Kind = "rtd") -> Objective:
    ids = VocabInfo(mask_id=4, special_ids=(0, 1, 2, 3, 4))
    return build(ObjectiveConfig(kind=kind), model, generator, ids)


def step_flops(
    model: EncoderConfig, generator: GeneratorConfig, length: int, slots: int, kind: str = "rtd"
) -> int:
    """What a row costs in a step."""
    return row_flops(works_of(kind, model, generator, length, slots), length)


def rows_of(model: EncoderConfig, length: int, rows: int = 2) -> torch.Tensor:
    found = torch.randint(5, model.vocab_size, (rows, length + 2))
    found[:, -2] = length // 2  # segment B begins here
    found[:, -1] = length
    return found


@contextlib.contextmanager
def counted():
    """Torch's count; it does not know the CPU's fused attention, so that one is left out."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def torch_flops(objective: Objective, rows: torch.Tensor) -> int:
    """Torch's count of a step, forward and backward."""
    batch = unpack(rows)
    masked = objective.mask(batch)
    with counted() as counter:
        objective(batch, masked, objective.totals(batch, masked)).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "generator", "length"),
    [
        (TINY, GeneratorConfig(), 16),
        (TINY, GeneratorConfig(width=0.5), 128),
        (TINY, GeneratorConfig(width=0.5, tie="none"), 64),
        (TINY, GeneratorConfig(width=1, tie="all"), 64),
        (replace(TINY, embedding=64), GeneratorConfig(width=0.5, depth=0.5), 200),
        (replace(TINY, embedding=64), GeneratorConfig(width=1, tie="all"), 32),
        (replace(TINY, feed_forward=100, heads=4), GeneratorConfig(width=0.5), 40),
        (replace(TINY, vocab_size=3000, dropout=0, attention_dropout=0), GeneratorConfig(), 64),
        (EncoderConfig(layers=3, hidden=192, vocab_size=700), GeneratorConfig(width=1 / 3), 96),
    ],
)
def test_replaced_token_detection_agrees_with_torch(model, generator, length):
    objective = objective_of(model, generator)
    found = torch_flops(objective, rows_of(model, length))
    slots = max_masked(length, 0.15, "round")
    ours = 2 * step_flops(model, generator, length, slots)
    assert found == pytest.approx(ours, rel=0.002)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "two-stage"])
@pytest.mark.parametrize("generator", [GeneratorConfig(), GeneratorConfig(tie="none")])
def test_every_objective_agrees_with_torch(kind, generator):
    """To the last product, but for those of a gate and a baseline, too small to count."""
    slots = max_masked(64, 0.15, "round")
    found = torch_flops(objective_of(TINY, generator, kind), rows_of(TINY, 64))
    gate = 3 * 64 * 2 * TINY.hidden
    baseline = 2 * slots * 2 * generator_sizes(TINY, generator).hidden  # its input has no gradient
    left_out = {"all-tokens-mlm": gate, "adversarial": baseline}.get(kind, 0)
    assert found == 2 * (step_flops(TINY, generator, 64, slots, kind) + left_out)


@pytest.mark.parametrize("kind", ["rtd", "replace-mlm"])
def test_generators_that_do_not_compute_agree_with_torch(kind):
    generator = GeneratorConfig(kind="unigram")
    found = torch_flops(objective_of(TINY, generator, kind), rows_of(TINY, 64))
    ours = 2 * step_flops(TINY, generator, 64, max_masked(64, 0.15, "round"), kind)
    assert found == pytest.approx(ours, rel=0.002)


def test_two_stages_agree_with_torch():
    """The mean of a step in the first half and one in the second."""
    generator = GeneratorConfig(width=1, tie="none")
    objective = objective_of(TINY, generator, "two-stage")
    first = torch_flops(objective, rows_of(TINY, 64))
    assert objective.update_progress(0.5)
    second = torch_flops(objective, rows_of(TINY, 64))
    ours = 2 * step_flops(TINY, generator, 64, max_masked(64, 0.15, "round"), "two-stage")
    assert second != first
    assert (first + second) / 2 == pytest.approx(ours, rel=0.002)


@pytest.mark.parametrize("words", [19, 128])
def test_words_agree_with_torch(words):
    """A network of the model's size that predicts some words, or all of them."""
    network = Generator(Encoder(TINY))
    ids, positions = torch.randint(5, 100, (2, 128)), torch.arange(words).repeat(2, 1)
    with counted() as counter:
        logits = network(ids, torch.zeros_like(ids), None, positions)
        F.cross_entropy(logits[..., :100].flatten(0, 1), ids[:, :words].flatten()).backward()
    ours = row_flops([Work(sizes=TINY, words=words)], 128)
    assert counter.get_total_flops() == pytest.approx(2 * ours, rel=0.002)


def test_inference_agrees_with_torch():
    encoder = Encoder(TINY).eval()
    ids = torch.randint(5, 100, (1, 96))
    with counted() as counter, torch.no_grad():
        encoder(ids, torch.zeros_like(ids))
    assert counter.get_total_flops() == encoder_flops(TINY, 96)
    with counted() as counter, torch.no_grad():
        Discriminator(encoder)(ids, torch.zeros_like(ids))
    assert counter.get_total_flops() == forward_flops(Work(sizes=TINY, verdicts=96), 96)


def test_objectives_cost_what_their_networks_do():
    generator = GeneratorConfig(width=0.5)
    small = generator_sizes(TINY, generator)
    fill, judge = Work(sizes=small, words=19), Work(sizes=TINY, verdicts=128)

    def cost(kind: str) -> int:
        return step_flops(TINY, generator, 128, 19, kind)

    def of(*works: Work) -> int:
        return row_flops(works, 128)

    assert cost("rtd") == of(fill, judge)
    assert cost("adversarial") == cost("rtd-masked") == cost("rtd")
    assert cost("mlm") == of(Work(sizes=TINY, words=19))  # no generator at all
    assert cost("replace-mlm") == of(fill) + cost("mlm")
    assert cost("all-tokens-mlm") == of(fill, Work(sizes=TINY, words=128))
    assert cost("electric") == of(Work(sizes=small, words=128, towers=2), judge)
    frozen = replace(fill, trained=False)
    # half of the steps train the generator, the other half only ask it
    assert 2 * cost("two-stage") == of(fill) + of(frozen, judge)
    for kind in ("unigram", "uniform"):  # such a generator does not compute
        assert works_of("rtd", TINY, GeneratorConfig(kind=kind), 128, 19) == (judge,)
    assert all(works_of(kind, TINY, generator, 128, 19)[-1].sizes == TINY for kind in KINDS)


@pytest.fixture
def electra(monkeypatch, capsys):
    """Run a command as the program does: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["electra", *arguments])
        code = cli.run_app()
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("paper.small", "ELECTRA-Small"),
        ("paper.base", "ELECTRA-Base"),
        ("paper.large", "ELECTRA-400K"),
    ],
)
def test_recipes_of_the_paper(electra, name, model):
    """The recipes cost what the paper's models do; each predicts its own share of the words."""
    code, out, _ = electra("flops", name, "--json")
    found, known = json.loads(out), NAMED[model]
    assert code == 0
    paper, ours = found["paper"], found["hardware"]
    assert paper["train"] == pytest.approx(known.train_flops(), rel=0.01)
    assert paper["inference_128"] == known.inference_flops()
    assert paper["times_bert_base"] == pytest.approx(paper["train"] / BERT_BASE.train_flops())
    small = paper["train"] / ELECTRA_SMALL.train_flops()
    assert paper["times_electra_small"] == pytest.approx(small)
    config = recipe(name)
    config = replace(config, model=replace(config.model, vocab_size=30522))
    length, batch = config.data.seq_length, config.data.batch_size
    slots = max_masked(length, config.objective.mask_rate, "round")
    row = step_flops(config.model, config.generator, length, slots)
    assert found["steps"] * batch == known.rows
    assert ours["train"] == found["steps"] * batch * row
    assert ours["per_token"] == pytest.approx(ours["train"] / found["tokens"])
    assert ours["inference"] > encoder_flops(config.model, length)
    pair = build_pair(replace(config.model, layers=1), config.generator)
    layer = sum(p.numel() for p in pair[1].encoder.layers[0].parameters())
    body = sum(p.numel() for p in pair[1].parameters()) + (config.model.layers - 1) * layer
    assert found["parameters"]["discriminator"] == body
    assert any("30,522" in note for note in found["notes"])


def test_a_budget_in_flops_is_spent(electra):
    """The hardware's count decides; the last step may go beyond."""
    _, out, _ = electra("flops", "paper.small", "--json", "--budget", "1e16flops")
    found = json.loads(out)
    step = found["hardware"]["train"] / found["steps"]
    assert 1e16 <= found["hardware"]["train"] < 1e16 + step
    _, out, _ = electra(
        "flops", "paper.small", "generator.width=1", "--json", "--budget", "1e16flops"
    )
    assert json.loads(out)["steps"] < found["steps"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_is_counted(electra, kind):
    settings = (f"objective.kind={kind}", "generator.width=1", "generator.tie=none")
    code, out, err = electra("flops", "paper.small", *settings, "--json")
    assert code == 0, err
    found = json.loads(out)
    config = recipe("paper.small")
    model, generator = (
        replace(config.model, vocab_size=30522),
        GeneratorConfig(width=1, tie="none"),
    )
    row = step_flops(model, generator, 128, 19, kind)
    assert found["hardware"]["train"] == 1_000_000 * 128 * row
    predicts = kind in ("mlm", "replace-mlm", "all-tokens-mlm")
    assert next(iter(found["parameters"])) == ("mlm" if predicts else "discriminator")
    assert ("generator" in found["parameters"]) == (kind != "mlm")
    assert found["paper"]["inference"] == ELECTRA_SMALL.inference_flops()


@pytest.mark.parametrize("share", ["none", "embeddings"])
@pytest.mark.parametrize("generator", ["unigram", "uniform"])
@pytest.mark.parametrize("kind", ["rtd", "rtd-masked", "replace-mlm", "all-tokens-mlm"])
def test_a_generator_without_weights_costs_nothing(electra, kind, generator, share):
    settings = (f"objective.kind={kind}", f"generator.tie={share}")
    code, out, err = electra(
        "flops", "paper.small", *settings, f"generator.kind={generator}", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    _, learned, _ = electra("flops", "paper.small", *settings, "--json")
    sizes = json.loads(learned)["parameters"]
    sizes.pop("generator")
    assert found["parameters"] == sizes
    model = replace(recipe("paper.small").model, vocab_size=30522)
    kept = works_of(kind, model, GeneratorConfig(), 128, 19)[-1:]
    assert found["hardware"]["train"] == 1_000_000 * 128 * row_flops(kept, 128)


def test_tables(electra):
    code, out, _ = electra("flops", "toy", "model.vocab_size=1000", "--budget", "1e6tokens")
    assert code == 0
    assert "30,522" not in out
    assert "977 steps" in out  # of 16 rows of 64
    for words in ("training", "inference, a row of 64", "inference, a row of 128", "generator"):
        assert words in out
    _, out, _ = electra("flops", "toy", "--budget", "2h")
    assert "give a --budget in steps, tokens or FLOPs" in out
    _, out, _ = electra("flops")
    for model in MODELS:
        line = next(line for line in out.splitlines() if line.split()[:1] == [model.name])
        assert f"{model.train:.1e}" in line
        assert f"{model.train_flops():.2e}" in line
    _, out, _ = electra("flops", "--json")
    assert [row["model"] for row in json.loads(out)] == list(NAMED)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("flops", "papr.small"), "There is no recipe 'papr.small'"),
        (("flops", "model.layers=3"), "stands where the recipe belongs"),
        (("flops", "--budget", "1e16flops"), "Name a recipe"),
        (("flops", "toy", "--budget", "1e16flips"), "is not a budget"),
        (("flops", "toy", "generator.tie=all"), "one body"),
        (("flops", "toy", "data.seq_length=0"), "data.seq_length must be at least 1"),
        (("flops", "toy", "data.seq_length=1000"), "do not fit a position table of 512"),
    ],
)
def test_mistakes_get_a_sentence(electra, arguments, sentence):
    code, _, err = electra(*arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_help_does_without_torch():
    code = (
        "import sys\nsys.argv = ['electra', 'flops', '--help']\n"
        "from electra import cli\ncli.run_app()\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Example:" in done.stdout
