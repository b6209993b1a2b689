"""The examples of docs/extending.md run, and what they build works in a training step."""

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
    assert EXAMPLES.keys() == {"encoder", "optimizer", "objective"}
    assert PAGE.read_text().count("```python") == len(EXAMPLES)


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
