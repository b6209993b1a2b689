"""Objectives with fused kernels: the same losses and gradients, the same weights."""

import copy
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.device import random_state
from electra.kernels.any_gpu import embedding, mlm, rtd
from electra.models.encoder import Encoder
from electra.objectives.kinds import KINDS
from electra.optim.adam import PaperAdam
from electra.train import checkpoint
from electra.train.accelerate import use_fused_kernels_

WORDS = 60
VARIANTS = {
    "gdes": {"generator": {"tie": "gdes"}},
    "one body": {"generator": {"tie": "all", "width": 1.0}},
    "generator first": {"generator_first": 0.5},
    "one body, generator first": {
        "generator": {"tie": "all", "width": 1.0},
        "generator_first": 0.5,
    },
    "unigram": {"generator": {"kind": "unigram"}},
    "holes in the vocabulary": {"absent": (1,)},
    "repeated draws": {"mask_sampling": "repeated", "mask_rate": 0.3},
    "no projection": {"model": {"embedding": 64}},
    "heads that do not fit": {"model": {"hidden": 48}},
}


@pytest.fixture
def compare(text, agreed, ask, near, grads_near):
    """The outcome and every gradient of an objective, before and after the kernels are put in."""

    def compared(objective, share=1e-4, **how) -> None:
        batch = text(3, 24, WORDS)
        torch.manual_seed(3)
        masked = objective.mask(batch)
        assert not masked.is_masked.all()
        agreed(masked, WORDS)
        wanted, expected = ask(objective, batch, masked)
        use_fused_kernels_(objective, **how)
        found, grads = ask(objective, batch, masked)
        near(found.loss, wanted.loss, "loss")
        near(found.metric_sums, wanted.metric_sums, "sums")
        if wanted.corrupted is not None:
            assert torch.equal(found.corrupted, wanted.corrupted)
        if wanted.logits is not None:
            assert torch.equal(found.replaced, wanted.replaced)
            near(found.logits[wanted.loss_mask], wanted.logits[wanted.loss_mask], "logits", share)
        grads_near(grads, expected, share)

    return compared


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, mode, make, compare):
    """Evaluation has no dropout, whatever the settings say."""
    p = 0.0 if mode == "train" else 0.3
    layers = 2 if kind == "rtd" else 1
    objective = make(kind, model={"dropout": p, "attention_dropout": p, "layers": layers})
    compare(objective.train(mode == "train"))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(name, make, compare):
    compare(make("rtd", **VARIANTS[name]).train())


@pytest.mark.parametrize("kind", ["rtd", "all-tokens-mlm"])
def test_half_precision_where_the_encoders_do_not_fit(kind, make, text, agreed, ask, monkeypatch):
    """What comes from a plain encoder is fp32, and what is multiplied with it is not."""

    def weight_grad(a, b):
        assert a.dtype == b.dtype == torch.bfloat16
        return a.float() @ b.float()  # the CPU has no matmul with another output type

    for module in (embedding, mlm, rtd):
        monkeypatch.setattr(module, "weight_grad", weight_grad)
    sizes = {"hidden": 48, "embedding": 48}  # on the CPU a projection would give bf16
    objective = make(kind, model=sizes, generator={"width": 1.0}).train()
    batch = text(3, 24, WORDS)
    masked = objective.mask(batch)
    agreed(masked, WORDS)
    exact, expected = ask(objective, batch, masked)
    use_fused_kernels_(objective)
    assert not any("forward" in vars(m) for m in objective.modules() if isinstance(m, Encoder))
    half, grads = ask(objective, batch, masked, torch.bfloat16)
    assert half.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    assert grads.keys() == expected.keys()
    assert all(grad.isfinite().all() for grad in grads.values())


def test_less_memory(make, compare):
    compare(make("rtd").train(), recompute=True)


@pytest.mark.parametrize("name", ["mask_batch", "run_mlm", "corrupt", "detection_loss"])
def test_methods_of_its_own_stay(name, make):
    objective = make("rtd")
    kind = type(objective)
    objective.__class__ = type("Other", (kind,), {name: lambda self, *given: None})
    use_fused_kernels_(objective)
    stages = {"mask_batch", "run_mlm", "corrupt", "detection_loss"}
    assert vars(objective).keys() & stages == stages - {name}


def test_the_second_of_two_stages(make, compare):
    """The generator is asked without gradients and gets none."""
    objective = make("two-stage").train()
    assert objective.update_progress(0.5)
    compare(objective)
    assert all(p.grad is None for p in objective.generator.parameters())
    assert all(p.grad is not None for p in objective.discriminator.parameters())


def test_both_networks_after_the_generator(make, compare):
    objective = make("rtd", generator_first=0.5).train()
    assert objective.update_progress(0.5)
    compare(objective)
    assert "forward" in vars(objective)
    assert all(p.grad is not None for p in objective.parameters())


def test_the_kernels_are_there_and_only_where_they_fit(make):
    objective = make("rtd", generator={"tie": "gdes"}, model={"hidden": 96, "heads": 6})
    use_fused_kernels_(objective)
    fused = [m for m in objective.modules() if isinstance(m, Encoder) and "forward" in vars(m)]
    assert fused == [objective.generator.encoder]  # the discriminator has tables of another kind
    assert vars(objective).keys() >= {"run_mlm", "corrupt", "detection_loss"}
    narrow = make("rtd", model={"hidden": 48})  # 24 and 12 do not fit
    use_fused_kernels_(narrow)
    assert not any("forward" in vars(m) for m in narrow.modules() if isinstance(m, Encoder))


def test_dropout_in_training_and_none_in_evaluation(make, text):
    objective, batch = (
        make("rtd", model={"dropout": 0.1, "attention_dropout": 0.1}),
        text(2, 24, 60),
    )
    use_fused_kernels_(objective)

    def passes(seed: int):
        torch.manual_seed(seed)
        return [objective.discriminator(*batch[:3]) for _ in range(2)]

    (first, second), again = passes(8), passes(8)
    assert not torch.allclose(first, second, rtol=1e-3)
    assert all(torch.equal(*pair) for pair in zip((first, second), again, strict=True))
    objective.eval()
    assert torch.equal(*passes(8))


def test_padding_changes_nothing(make, text, agreed, ask, near):
    """What stands there: not the loss, not a gradient."""
    objective, batch = make("rtd").train(), text(3, 24, WORDS - 1)
    masked = objective.mask(batch)
    agreed(masked, WORDS - 1)
    use_fused_kernels_(objective)
    before, grads = ask(objective, batch, masked)
    attention_mask = batch.attention_mask
    filled = batch._replace(
        ids=torch.where(attention_mask, batch.ids, WORDS - 1),
        segments=torch.where(attention_mask, batch.segments, 1),
    )
    inputs = torch.where(attention_mask, masked.inputs, WORDS - 1)
    after, others = ask(objective, filled, masked._replace(inputs=inputs))
    near(after.loss, before.loss, share=1e-6)
    near(after.logits[attention_mask], before.logits[attention_mask], share=1e-6)
    for name, grad in grads.items():
        near(others[name], grad, name, share=2e-6)


@pytest.mark.parametrize("length", [24, 140])
def test_a_row_means_the_same_without_its_padding(length, make, text, near):
    """And without `attention_mask`, where nothing is padding; as the plain network says."""
    objective, batch = make("rtd").eval(), text(3, length, WORDS)
    wanted = objective.discriminator(*batch[:3])
    use_fused_kernels_(objective)
    scores = objective.discriminator(*batch[:3])
    near(scores[batch.attention_mask], wanted[batch.attention_mask])
    end = int(batch.attention_mask[2].sum())
    assert end < length
    near(objective.discriminator(batch.ids[2:, :end], batch.segments[2:, :end]), scores[2:, :end])


def test_documents_in_a_row_as_the_plain_network_sees_them(make, text, ask, agreed, near):
    objective, batch = make("rtd"), text(3, 140, WORDS)
    marks = batch.ids.clone()
    marks[:, [30, 31, 100]] = 2
    rows = torch.cat([marks, batch.attention_mask.sum(1)[:, None].repeat(1, 2)], 1)
    objective.document_start_id = 2
    batch = objective.unpack(rows)
    assert batch.doc_ids.unique().numel() > 3
    masked = objective.mask(batch)
    agreed(masked, WORDS)
    wanted, grads = ask(objective, batch, masked)
    use_fused_kernels_(objective)
    found, others = ask(objective, batch, masked)
    near(found.loss, wanted.loss)
    near(found.logits[batch.attention_mask], wanted.logits[batch.attention_mask])
    for name, grad in grads.items():
        near(others[name], grad, name)


def test_what_the_softmax_of_all_tokens_mlm_says(make, text, normal, near):
    objective, batch = make("all-tokens-mlm"), text(3, 24, WORDS)
    corrupted = torch.where(batch.ids % 2 == 0, batch.ids, batch.ids.roll(1, 1))
    hidden = normal(3, 24, objective.mlm.encoder.config.hidden)
    wanted = objective.token_log_probs(hidden, batch, corrupted)
    use_fused_kernels_(objective)
    found = objective.token_log_probs(hidden, batch, corrupted)
    near(found.original[batch.attention_mask], wanted.original[batch.attention_mask])
    near(found.input, wanted.input)
    near(found.best, wanted.best)
    assert torch.equal(found.best_token, wanted.best_token)
    assert (found.best - found.input).abs().max() > 0.01  # they are not the same


def test_no_gradient_where_none_is_wanted(make, text):
    objective, batch = make("rtd").eval(), text(2, 24, WORDS)
    use_fused_kernels_(objective)
    masked = objective.mask(batch)
    with torch.no_grad():
        outcome = objective(batch, masked, objective.totals(batch, masked))
    assert not outcome.loss.requires_grad
    objective.requires_grad_(False)
    objective.discriminator.score.requires_grad_(True)
    objective.discriminator(*batch[:3]).sum().backward()
    given = {n for n, p in objective.named_parameters() if p.grad is not None}
    assert given == {"discriminator.score.weight", "discriminator.score.bias"}


def test_state_and_names_stay(make):
    objective = make("rtd")
    state = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    names = [name for name, _ in objective.named_modules()]
    use_fused_kernels_(objective)
    after = objective.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert [name for name, _ in objective.named_modules()] == names
    make("rtd").load_state_dict(after)
    objective.load_state_dict(state)


def test_a_copy_has_its_own_weights(make, text, near):
    objective, batch = make("rtd").eval(), text(2, 24, WORDS)
    use_fused_kernels_(objective)
    wanted = objective.discriminator(*batch[:3])
    other = copy.deepcopy(objective)
    with torch.no_grad():
        for p in objective.parameters():
            p.zero_()
    near(other.discriminator(*batch[:3]), wanted)
    masked = other.mask(batch)
    other(batch, masked, other.totals(batch, masked)).loss.backward()
    assert all(p.grad is None for p in objective.parameters())
    assert all(p.grad is not None for p in other.parameters())


@pytest.mark.parametrize("share", ["embeddings", "gdes"])
def test_checkpoints_are_the_same_files(share, make, tmp_path):
    objective = make("rtd", generator={"tie": share})
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "config.yaml").touch()
    optimizer = PaperAdam(list(objective.parameters()))
    state, random = checkpoint.TrainState(), random_state(torch.device("cpu"))
    before = checkpoint.save(tmp_path, state, objective, optimizer, pad_id=0, random=random)
    use_fused_kernels_(objective)
    state = replace(state, step=1)
    after = checkpoint.save(tmp_path, state, objective, optimizer, pad_id=0, random=random)
    files = sorted(p.relative_to(before) for p in before.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(after) for p in after.rglob("*") if p.is_file())
    assert len(files) > 6
    for file in files:
        if file.name != "state.json":
            assert (after / file).read_bytes() == (before / file).read_bytes(), file
