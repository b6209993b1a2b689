"""Training: a seed alone is the seed in company, each layer has its rate, and tasks are learned."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from electra.errors import UserError
from electra.finetune.batches import LENGTHS
from electra.finetune.fit import fit, layer_groups
from electra.finetune.infer import infer
from electra.finetune.kinds import TaskKind, make_kind
from electra.finetune.kinds.choice import Choice
from electra.finetune.run import resolve_settings
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import DropoutRng, stack, unstack_
from electra.hub.heads import TaskCard
from electra.models.encoder import Attention, Encoder, EncoderConfig
from electra.models.heads import TaskModel
from electra.tasks.examples import IGNORE_INDEX, Sentence, Task

CPU = torch.device("cpu")


SIZES = EncoderConfig(
    layers=2, hidden=32, heads=2, embedding=16, max_positions=32, vocab_size=40, init_std=0.1
)


KINDS = (
    ("classify", "paper"),
    ("classify", "transformers"),
    ("regress", "paper"),
    ("choice", "paper"),
    ("choice", "transformers"),
    ("tag", "paper"),
    ("qa", "paper"),
    ("qa", "transformers"),
)


def make(name: str, head: str = "paper", outputs: int = 3, **card) -> TaskKind:
    """A kind with `outputs` labels; for questions, 0 means that all have an answer."""
    labels = [str(i) for i in range(outputs)]
    return make_kind(
        TaskCard(
            name="made", kind=name, labels=labels, head=head, has_unanswerable=outputs > 0, **card
        )
    )


def network(seed: int, kind: str, head: str = "paper") -> TaskModel:
    """All seeds share the encoder weights but not the head."""
    torch.manual_seed(1000)
    encoder = Encoder(SIZES)
    torch.manual_seed(seed)
    return TaskModel(encoder, make(kind, head).build_head(encoder))


def config(**settings) -> FinetuneConfig:
    return FinetuneConfig(
        **{"lr": 1e-3, "layer_decay": 0.8, "epochs": 2, "batch_size": 8, **settings}
    )


def train(networks, features, kind, seeds, settings, **more) -> TaskModel:
    given = {"pad_id": 0, "device": CPU, "dtype": torch.float32}
    return fit(networks, features, make(kind), settings, seeds, **given, **more)


def asked(model, features, kind, seeds=1) -> list[dict[str, np.ndarray]]:
    given = {"pad_id": 0, "device": CPU, "dtype": torch.float32}
    return infer(model, features, make(kind, beam_size=4), seeds=seeds, **given)


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_a_seed_alone_equals_the_seed_in_a_stack(kind, head, made):
    assert SIZES.dropout == SIZES.attention_dropout == 0.1  # the noise must be the seed's own too
    features, dev, seeds = made(kind, 26), made(kind, 7, seed=1), [0, 1, 2]
    together = train([network(s, kind, head) for s in seeds], features, kind, seeds, config())
    alone = train([network(1, kind, head)], features, kind, [1], config())
    state = together.state_dict()
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(state[name][1], tensor[0], rtol=0, atol=1e-4, msg=name)
    (own,), all_seeds = asked(alone, dev, kind), asked(together, dev, kind, seeds=3)
    for name, values in own.items():
        np.testing.assert_allclose(all_seeds[1][name], values, atol=1e-3, err_msg=name)
    # And they are not all the same one: neither the heads nor what the encoder has become.
    shared = state["encoder.layers.1.up_proj.weight"]
    assert (shared[0] - shared[1]).abs().max() > 1e-3
    assert (shared[1] - shared[2]).abs().max() > 1e-3


def test_a_seed_does_not_depend_on_its_place_in_the_stack(made):
    features = made("classify", 26)
    found = {}
    for seeds in ([4, 9], [9, 4], [9]):
        networks = [network(seed, "classify") for seed in seeds]
        whole = train(networks, features, "classify", seeds, config())
        unstack_(networks[seeds.index(9)], whole, seeds.index(9))
        found[tuple(seeds)] = networks[seeds.index(9)].state_dict()
    for name, tensor in found[9,].items():
        for company in ((4, 9), (9, 4)):
            torch.testing.assert_close(found[company][name], tensor, rtol=0, atol=1e-4)


def test_nan_in_one_seed_does_not_reach_the_others(made):
    features, seeds = made("classify", 26), [0, 1]
    networks = [network(seed, "classify") for seed in seeds]
    with torch.no_grad():
        networks[0].encoder.layers[0].up_proj.weight[0, 0] = float("nan")
    alone = train([copy.deepcopy(networks[1])], features, "classify", [1], config())
    together = train(networks, features, "classify", seeds, config()).state_dict()
    assert together["head.output.weight"][0].isnan().all()
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(together[name][1], tensor[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["classify", "tag", "qa"])
def test_rows_as_long_as_the_position_table(kind, made):
    """Rows are not padded beyond it."""
    features = made(kind, 60)
    longest = max(map(len, features.input_ids))
    assert longest not in LENGTHS
    encoder = Encoder(replace(SIZES, max_positions=longest))
    model = TaskModel(encoder, make(kind).build_head(encoder))
    train([model], features, kind, [0], config())


def test_no_dropout_anywhere(made):
    """No random bytes are drawn."""
    sizes = replace(SIZES, dropout=0.0, attention_dropout=0.0)
    encoders = [Encoder(sizes) for _ in range(2)]
    networks = [TaskModel(e, make("classify", dropout=0.0).build_head(e)) for e in encoders]
    alone = train(networks[1:], made("classify", 16), "classify", [1], config())
    together = train(networks, made("classify", 16), "classify", [0, 1], config()).state_dict()
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(together[name][1], tensor[0], rtol=0, atol=1e-4)


def test_training_is_deterministic(made):
    features = made("tag", 20)
    one, two = (
        train([network(s, "tag") for s in (0, 1)], features, "tag", [0, 1], config())
        for _ in range(2)
    )
    for name, tensor in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], tensor), name


@pytest.mark.parametrize(("gap", "more"), [("even", 0), ("released", 1)])
def test_learning_rate_factors_per_layer(gap, more):
    encoder = Encoder(EncoderConfig(layers=3, hidden=32, heads=2, embedding=16, vocab_size=40))
    model = TaskModel(encoder, make("classify", outputs=2).build_head(encoder))
    groups, factors = layer_groups(model, config(layer_decay=0.5, layer_gap=gap))
    factor = {id(p): f for group, f in zip(groups, factors, strict=True) for p in group}
    for name, p in model.named_parameters():
        # By hand: the head 1, the layer below it 1/2, and the embeddings below layer 0.
        steps = {"embeddings": 4, "embedding_proj": 4, "layers.0": 3, "layers.1": 2, "layers.2": 1}
        below = next((n for start, n in steps.items() if name.startswith(f"encoder.{start}")), 0)
        assert factor[id(p)] == 0.5 ** (below + more if below else 0), name
    listed = [id(p) for group in groups for p in group]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())  # each once, none left out


def test_layers_are_updated_with_their_rates(made):
    """Adam's first step without correction is 0.1 / √0.001 times the rate, whatever the gradient.

    That is where the gradient is well above eps; so the largest change of a layer tells its rate.
    """
    settings = config(lr=1e-4, layer_decay=0.8, epochs=1, batch_size=8, warmup=0.0)
    before = network(0, "classify")
    after = train([before], made("classify", 8), "classify", [0], settings).state_dict()
    moved: dict[str, float] = {}
    for name, tensor in before.state_dict().items():
        part = ".".join(name.split(".")[: 3 if "layers" in name else 2])
        change = (after[name][0] - tensor).abs().max().item()
        moved[part] = max(moved.get(part, 0.0), change)
    wanted = {
        "head.output": 1.0,
        "encoder.layers.1": 0.8,
        "encoder.layers.0": 0.8**2,
        "encoder.embeddings": 0.8**3,
        "encoder.embedding_proj": 0.8**3,
    }
    assert moved.keys() == wanted.keys()
    for part, factor in wanted.items():
        assert moved[part] == pytest.approx(1e-4 * factor * 0.1 / 0.001**0.5, rel=0.01), part


@pytest.mark.parametrize(
    ("decay", "clip", "correction"), [(3.0, 1.0, False), (0.0, 1e-5, False), (0.0, 1.0, True)]
)
def test_optimizer_settings(decay, clip, correction, made):
    """One step with one learning rate; the expected head weights are computed by hand."""
    given = {"weight_decay": decay, "clip": clip, "bias_correction": correction}
    settings = config(layer_decay=1.0, epochs=1, batch_size=8, warmup=0.0, **given)
    before = network(0, "classify")
    for module in before.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(module, Attention):
            module.dropout = 0.0
    features = made("classify", 8)
    after = train([before], features, "classify", [0], settings).state_dict()
    for ids, first, label in zip(
        features.input_ids, features.segment_start, features.labels, strict=True
    ):
        row = torch.from_numpy(ids).long()[None]
        segments = (torch.arange(len(ids)) >= first).long()[None]
        logits = before.head(before.encoder(row, segments), torch.ones_like(row).bool())
        (-logits.log_softmax(-1)[0, label]).backward()
    norm = torch.stack([p.grad.norm() for p in before.parameters()]).norm()
    for name, p in before.head.named_parameters():
        gradient = p.grad / max(1.0, norm.item() / clip)
        mean, square = (
            (gradient, gradient**2) if correction else (0.1 * gradient, 1e-3 * gradient**2)
        )
        update = mean / (square.sqrt() + 1e-6) + (decay * p if p.ndim > 1 else 0.0)
        moved = (after[f"head.{name}"][0] - p).detach()
        torch.testing.assert_close(moved, -1e-3 * update.detach(), rtol=1e-2, atol=2e-6)


def test_warmup_starts_at_zero(made):
    """The first step has learning rate 0, so one step changes nothing."""
    before = network(0, "classify")
    settings = config(epochs=1, batch_size=8, warmup=0.1, weight_decay=0.1)
    after = train([before], made("classify", 8), "classify", [0], settings).state_dict()
    assert all(torch.equal(after[n][0], tensor) for n, tensor in before.state_dict().items())


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [(40, 8, 1.5, 7), (40, 8, 0.2, 1), (43, 8, 3, 15), (5, 32, 3, 3), (40, 8, 12.2, 61)],
)
def test_number_of_steps(examples, batch, epochs, steps, made):
    told = []
    train(
        [network(0, "tag")],
        made("tag", examples),
        "tag",
        [0],
        config(batch_size=batch, epochs=epochs),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (steps, steps)
    assert told[:-1] == [(done, steps) for done in range(20, steps, 20)]


def test_less_than_one_step_is_refused(made):
    with pytest.raises(UserError, match=r"0\.1 epochs of 40 examples are less than one step"):
        train([network(0, "tag")], made("tag", 40), "tag", [0], config(epochs=0.1))


@pytest.mark.parametrize("kind", ["choice", "tag"])
def test_it_learns(kind, made):
    settings = config(lr=3e-3, layer_decay=1.0, epochs=8 if kind == "tag" else 20)
    model = train([network(0, kind)], made(kind, 96), kind, [0], settings)
    dev = made(kind, 40, seed=1)
    (found,) = asked(model, dev, kind)
    if kind == "choice":
        right = found["scores"].reshape(-1, 3).argmax(1) == dev.labels
    else:
        pairs = zip(found["tags"], dev.labels, strict=True)
        right = np.concatenate([(t[: len(g)] == g)[g != IGNORE_INDEX] for t, g in pairs])
    assert right.mean() > 0.95


def test_options_of_an_example_are_consecutive(made):
    """Also when the seeds are stacked."""
    features = made("choice", 9)
    picked = []
    loss = Choice.loss

    def watched(self, head, hidden, batch, config):
        picked.append(batch)
        return loss(self, head, hidden, batch, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Choice, "loss", watched)
        settings = config(batch_size=3, epochs=1)
        train([network(s, "choice") for s in (0, 1)], features, "choice", [0, 1], settings)
    rows = {tuple(row.tolist()): number for number, row in enumerate(features.input_ids)}
    for batch in picked:
        assert batch.rows_per_example == 3
        length = batch.attention_mask.sum(1).tolist()
        number = [rows[tuple(r[:n].tolist())] for r, n in zip(batch.ids, length, strict=True)]
        assert len(number) == 2 * 3 * 3  # seeds, examples, options
        assert number[0::3] == [n - 1 for n in number[1::3]] == [n - 2 for n in number[2::3]]
        assert all(n % 3 == 0 for n in number[0::3])
        assert batch.target.tolist() == [features.labels[n // 3] for n in number]


@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_denormalize_regression(head, made):
    whole = stack([network(s, "regress", head) for s in (0, 1)], DropoutRng([0, 1], CPU)).eval()
    dev = made("regress", 5)
    before = [found["scores"] for found in asked(whole, dev, "regress", seeds=2)]
    make("regress", head).denormalize_(whole.head, (-3.0, 7.0))
    after = [found["scores"] for found in asked(whole, dev, "regress", seeds=2)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, 10 * old - 3, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("hidden", "lr", "decay"),
    [(256, 3e-4, 0.8), (512, 1e-4, 0.8), (768, 1e-4, 0.8), (1024, 5e-5, 0.9)],
)
def test_defaults_follow_the_paper(hidden, lr, decay):
    model = EncoderConfig(hidden=hidden, vocab_size=100)
    task = Task(name="rte", kind="classify", splits={}, epochs=10)
    found = resolve_settings(FinetuneConfig(), model, task)
    assert (found.lr, found.layer_decay, found.epochs, found.max_length) == (lr, decay, 10, 128)
    assert (found.batch_size, found.warmup, found.dropout, found.weight_decay) == (
        32,
        0.1,
        0.1,
        0.0,
    )
    assert found.layer_gap == "even"
    assert found.doc_stride == 64  # half of a window
    own = resolve_settings(
        FinetuneConfig(lr=1.0, layer_decay=0.5, epochs=1, max_length=600), model, task
    )
    assert (own.lr, own.layer_decay, own.epochs, own.max_length) == (1.0, 0.5, 1, 512)
    assert own.doc_stride == 128


@pytest.mark.parametrize(
    ("examples", "batch_size", "epochs"),
    [(200, 32, 20), (200, 8, 5), (20, 32, 120), (33, 32, 120), (1280, 32, 3), (1250, 32, 4)],
)
def test_few_examples_of_your_own_get_more_epochs(examples, batch_size, epochs):
    model = EncoderConfig(vocab_size=100)
    splits = {"train": [Sentence(id="1", text="x", label=0)] * examples}
    task = Task(name="mine", kind="classify", splits=splits, min_steps=120)
    config = FinetuneConfig(batch_size=batch_size)
    assert resolve_settings(config, model, task).epochs == epochs
    assert resolve_settings(replace(config, epochs=0.5), model, task).epochs == 0.5
    papers = replace(task, min_steps=0)
    assert resolve_settings(config, model, papers).epochs == 3
