"""The examples of docs/extending.md run, and what they build works in a training step."""

import json
import random
import re
from pathlib import Path

import pytest
import torch

from electra.models.electra import Discriminator, Generator, GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
EXAMPLES = dict(
    re.findall(r"<!-- tested: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
VOCAB = VocabInfo(4, (0, 2, 3, 4))


def run(name: str) -> dict:
    namespace = {"__name__": "example"}
    exec(EXAMPLES[name], namespace)
    return namespace


def step(objective, optimizer=None):
    """One step on random rows."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randint(5, 100, (4, 26), generator=g)
    rows[:, -2:] = 24
    output = objective(*objective.mask_batch(rows))
    output.loss.backward()
    if optimizer is not None:
        optimizer.step(1e-3)
        optimizer.zero_grad()
    return output


def make_pair():
    torch.manual_seed(0)
    model = EncoderConfig(layers=1, hidden=64, embedding=32, vocab_size=100, dropout=0.0)
    return build_pair(model, GeneratorConfig(width=0.5))


def test_every_example_is_run():
    assert EXAMPLES.keys() == {"encoder", "optimizer", "objective", "task"}
    excerpts = PAGE.read_text().count("```python\n# src/electra/")
    assert PAGE.read_text().count("```python") == len(EXAMPLES) + excerpts


def test_the_encoder():
    found = run("encoder")
    encoder = found["encoder"]
    assert all(type(layer) is found["SiluLayer"] for layer in encoder.layers)
    generator = Generator(encoder)
    objective = ReplacedTokenDetection(ObjectiveConfig(), generator, Discriminator(encoder), VOCAB)
    assert step(objective).loss.isfinite()
    assert encoder.layers[1].up_proj.weight.grad.any()


def test_the_optimizer(tiny, tmp_path, console, monkeypatch):
    """In a whole run, with a checkpoint that resumes."""
    from electra.train import pretrain
    from electra.train.checkpoint import checkpoints

    sgd = run("optimizer")["Sgd"]
    monkeypatch.setattr(
        pretrain, "build_optimizer", lambda objective, *_, **__: sgd(objective.parameters())
    )
    out = tmp_path / "run"
    assert pretrain.start(tiny, out, console) == 0
    assert (checkpoints(out)[-1] / "optimizer.safetensors").is_file()
    assert pretrain.resume(out, console) == 0


def test_the_objective():
    weighted = run("objective")["WeightedDetection"]
    losses = {}
    for kind in (ReplacedTokenDetection, weighted):
        config = ObjectiveConfig(generator_weight=0.0, discriminator_weight=1.0)
        output = step(kind(config, *make_pair(), VOCAB).eval())
        losses[kind] = output.loss.item()
        bce = torch.nn.functional.binary_cross_entropy_with_logits(
            output.logits, output.replaced.float(), reduction="none"
        )
    extra = bce[output.replaced].sum().item() / output.loss_mask.sum().item()
    assert losses[weighted] == pytest.approx(losses[ReplacedTokenDetection] + extra, rel=1e-5)
    assert extra > 0


@pytest.fixture
def _with_ordinal(monkeypatch):
    """The example, registered for one test."""
    from electra.finetune import kinds
    from electra.tasks import load

    for table in (kinds.KINDS, load.USER_TASKS):
        monkeypatch.setitem(table, "ordinal", None)
    run("task")


@pytest.mark.usefixtures("_with_ordinal")
def test_the_task(model_folder, electra, tmp_path):
    """`electra finetune` learns to count 'old' with it, and `electra predict` knows it."""
    rng = random.Random(0)
    for split, count in (("train", 400), ("dev", 60)):
        stars = [rng.randrange(4) for _ in range(count)]
        texts = [" ".join(["old"] * n + ["river"] * (3 - n)) for n in stars]
        rows = [f"{text},{10 * n}" for text, n in zip(texts, stars, strict=True)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    settings = ("lr=3e-3", "layer_decay=1", "epochs=6", "pool=max", "device=cpu")
    out = tmp_path / "tuned"
    where = ("--data", tmp_path, "--out", out)
    code, shown, problems = electra(
        "finetune", model_folder, "ordinal", *where, *settings, "--seeds", "1", "--json"
    )
    assert code == 0, problems
    result = json.loads(shown)
    assert result["accuracy"] > 0.6
    assert 0 <= result["mae"] < 0.5
    assert not result["failed"]
    (tmp_path / "new.txt").write_text("old old old\nriver river river\n")
    code, shown, problems = electra("predict", out, tmp_path / "new.txt")
    assert code == 0, problems
    assert [json.loads(line)["label"] for line in shown.splitlines()] == ["30", "0"]


@pytest.mark.usefixtures("_with_ordinal")
def test_the_loss_of_the_task_is_that_of_independent_thresholds():
    from electra.finetune.kinds import make_kind
    from electra.finetune.rows import RowBatch
    from electra.hub.heads import TaskCard

    kind = make_kind(TaskCard(name="stars", kind="ordinal", labels=["1", "2", "3"]))
    logits = torch.tensor([[0.5, -1.0], [2.0, 0.3]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    batch = RowBatch(mask, mask, mask, torch.tensor([1, 2]))
    found = kind.loss(lambda hidden, attention_mask: hidden, logits, batch, None)
    p = logits.sigmoid()
    wanted = -(p[0, 0].log() + (1 - p[0, 1]).log() + p[1, 0].log() + p[1, 1].log())
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
