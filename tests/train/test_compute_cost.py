"""The cost of recipes, as `electra flops` prints it."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest

from electra import cli
from electra.models.electra import (
    GeneratorConfig,
    build_pair,
)
from electra.models.encoder import EncoderConfig
from electra.models.flops import encoder_flops, row_flops, workloads_of
from electra.models.paper_flops import (
    BERT_BASE,
    ELECTRA_SMALL,
    MODELS,
)
from electra.objectives.corrupt import max_masked
from electra.objectives.settings import Kind
from electra.recipes import recipe

KINDS = get_args(Kind)
NAMED = {model.name: model for model in MODELS}


def step_flops(
    model: EncoderConfig, generator: GeneratorConfig, length: int, slots: int, kind: str = "rtd"
) -> int:
    """What a row costs in a step."""
    return row_flops(workloads_of(kind, model, generator, length, slots), length)


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
    kept = workloads_of(kind, model, GeneratorConfig(), 128, 19)[-1:]
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
        (("flops", "model.layers=3"), "is a setting, not a recipe"),
        (("flops", "--budget", "1e16flops"), "Name a recipe"),
        (("flops", "toy", "--budget", "1e16flips"), "is not a budget"),
        (("flops", "toy", "generator.tie=all"), "need the same size"),
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
