"""Electric: the noise-contrastive loss, the two towers, and what teaches what."""

import math
from dataclasses import replace

import pytest
import torch

from electra.api import load
from electra.objectives.electric import prior_logit
from electra.train.pretrain import start


def test_the_towers_see_all_tokens_but_the_predicted_one(make, batch):
    towers = make("electric").generator
    ids, segments, attention_mask = (t[:1] for t in batch[:3])  # a full row
    before = towers(ids, segments, attention_mask)[..., :60]
    for place in (1, 17, 38):
        other = ids.clone()
        other[0, place] = 5 + (ids[0, place] - 4) % 50
        changed = (towers(other, segments, attention_mask)[..., :60] - before).abs().amax(-1)[
            0
        ] > 1e-6
        assert not changed[place]
        assert changed[[p for p in range(40) if p != place]].all()


def test_padding_is_not_read(make, batch):
    towers = make("electric").generator
    before = towers(*batch[:3])
    assert before[..., :60].isfinite().all()
    other = batch._replace(ids=torch.where(batch.attention_mask, batch.ids, 9))
    after = towers(*other[:3])
    torch.testing.assert_close(after[batch.attention_mask], before[batch.attention_mask])


def test_the_loss_against_the_formula(make, batch, ask):
    """-log k q / ((n - k) p + k q) for noise, -log of the rest for data; p = exp(-E)."""
    objective = make("electric", generator_weight=0.6, discriminator_weight=7.0, temperature=1.5)
    with torch.no_grad():
        objective.discriminator.score.weight *= 20  # energies that differ
    masked, output, sums = ask(objective, batch)
    logits = objective.generator(*batch[:3]).detach().double()
    energies = objective.discriminator(
        output.corrupted, batch.segments, batch.attention_mask
    ).double()
    cloze, nce = [], []
    for row in range(len(batch.ids)):
        places = [
            p for p in range(40) if batch.attention_mask[row, p] and batch.ids[row, p] not in (2, 3)
        ]
        noise = {int(p) for p in masked.positions[row][masked.is_masked[row]]}
        n, k = len(places), len(noise)
        for place in places:
            true, here = int(batch.ids[row, place]), int(output.corrupted[row, place])
            cloze.append(-math.log(logits[row, place].softmax(0)[true]))
            q = (logits[row, place] / 1.5).softmax(0)[here].item()
            p = math.exp(-energies[row, place].item())
            is_noise = k * q / ((n - k) * p + k * q)
            nce.append(-math.log(is_noise if place in noise else 1 - is_noise))
            expected = math.log(is_noise / (1 - is_noise))
            assert output.logits[row, place].item() == pytest.approx(expected, abs=1e-3)
            assert bool(output.replaced[row, place]) == (place in noise)  # also a true sample
    expected = 0.6 * sum(cloze) / len(cloze) + 7 * sum(nce) / len(nce)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["detection_loss"] == pytest.approx(sum(nce) / len(nce), rel=1e-5)
    assert output.loss_mask.sum() == len(nce)
    assert not {"recall", "precision"} & metrics.keys()  # a perfect model flags nothing


def test_noise_equal_to_the_original_is_noise(make, batch, ask):
    objective = make("electric")
    with torch.no_grad():
        objective.generator.bias[9] = 1e3  # always this token
    masked, output, sums = ask(
        objective, batch._replace(ids=torch.where(batch.ids > 4, 9, batch.ids))
    )
    assert torch.equal(output.replaced.sum(1), masked.is_masked.sum(1))
    assert (output.replaced.sum(1) > 0).all()
    right = torch.where(output.replaced, output.logits, -output.logits).sigmoid()
    assert sums["detection_loss"] == pytest.approx(-right.log()[output.loss_mask].sum().item())


def test_the_prior_logit():
    noise = torch.tensor([[True, True, False, False, False], [True, False, False, False, False]])
    words = torch.tensor([[True, True, True, True, True], [True, False, False, False, False]])
    assert prior_logit(noise, words).flatten().tolist() == pytest.approx([math.log(2 / 3), 0.0])


def test_the_loss_is_least_at_the_true_energies():
    """Data from p, noise from q, k of n: the gradient is zero at E = -log p, and only there."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    n, k = 20, 3

    def gradient(energies):
        energies = energies.clone().requires_grad_()
        logit = energies + q.log() + math.log(k / (n - k))
        loss = -(n - k) * (p * torch.nn.functional.logsigmoid(-logit)).sum()
        loss = loss - k * (q * torch.nn.functional.logsigmoid(logit)).sum()
        return torch.autograd.grad(loss, energies)[0]

    assert gradient(-p.log()).abs().max() < 1e-6
    assert gradient(-p.log() + 0.1).abs().min() > 1e-3  # normalised without being told


def test_which_parameters_are_trained(make, batch, reached):
    found = reached(make("electric", generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("generator.")}
    objective = make("electric", discriminator_weight=0.0)
    found = reached(objective, batch)
    shared = "discriminator.encoder.embeddings."
    assert {n for n in found if n.startswith("discriminator.")} == {
        n for n, _ in objective.named_parameters() if n.startswith(shared)
    }
    assert {n for n, _ in objective.named_parameters() if n.startswith("generator.")} <= found


@pytest.mark.parametrize("share", ["embeddings", "none", "gdes"])
def test_the_towers_share_their_embeddings(share, make, batch, ask):
    objective = make("electric", generator={"tie": share})
    towers = objective.generator
    assert towers.forwards.embeddings is towers.backwards.embeddings
    mine = objective.discriminator.encoder.embeddings
    assert (towers.forwards.embeddings is mine) == (share == "embeddings")
    assert ask(objective, batch)[1].loss.isfinite()
    assert list(objective.networks()) == ["discriminator"]  # transformers has no towers


def test_the_command_that_scores(electra, refused, tiny, tmp_path, console):
    """A line per sentence; a model of another kind is refused."""
    electric = replace(tiny, objective=replace(tiny.objective, kind="electric"))
    for name, config in (("electric", electric), ("rtd", tiny)):
        short = replace(config, train=replace(config.train, budget="2steps"))
        assert start(short, tmp_path / name, console) == 0
    texts, file = ["the old farmer", "a tired baker in the oven"], tmp_path / "x.txt"
    file.write_text("\n".join(texts) + "\n\n")
    code, out, _ = electra("score", tmp_path / "electric", file)
    assert code == 0
    found = [float(line.split()[0]) for line in out.splitlines()]
    assert found == pytest.approx(load(tmp_path / "electric").score(texts), abs=1e-3)
    assert "objective.kind=electric" in refused("score", tmp_path / "rtd", file)
