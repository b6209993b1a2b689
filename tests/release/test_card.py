"""The model card: what is known is there, what is not known is left out."""

import json
import re

import pytest
import yaml

from electra.release.card import Access, CardFacts, score_lines, training_section
from electra.release.details import CardDetails, ScoreTable
from electra.release.package import release
from electra.release.run_facts import RunFacts

DETAILS = """\
language: en
license: Apache-2.0
summary: A small encoder of a made-up language.
data:
- {name: Tales, license: CC0-1.0, amount: 40 M tokens, url: "https://example.org/tales"}
- {name: Letters, license: CC-BY-4.0, amount: 2 M tokens}
datasets: [somebody/tales]
hardware: one H200
minutes: 24
watts: 650
watts_note: mean of nvidia-smi, GPU only
command: electra pretrain fast.small --data shards --out run --budget 25min
commit: 0123abc
finetuning: With `transformers`, take a learning rate of 2e-4.
limitations: [It has seen no poems.]
evaluations:
- {title: GLUE, note: "The paper's settings.", file: results.jsonl}
- {title: BLiMP, scores: [{task: blimp, score: 0.739}]}
"""


@pytest.fixture(scope="module")
def card(finished, tmp_path_factory):
    """The card with all details."""
    folder = tmp_path_factory.mktemp("card")
    (folder / "card.yaml").write_text(DETAILS)
    lines = [
        {"task": task, "metric": metric, "score": score + seed / 100, "seed": seed, "failed": False}
        for task, metric, score in (("cola", "matthews", 0.55), ("stsb", "spearman", 0.85))
        for seed in range(3)
    ]
    (folder / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    release(str(finished), folder / "out", name="a-b", version="1.0.0", card=folder / "card.yaml")
    return (folder / "out" / "README.md").read_text()


def test_the_front_matter_is_what_the_hub_reads(card):
    from huggingface_hub import ModelCard

    data = ModelCard(card).data
    assert data.language == "en"
    assert data.license == "apache-2.0"
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "feature-extraction"
    assert data.datasets == ["somebody/tales"]
    found = {(r.dataset_name, r.metric_type): r.metric_value for r in data.eval_results}
    assert found == {
        ("GLUE CoLA", "matthews_correlation"): 0.56,
        ("GLUE STS-B", "spearmanr"): 0.86,
        ("blimp", "accuracy"): 0.739,
    }
    cola = data.eval_results[0]
    assert (cola.dataset_type, cola.dataset_config, cola.dataset_split) == (
        "nyu-mll/glue",
        "cola",
        "validation",
    )
    assert cola.metric_name == "matthews, GLUE, median of 3 seeds"


def test_scores_have_their_seeds_and_spread(card):
    assert "| CoLA | matthews | 56.0 | 56.0 ± 1.0 | 55.0 to 57.0 | 3 |" in card
    assert "| mean | | 71.0 | | | |" in card  # of the medians
    assert "| task | metric | score |\n| --- | --- | ---: |\n| blimp | accuracy | 73.9 |\n" in card
    assert "### GLUE\n\nThe paper's settings." in card


def test_a_single_seed_that_failed_is_named():
    row = {"task": "rte", "metric": "accuracy", "median": 0.5, "mean": 0.5, "deviation": 0.0}
    row |= {"lowest": 0.5, "highest": 0.5, "seeds": 1, "failed": [0]}
    lines = score_lines(ScoreTable(title="GLUE", note="", rows=[row], is_suite=True))
    assert lines[-1] == "| RTE | accuracy | 50.0 | | | 1, 1 failed |"


def test_data_training_and_energy(card):
    assert "| [Tales](https://example.org/tales) | 40 M tokens | CC0-1.0 |" in card
    assert "| Letters | 2 M tokens | CC-BY-4.0 |" in card
    # 24 minutes at 650 W are 0.26 kWh
    assert (
        "| energy | about 0.26 kWh, estimated as 24.0 minutes × 650 W "
        "(mean of nvidia-smi, GPU only) |"
    ) in card
    assert "electra pretrain fast.small --data shards --out run --budget 25min" in card
    assert "| steps | 20 |" in card
    assert "| tokens seen | 5,120 |" in card  # 20 steps of 8 rows of 32
    assert "| batch size | 8 |" in card
    assert "| commit | 0123abc |" in card
    assert re.search(r"\| validation: detection AUC \| 0\.\d{3} \|", card)


def test_settings_have_no_needless_decimals():
    settings = {"optim.warmup": 3000.0, "optim.lr": 8e-4, "data.batch_size": 256}
    run = RunFacts(
        settings=settings, command="", steps=1, tokens=1, longest=128, flops=1, minutes=1,
        validation={}, base_model="",
    )  # fmt: skip
    facts = CardFacts(name="a-b", access=Access(), networks={}, sha256={}, run=run, evaluations=[])
    section = training_section(facts, CardDetails())
    for row in ("| warm-up | 3000 |", "| peak learning rate | 0.0008 |", "| batch size | 256 |"):
        assert row in section


def test_use_finetuning_embeddings_and_limitations(card):
    assert "electra finetune a-b classify" in card
    assert (
        'ElectraForSequenceClassification.from_pretrained(PATH / "discriminator", num_labels=2)'
        in card
    )
    assert "take a learning rate of 2e-4" in card
    assert "not trained for sentence similarity" in card
    assert "- It has seen no poems." in card
    assert "- It was trained on rows of 32 tokens" in card
    assert "- At most 64 tokens" in card


def test_what_is_unknown_is_left_out(released):
    card = (released / "README.md").read_text()
    matter = yaml.safe_load(card.split("---")[1])
    assert matter.keys() == {"library_name", "pipeline_tag", "tags"}
    for unknown in ("## Scores", "## Training data", "hardware", "energy", "commit", "The command"):
        assert unknown not in card, unknown
    assert "/" not in card.split("## Training\n")[1].split("## ")[0]  # no paths of this machine


def test_the_python_in_the_card_runs(released, installed):
    installed("tiny-model-xx")
    card = (released / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, {})
