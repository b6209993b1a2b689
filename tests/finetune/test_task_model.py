"""Folders of fine-tuned models: the transformers classes load them and compute the same."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ElectraForMultipleChoice,
    ElectraForQuestionAnswering,
    ElectraForTokenClassification,
    pipeline,
)

from electra.errors import UserError
from electra.finetune.run import finetune, load_pretrained
from electra.finetune.task_model import load_task_model, new_task_model, save_task_model
from electra.hub.folders import load_discriminator, load_encoder
from electra.hub.heads import TaskCard, read_card
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import TaskModel
from electra.tasks.load import load_task

VOCAB = 100
SHAPES = {
    "factorised": EncoderConfig(layers=2, hidden=32, heads=2, embedding=16, vocab_size=VOCAB),
    "equal widths": EncoderConfig(layers=1, hidden=64, embedding=64, vocab_size=VOCAB),
}
LABELS = ["bad", "so-so", "güt"]
ALL = [
    ("classify", "transformers"),
    ("classify", "paper"),
    ("regress", "transformers"),
    ("regress", "paper"),
    ("choice", "transformers"),
    ("choice", "paper"),
    ("tag", "transformers"),
    ("tag", "paper"),
    ("qa", "transformers"),
    ("qa", "paper"),
]


def made(kind: str, head: str, shape: str = "factorised") -> tuple[TaskModel, TaskCard]:
    torch.manual_seed(0)
    labels = LABELS if kind in ("classify", "tag") else []
    card = TaskCard(name="mine", kind=kind, labels=labels, head=head, has_unanswerable=kind == "qa")
    encoder = Encoder(SHAPES[shape])
    model = new_task_model(card, encoder).eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)  # biases and norms must matter too
    return model, card


@pytest.fixture
def inputs():
    """Rows of several lengths with two segments: for our networks, and for transformers'."""
    torch.manual_seed(1)
    lengths = torch.tensor([24, 15, 9, 20])[:, None]
    place = torch.arange(24)[None]
    attention_mask = place < lengths
    segments = ((place >= lengths // 2) & attention_mask).long()
    ids = torch.where(attention_mask, torch.randint(5, VOCAB, (4, 24)), 0)
    theirs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention_mask.long()}
    return (ids, segments, attention_mask), theirs


def load(kind: type, folder):
    """What a class of transformers makes of a folder, nothing missing and nothing left over."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_sequence_classification(kind, shape, inputs, tmp_path):
    ours, card = made(kind, "transformers", shape)
    save_task_model(ours, tmp_path, card, pad_id=0)
    theirs = load(AutoModelForSequenceClassification, tmp_path)
    assert type(theirs).__name__ == "ElectraForSequenceClassification"
    rows, given = inputs
    logits = ours.head(ours.encoder(*rows), rows[2])
    torch.testing.assert_close(theirs(**given).logits, logits, atol=1e-5, rtol=0)
    if kind == "classify":
        assert theirs.config.id2label == dict(enumerate(LABELS))
        assert theirs.config.label2id == {label: i for i, label in enumerate(LABELS)}
    else:
        assert theirs.config.num_labels == 1
        assert theirs.config.problem_type == "regression"  # or a pipeline squeezes it into 0 to 1
        wanted = torch.tensor([0.5, 0.0, 1.0, 2.0])  # transformers takes it for a regression too
        found = theirs(**given, labels=wanted).loss
        torch.testing.assert_close(found, ((logits[:, 0] - wanted) ** 2).mean())


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_token_classification(head, inputs, tmp_path):
    """One class loads both heads for tags."""
    ours, card = made("tag", head)
    save_task_model(ours, tmp_path, card, pad_id=0)
    theirs, (rows, given) = load(ElectraForTokenClassification, tmp_path), inputs
    assert theirs.config.id2label == dict(enumerate(LABELS))
    logits, attention_mask = ours.head(ours.encoder(*rows), rows[2]), rows[2]
    torch.testing.assert_close(
        theirs(**given).logits[attention_mask], logits[attention_mask], atol=1e-5, rtol=0
    )


@torch.no_grad()
def test_question_answering(inputs, tmp_path):
    ours, card = made("qa", "transformers")
    save_task_model(ours, tmp_path, card, pad_id=0)
    theirs, (rows, given) = load(ElectraForQuestionAnswering, tmp_path), inputs
    attention_mask = rows[2]
    start, end = ours.head(ours.encoder(*rows), attention_mask).unbind(2)
    found = theirs(**given)
    torch.testing.assert_close(
        found.start_logits[attention_mask], start[attention_mask], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        found.end_logits[attention_mask], end[attention_mask], atol=1e-5, rtol=0
    )


@torch.no_grad()
def test_multiple_choice(inputs, tmp_path):
    ours, card = made("choice", "transformers")
    save_task_model(ours, tmp_path, card, pad_id=0)
    theirs, (rows, given) = load(ElectraForMultipleChoice, tmp_path), inputs
    options = {name: tensor.view(2, 2, 24) for name, tensor in given.items()}
    logits = ours.head(ours.encoder(*rows), rows[2]).view(2, 2)
    torch.testing.assert_close(theirs(**options).logits, logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["classify", "choice", "tag"])
def test_dropout_in_transformers(kind, tmp_path):
    model, card = made(kind, "transformers")
    card = TaskCard(name="x", kind=kind, labels=card.labels, head="transformers", dropout=0.25)
    save_task_model(model, tmp_path, card, pad_id=0)
    classes = {
        "classify": AutoModelForSequenceClassification,
        "choice": ElectraForMultipleChoice,
        "tag": ElectraForTokenClassification,
    }
    theirs = load(classes[kind], tmp_path)
    body = set(theirs.electra.modules())
    head = {m.p for m in theirs.modules() if isinstance(m, nn.Dropout) and m not in body}
    assert head == {0.25}


@torch.no_grad()
@pytest.mark.parametrize(("kind", "head"), ALL)
def test_save_and_load(kind, head, inputs, tmp_path):
    ours, card = made(kind, head)
    save_task_model(ours, tmp_path, card, pad_id=0)
    rows, given = inputs
    hidden = ours.encoder(*rows)
    body, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    theirs = body.eval()(**given).last_hidden_state
    torch.testing.assert_close(theirs, hidden, atol=1e-5, rtol=0)
    assert torch.equal(load_encoder(tmp_path)(*rows), hidden)

    again, read = load_task_model(tmp_path)
    dropout = 0.0 if (kind, head) == ("tag", "paper") else card.dropout
    assert read == replace(card, dropout=dropout)
    assert not again.training
    for (name, tensor), wanted in zip(
        again.state_dict().items(), ours.state_dict().values(), strict=True
    ):
        if name == "encoder.embeddings.token.weight":
            wanted = wanted[:VOCAB]
        assert torch.equal(tensor, wanted), name
    allowed = rows[2]
    assert torch.equal(again.head(hidden, allowed), ours.head(hidden, allowed))


def test_padded_vocabulary_rows_are_not_stored(tmp_path):
    """The embedding is padded to 128 rows; the folder has the 100 of the vocabulary."""
    model, card = made("classify", "transformers")
    assert len(model.encoder.embeddings.token.weight) == 128
    save_task_model(model, tmp_path, card, pad_id=0)
    table = load_file(tmp_path / "model.safetensors")["electra.embeddings.word_embeddings.weight"]
    assert len(table) == VOCAB


def test_fine_tune_a_fine_tuned_model(tuned):
    start = load_pretrained(str(tuned))  # the folder of results, with `model` in it
    assert start.folder == tuned / "model"
    trained, _ = load_task_model(tuned / "model")
    for name, tensor in trained.encoder.state_dict().items():
        assert torch.equal(start.encoder.state_dict()[name], tensor), name
    with pytest.raises(UserError, match="is a fine-tuned model, not a discriminator"):
        load_discriminator(tuned / "model")


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"name": "x", "kind": "classify"}', b"\xff\xfe"],
)
def test_damaged_card(damage, tmp_path):
    model, card = made("classify", "paper")
    save_task_model(model, tmp_path, card, pad_id=0)
    content = damage if isinstance(damage, bytes) else damage.encode()
    (tmp_path / "task.json").write_bytes(content)
    with pytest.raises(UserError, match=r"task\.json is damaged"):
        load_task_model(tmp_path)


def test_card_without_without_stops(tmp_path):
    model, card = made("classify", "paper")
    save_task_model(model, tmp_path, card, pad_id=0)
    values = json.loads((tmp_path / "task.json").read_text())
    del values["without_stops"]
    (tmp_path / "task.json").write_text(json.dumps(values))
    assert load_task_model(tmp_path)[1] == card


def test_card_with_old_names(tmp_path):
    model, card = made("qa", "paper")
    sizes = {"max_length": 99, "doc_stride": 7, "max_question_length": 9, "beam_size": 3}
    card = replace(card, max_answer_length=5, null_threshold=-1.5, **sizes)
    save_task_model(model, tmp_path, card, pad_id=0)
    values = json.loads((tmp_path / "task.json").read_text())
    old = {new: old for old, new in TaskCard.RENAMED_KEYS.items()}
    renamed = {old.get(name, name): value for name, value in values.items()}
    assert {"length", "maybe_none", "stride", "longest_question", "longest_answer", "beam"} <= (
        renamed.keys()
    )
    (tmp_path / "task.json").write_text(json.dumps(renamed))
    assert load_task_model(tmp_path)[1] == card


def test_a_card_of_an_unknown_kind_is_refused(tmp_path):
    model, card = made("classify", "paper")
    save_task_model(model, tmp_path, card, pad_id=0)
    values = json.loads((tmp_path / "task.json").read_text())
    (tmp_path / "task.json").write_text(json.dumps(values | {"kind": "clasify"}))
    with pytest.raises(UserError, match=r"unknown task kind 'clasify': did you mean"):
        load_task_model(tmp_path)


def test_folder_without_a_card(model_folder):
    with pytest.raises(UserError, match=r"not a fine-tuned model: there is no task\.json"):
        load_task_model(model_folder)


def test_weights_that_do_not_fit_the_card_are_refused(tmp_path):
    model, card = made("classify", "paper")
    save_task_model(model, tmp_path, card, pad_id=0)
    whole = json.loads((tmp_path / "task.json").read_text())
    (tmp_path / "task.json").write_text(json.dumps(whole | {"labels": ["a", "b"]}))
    with pytest.raises(UserError, match=r"head\.output\.weight does not have the shape"):
        load_task_model(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(whole | {"head": "transformers"}))
    with pytest.raises(UserError, match=r"of a model for mine \(missing classifier"):
        load_task_model(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(whole))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["head.output.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"missing head\.output\.bias"):
        load_task_model(tmp_path)


def test_card_of_a_fine_tuned_model(tuned, reviews):
    card = read_card(tuned / "model")
    assert (card.name, card.kind) == (reviews.name, "classify")
    assert card.labels == ["bread", "cargo"]
    assert card.columns == {"text": "text", "label": "label"}
    assert (card.head, card.max_length) == ("paper", 64)


def test_transformers_pipeline_gives_the_same_probabilities(
    model_folder, reviews, quick, tmp_path, console
):
    """Tokenizer, label names and weights come from the folder."""
    out, task = tmp_path / "out", load_task("classify", reviews)
    config = replace(quick, head="transformers", epochs=2)
    finetune(str(model_folder), task, out, [0], config, console)
    shutil.move(out / "model", tmp_path / "alone")
    lines = (out / "predictions" / "seed-0" / "dev.jsonl").read_text().splitlines()
    said = [json.loads(line)["probabilities"] for line in lines]
    ask = pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(tmp_path / "alone"),
        tokenizer=AutoTokenizer.from_pretrained(tmp_path / "alone"),
        device=-1,
    )
    found = ask([e.text for e in task.splits["dev"]], top_k=None, batch_size=8)
    for ours, theirs in zip(said, found, strict=True):
        assert {each["label"]: each["score"] for each in theirs} == pytest.approx(ours, abs=1e-4)


def test_card_sets_pool_and_dropout(model_folder, tmp_path):
    card = TaskCard(name="mine", kind="classify", labels=["a", "b"], pool="max", dropout=0.3)
    model = new_task_model(card, load_encoder(model_folder))
    assert (model.head.pool, model.head.dropout.p) == ("max", 0.3)
    save_task_model(model, tmp_path, card, 0)
    again, _ = load_task_model(tmp_path)
    assert again.head.pool == "max"


@pytest.mark.parametrize(("kind", "head"), ALL)
def test_weights_in_fp16_are_loaded_in_fp32(kind, head, tmp_path):
    model, card = made(kind, head)
    save_task_model(model, tmp_path, card, 0)
    path = tmp_path / "model.safetensors"
    save_file({k: t.half() for k, t in load_file(path).items()}, path, metadata={"format": "pt"})
    loaded, _ = load_task_model(tmp_path)
    for (name, found), (_, exact) in zip(
        loaded.named_parameters(), model.named_parameters(), strict=True
    ):
        assert found.dtype == torch.float32
        exact = exact[: len(found)]  # the table is stored without its padding
        assert torch.equal(found, exact.half().float()), name


@pytest.mark.parametrize(
    "change",
    [{"dropout": -1}, {"labels": "ab"}, {"max_length": "128"}, {"columns": {"text": 5}},
     {"head": "other"}, {"max_length": 0}],
)  # fmt: skip
def test_a_hostile_card_is_refused(change, tmp_path):
    card = {"name": "a", "kind": "classify", **asdict(TaskCard(name="a", kind="classify"))}
    (tmp_path / "task.json").write_text(json.dumps(card | change))
    with pytest.raises(UserError, match="is damaged"):
        read_card(tmp_path)
