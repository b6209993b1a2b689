"""Training under transformers' Trainer equals ours, resumes, and saves two folders."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from electra.errors import UserError
from electra.hub.folders import load_discriminator, load_generator
from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig
from electra.optim.optimizer import build_optimizer
from electra.optim.schedule import learning_rate
from electra.text.shards import Shards
from electra.text.tokenizer import load_vocabulary
from electra.train.data import rows_at
from electra.train.pretrain import build_objective, resolve_data
from electra.train.step import Step
from electra.trainer import (
    DataCollatorForReplacedTokenDetection,
    ElectraForReplacedTokenDetection,
    paper_optimizers,
)

ROOT = Path(__file__).parents[1]
SIZES = EncoderConfig(
    layers=2, hidden=32, embedding=16, max_positions=64, dropout=0.0, attention_dropout=0.0
)
OPTIM = OptimConfig(lr=2e-3, warmup=0.1)
STEPS, BATCH = 3, 8


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="module")
def rows(data_folder):
    """Stored rows, with segments and padding."""
    return rows_at(Shards.open(data_folder), 0, STEPS * BATCH, seed=0)


@pytest.fixture(scope="module")
def features(rows):
    """The same as a tokenizer would return them."""
    found = []
    for row in rows.tolist():
        *ids, first, total = row
        segments = [int(i >= first) for i in range(total)]
        found.append({"input_ids": ids[:total], "token_type_ids": segments, "other": "ignored"})
    return found


def make_model(tokenizer, tie="embeddings", **settings):
    torch.manual_seed(1)
    generator = GeneratorConfig(width=1 if tie == "all" else 0.5, tie=tie)
    return ElectraForReplacedTokenDetection(tokenizer, SIZES, generator, seed=7, **settings)


def make_trainer(model, tokenizer, features, out, steps=STEPS, optim=OPTIM, **settings):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        **{
            "output_dir": str(out),
            "max_steps": steps,
            "per_device_train_batch_size": BATCH,
            "train_sampling_strategy": "sequential",
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
        }
        | settings
    )
    return Trainer(
        model,
        arguments,
        data_collator=DataCollatorForReplacedTokenDetection(tokenizer),
        train_dataset=features,
        eval_dataset=features,
        optimizers=paper_optimizers(model, STEPS, optim),
    )


@pytest.mark.parametrize("tie", ["embeddings", "gdes", "all"])
def test_three_steps_equal_ours(tie, tiny, tokenizer, rows, features, tmp_path):
    model = make_model(tokenizer, tie)
    trainer = make_trainer(model, tokenizer, features, tmp_path)
    trainer.train()
    trained = dict(model.objective.named_parameters())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    generator = GeneratorConfig(width=1 if tie == "all" else 0.5, tie=tie)
    config = replace(tiny, model=SIZES, generator=generator, optim=OPTIM)
    config, _, vocab = resolve_data(replace(config, train=replace(config.train, seed=7)))
    torch.manual_seed(1)
    objective = build_objective(config, vocab).train()
    step = Step(
        objective=objective,
        optimizer=build_optimizer(objective, OPTIM),
        forward=objective,
        dtype=torch.float32,
        micro_batch=BATCH,
    )
    for number in range(STEPS):
        objective.set_step(number)
        part = torch.from_numpy(rows[number * BATCH : (number + 1) * BATCH])
        sums = step(part, learning_rate(number / STEPS, STEPS, OPTIM))
        found = dict(zip(objective.metric_names, sums[:-2].tolist(), strict=True))
        assert losses[number] == pytest.approx(objective.compute_metrics(found)["loss"], rel=1e-4)
    ours = dict(objective.named_parameters())
    assert trained.keys() == ours.keys()
    torch.manual_seed(1)
    start = dict(build_objective(config, vocab).named_parameters())
    for name, p in ours.items():
        torch.testing.assert_close(trained[name], p, rtol=1e-5, atol=1e-6)
        moved = "norm" in name or "position" in name or not torch.equal(p, start[name])
        assert moved, name


def test_a_trainer_checkpoint_resumes_as_if_not_stopped(tokenizer, features, tmp_path):
    """With shared weights, dropout, and masks that go on where they stopped."""

    def make():
        torch.manual_seed(1)
        sizes = replace(SIZES, dropout=0.1)
        return ElectraForReplacedTokenDetection(tokenizer, sizes, GeneratorConfig(width=0.5))

    saves = {"save_strategy": "steps", "save_steps": 2}
    whole = make()
    make_trainer(whole, tokenizer, features, tmp_path / "a", **saves).train()
    stored = load_file(tmp_path / "a" / "checkpoint-2" / "model.safetensors")
    assert stored["counter"].tolist() == [0, 2]
    assert not any(name.startswith("objective.generator.encoder.embeddings") for name in stored)
    resumed = make()
    trainer = make_trainer(resumed, tokenizer, features, tmp_path / "b", **saves)
    trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    shared = resumed.objective
    assert shared.generator.encoder.embeddings is shared.discriminator.encoder.embeddings
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_the_saved_folders_load_in_transformers(tokenizer, features, tmp_path):
    from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

    model = make_model(tokenizer)
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)  # replaces, as it does at the end of a second training
    assert sorted(path.name for path in tmp_path.iterdir()) == ["discriminator", "generator"]
    ids = torch.tensor([features[0]["input_ids"]])
    segments = torch.tensor([features[0]["token_type_ids"]])
    networks, mask = model.eval().objective, torch.ones_like(ids, dtype=torch.bool)
    theirs = ElectraForPreTraining.from_pretrained(tmp_path / "discriminator")
    logits = theirs(ids, token_type_ids=segments).logits
    torch.testing.assert_close(
        logits, networks.discriminator(ids, segments, mask), atol=1e-5, rtol=1e-4
    )
    places = torch.arange(ids.shape[1])[None]
    theirs = ElectraForMaskedLM.from_pretrained(tmp_path / "generator")
    expected = networks.generator(ids, segments, mask, places)[..., : len(tokenizer)]
    logits = theirs(ids, token_type_ids=segments).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    again = AutoTokenizer.from_pretrained(tmp_path / "generator")
    assert again("the old farmer").input_ids == tokenizer("the old farmer").input_ids


def test_saved_folders_and_runs_continue_with_their_ties(finished, tokenizer, tmp_path):
    before = ElectraForReplacedTokenDetection.from_pretrained(finished)
    assert before.training
    assert before.counter.tolist() == [0, 20]  # the steps of the run: no mask is repeated
    before.save_pretrained(tmp_path / "both")
    after = ElectraForReplacedTokenDetection.from_pretrained(tmp_path / "both", seed=3)
    assert after.training
    for model in (before, after):
        generator, discriminator = model.objective.generator, model.objective.discriminator
        assert generator.encoder.embeddings is discriminator.encoder.embeddings
    size = len(tokenizer)
    ours, theirs = (m.objective.discriminator.encoder.embeddings for m in (before, after))
    assert torch.equal(ours.token.weight[:size], theirs.token.weight)
    ids = torch.randint(5, size, (4, 20))
    assert torch.isfinite(after(ids).loss)
    whole = make_model(tokenizer, "all")
    whole.save_pretrained(tmp_path / "all")
    whole = ElectraForReplacedTokenDetection.from_pretrained(tmp_path / "all").objective
    assert whole.generator.encoder is whole.discriminator.encoder
    apart = make_model(tokenizer, "none")
    apart.save_pretrained(tmp_path / "none")
    apart = ElectraForReplacedTokenDetection.from_pretrained(tmp_path / "none").objective
    assert apart.generator.encoder.embeddings is not apart.discriminator.encoder.embeddings


def test_a_larger_table_than_the_vocabulary_gets_no_samples(tokenizer, tmp_path):
    """Ids that no token has are never sampled."""
    model = make_model(tokenizer)
    model.save_pretrained(tmp_path)
    small = tmp_path / "discriminator" / "tokenizer.json"
    import json

    content = json.loads(small.read_text())
    content["model"]["vocab"] = {
        token: i for token, i in content["model"]["vocab"].items() if i < len(tokenizer) - 30
    }
    small.write_text(json.dumps(content))
    loaded = ElectraForReplacedTokenDetection.from_pretrained(tmp_path)
    assert int(loaded.objective.generator.absent.sum()) == 30
    corrupted = loaded(torch.randint(5, 100, (16, 60))).corrupted
    assert corrupted.max() < len(tokenizer) - 30


def test_masks_differ_between_steps_processes_and_seeds(tokenizer, monkeypatch):
    ids = torch.randint(5, 100, (6, 60))

    def corrupted(model):
        return model(ids).corrupted

    model = make_model(tokenizer)
    first, second = corrupted(model), corrupted(model)
    assert not torch.equal(first, second)
    assert model.counter.tolist() == [7, 2]
    assert torch.equal(corrupted(make_model(tokenizer)), first)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    other = make_model(tokenizer)
    keys = other.row_keys(ids, ids > 0)
    monkeypatch.undo()
    both = make_model(tokenizer).row_keys(torch.cat([ids, ids]), torch.cat([ids, ids]) > 0)
    assert torch.equal(keys, both[len(ids) :])  # rank 1 has the second half of the batch
    model.counter[0] = 8
    model.counter[1] = 0
    assert not torch.equal(corrupted(model), first)


def test_gradient_accumulation_masks_each_micro_batch_anew(tokenizer, features, tmp_path):
    model = make_model(tokenizer)
    trainer = make_trainer(
        model,
        tokenizer,
        features[:4] * 12,  # the same rows in every micro-batch
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    seen = []
    model.register_forward_hook(lambda *call: seen.append(call[-1].corrupted))
    trainer.train()
    assert model.counter.tolist() == [7, 2 * STEPS]
    assert len({str(corrupted.tolist()) for corrupted in seen}) == 2 * STEPS


def test_evaluation_is_the_same_each_time_and_in_any_batches(tokenizer, features, tmp_path):
    model = make_model(tokenizer)
    results = []
    for size in (8, 8, 6):
        trainer = make_trainer(
            model, tokenizer, features, tmp_path, per_device_eval_batch_size=size
        )
        results.append((trainer.evaluate()["eval_loss"], model.metrics("eval")))
    assert results[0] == results[1]
    assert results[2][1] == pytest.approx(results[0][1], rel=1e-4)
    assert model.counter.tolist() == [7, 0]
    model.counter[1] = 100  # as after some training
    trainer.evaluate()
    assert model.metrics("eval") == results[2][1]
    assert 0.05 < results[0][1]["replaced_rate"] < 0.2
    assert model.metrics("eval")["loss"] == 0  # counted from anew
    keys = model.eval().row_keys(torch.tensor([[5, 6, 7], [6, 5, 7]]), torch.ones(2, 3) > 0)
    assert keys[0] != keys[1]  # the order of the tokens counts
    longer = torch.tensor([[5, 6, 7, 0, 0]])
    assert model.row_keys(longer, longer > 0)[0] == keys[0]  # padding does not


def test_training_in_a_loop_of_accelerate(tokenizer, features):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model(tokenizer)
    collator = DataCollatorForReplacedTokenDetection(tokenizer, pad_to_multiple_of=16)
    batches = DataLoader(features, batch_size=BATCH, collate_fn=collator)
    optimizer, schedule = paper_optimizers(model, 20, OPTIM)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    losses = []
    for _ in range(6):
        for batch in batches:
            assert batch["input_ids"].shape[1] % 16 == 0
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert model.metrics()["mlm_loss"] > 0


def test_a_tokenizer_and_datasets_pipeline(tokenizer):
    """Padding and attention masks of an ordinary pipeline; other columns are ignored."""
    from datasets import Dataset

    texts = ["the old farmer went to the field .", "the bread", "in the harbour the sailor began"]
    data = Dataset.from_dict({"text": texts, "label": [0, 1, 2]})
    data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=64))
    batch = DataCollatorForReplacedTokenDetection(tokenizer)(list(data))
    expected = tokenizer(texts, padding=True, return_tensors="pt")
    assert batch.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor), name
    output = make_model(tokenizer)(**batch)
    assert torch.equal(output.loss_mask, expected["attention_mask"].bool())
    padding = ~output.loss_mask
    assert torch.equal(output.corrupted[padding], batch["input_ids"][padding])


def test_the_recipe_and_its_changes(tokenizer, tokenizer_folder):
    model = ElectraForReplacedTokenDetection.from_recipe(
        "toy", tokenizer_folder, "model.layers=2", "objective.mask_rate=0.3", "train.seed=5"
    )
    assert model.counter.tolist() == [5, 0]
    assert model.objective.config.mask_rate == 0.3
    assert len(model.objective.discriminator.encoder.layers) == 2
    size = load_vocabulary(tokenizer_folder).size
    assert model.objective.discriminator.encoder.config.vocab_size == size


def test_what_cannot_be_trained_is_refused(tokenizer, model_folder):
    with pytest.raises(UserError, match="rtd or rtd-masked"):
        make_model(tokenizer, objective=ObjectiveConfig(kind="mlm"))
    with pytest.raises(UserError, match="both networks from the start"):
        make_model(tokenizer, objective=ObjectiveConfig(generator_first=0.1))
    with pytest.raises(UserError, match="the paper's Adam, not muon"):
        paper_optimizers(make_model(tokenizer), 20, replace(OPTIM, kind="muon"))
    with pytest.raises(UserError, match="has only one network"):
        ElectraForReplacedTokenDetection.from_pretrained(model_folder)
    with pytest.raises(UserError, match="fast tokenizer"):
        ElectraForReplacedTokenDetection(object(), SIZES)
    with pytest.raises(UserError, match="leave vocab_size out"):
        ElectraForReplacedTokenDetection(tokenizer, replace(SIZES, vocab_size=7))
    with pytest.raises(UserError, match="max_length=64"):
        make_model(tokenizer)(torch.full((1, 65), 5))
    collator = DataCollatorForReplacedTokenDetection(tokenizer)
    with pytest.raises(UserError, match="no input_ids, only text"):
        collator([{"text": "the old farmer"}])
    with pytest.raises(UserError, match="ids from 5 to 9999"):
        collator([{"input_ids": [5, 9999]}])
    with pytest.raises(UserError, match="one text"):
        collator([{"input_ids": []}])


def test_the_example(tokenizer_folder, corpus, tmp_path):
    script = ROOT / "examples" / "trainer.py"
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert text in (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, tokenizer_folder, corpus, "out", "12"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    load_discriminator(tmp_path / "out" / "discriminator")
    load_generator(tmp_path / "out" / "generator")
    assert (tmp_path / "out" / "checkpoint-12" / "optimizer.pt").is_file()
    assert "recall" in done.stdout
