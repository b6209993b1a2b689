"""What is fuzzed: each reader of files from elsewhere, as a function of a folder and some bytes.

A target writes the bytes as the file that its reader expects, and reads it. Nothing but `UserError`
may come out. `test_targets.py` gives it valid files with hostile changes, and `make fuzz` whatever
reaches new code.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import cast

import torch

from electra.config import override, to_yaml
from electra.errors import UserError
from electra.finetune.results import RESULTS, read_results
from electra.finetune.settings import FinetuneConfig
from electra.finetune.task_model import load_task_model, new_task_model, save_task_model
from electra.hub.crc32c import crc32c
from electra.hub.folders import export, load_discriminator, network_folders
from electra.hub.heads import TaskCard
from electra.hub.import_model import find_checkpoint, load_tensorflow
from electra.hub.tensor_bundle import open_bundle
from electra.model_packages import MANIFEST, check_files
from electra.models.electra import Discriminator
from electra.models.encoder import Encoder, EncoderConfig
from electra.objectives.objective import Objective
from electra.play.runs import find_runs, read_runs, render_runs
from electra.release.details import read_card
from electra.studies.run import read_other_results
from electra.tasks.blimp import load_blimp
from electra.tasks.load import load_task
from electra.tasks.predict_inputs import read_inputs
from electra.text.plain_text import parse_documents
from electra.text.readers import read_chunks
from electra.text.shards import INDEX, Shards
from electra.text.tokenizer import fingerprint, load_tokenizer, load_vocabulary
from electra.text.wikitext import WikiPage, parse_page
from electra.train.budget import parse_budget
from electra.train.checkpoint import SHARDED, read_state, restore, restore_random_state
from electra.train.metrics_log import read_metrics
from electra.train.phases import build_phases
from electra.train.report import render
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig

Run = Callable[[Path, bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader, and what it needs besides the bytes."""

    run: Run
    prepare: Callable[[Path], object] = lambda folder: None
    """Makes the files beside the one that is fuzzed, once."""

    def check(self, folder: Path, data: bytes) -> None:
        """Read some bytes; what escapes is a bug."""
        with warnings.catch_warnings(), suppress(UserError):
            warnings.simplefilter("ignore")
            self.run(folder, data)


def read_config(folder: Path, data: bytes) -> None:
    (folder / "config.yaml").write_bytes(data)
    to_yaml(read_run_config(folder))


def read_assignments(folder: Path, data: bytes) -> None:
    lines = data.decode(errors="surrogateescape").split("\n")
    for config in (PretrainConfig(), FinetuneConfig()):
        with suppress(UserError):
            override(config, lines)


def read_details(folder: Path, data: bytes) -> None:
    (folder / "card.yaml").write_bytes(data)
    read_card(folder / "card.yaml")


def read_strings(folder: Path, data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    with suppress(UserError):
        budget = parse_budget(text)
        budget.progress(steps=1, tokens=1, flops=1.0, seconds=1.0)
        budget.steps(tokens_per_step=100, flops_per_step=1e9)
    first, _, second = text.partition("\n")
    with suppress(UserError):
        build_phases(first, second or 8)


def read_train_state(folder: Path, data: bytes) -> None:
    (folder / "state.json").write_bytes(data)
    read_state(folder)


def read_random(folder: Path, data: bytes) -> None:
    (folder / "random.safetensors").write_bytes(data)
    before = torch.get_rng_state()
    try:
        restore_random_state(folder)
    finally:
        torch.set_rng_state(before)


def make_checkpoint(folder: Path) -> None:
    (folder / "state.json").write_text('{"step": 1}')
    (folder / SHARDED).mkdir()


def read_sharded(folder: Path, data: bytes) -> None:
    """The bytes are the header of a rank's part, as in `read_safetensors_header`."""
    content = len(data).to_bytes(8, "little") + data + bytes(weights_size())
    (folder / SHARDED / "shard-00001-model-00001-of-00001.safetensors").write_bytes(content)
    restore(folder, cast(Objective, Discriminator(tiny_encoder())))


def read_corpus(name: str, folder: Path, data: bytes) -> None:
    (folder / name).write_bytes(data)
    for chunk in read_chunks([folder / name]):
        parse_documents(chunk)


def read_wikitext(folder: Path, data: bytes) -> None:
    text = data.decode(errors="replace")
    parse_page(WikiPage(text.encode(), ("file", "category")))


def make_shards(folder: Path) -> None:
    (folder / "shard-00000.bin").write_bytes(bytes(60))


def read_shards(folder: Path, data: bytes) -> None:
    (folder / INDEX).write_bytes(data)
    shards = Shards.open(folder)
    for split in ("train", "held_out"):
        shards.gather(split, torch.arange(min(3, shards.rows(split))).numpy())


def make_bundle(folder: Path) -> None:
    (folder / "model.data-00000-of-00001").write_bytes(bytes(4096))


def read_bundle(folder: Path, data: bytes) -> None:
    (folder / "model.index").write_bytes(data)
    bundle = open_bundle(folder / "model")
    for name in bundle.entries:
        bundle.read(name)
    with suppress(UserError):  # its tensors are too few
        load_tensorflow(folder / "model")


def checked(block: bytes) -> bytes:
    """A block of a LevelDB table with its trailer; a wrong checksum would hide the rest."""
    crc = crc32c(block + b"\0")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return block + b"\0" + masked.to_bytes(4, "little")


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def read_bundle_block(folder: Path, data: bytes) -> None:
    """The bytes are the block with the names and places of the tensors."""
    handle = varint(0) + varint(len(data))
    entry = b"\0" + varint(1) + varint(len(handle)) + b"a" + handle
    index = entry + bytes(4) + (1).to_bytes(4, "little")
    content = checked(data)
    places = varint(0) + varint(0) + varint(len(content)) + varint(len(index))
    footer = places.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    read_bundle(folder, content + checked(index) + footer)


def read_latest(folder: Path, data: bytes) -> None:
    (folder / "checkpoint").write_bytes(data)
    (folder / "model.ckpt-1.index").touch()
    find_checkpoint(str(folder))


def tiny_encoder() -> Encoder:
    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden": 8, "heads": 2, "feed_forward": 8, "embedding": 4}
    return Encoder(EncoderConfig(**sizes, max_positions=8, vocab_size=16, vocab_multiple=1))


def make_model(folder: Path) -> None:
    export(Discriminator(tiny_encoder()), folder, 0)


def make_task_model(folder: Path) -> None:
    card = TaskCard(name="reviews", kind="classify", labels=["bad", "good"])
    save_task_model(new_task_model(card, tiny_encoder()), folder, card, 0)


def read_model(name: str, folder: Path, data: bytes) -> None:
    (folder / name).write_bytes(data)
    network_folders(folder)
    load_discriminator(folder)


def read_safetensors_header(folder: Path, data: bytes) -> None:
    """The bytes are the header; a wrong length before it would hide the rest."""
    content = len(data).to_bytes(8, "little") + data + bytes(weights_size())
    read_model("model.safetensors", folder, content)


@cache
def weights_size() -> int:
    """Bytes of the tiny model's weights after the header."""
    return sum(4 * parameter.numel() for parameter in Discriminator(tiny_encoder()).parameters())


def read_task_card(folder: Path, data: bytes) -> None:
    (folder / "task.json").write_bytes(data)
    load_task_model(folder)


def read_manifest(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)
    check_files(folder / "discriminator")


def make_vocab(folder: Path) -> None:
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")


def read_tokenizer(name: str, folder: Path, data: bytes) -> None:
    (folder / name).write_bytes(data)
    load_vocabulary(folder)
    tokenizer = load_tokenizer(folder)
    fingerprint(tokenizer)
    tokenizer.encode("ab [MASK] é")


def read_task(task: str, name: str, folder: Path, data: bytes) -> None:
    (folder / name).write_bytes(data)
    load_task(task, folder if task in ("cola", "mnli", "stsb", "qqp") else folder / name)


def read_pairs(folder: Path, data: bytes) -> None:
    (folder / "pairs.jsonl").write_bytes(data)
    load_blimp(folder)


def read_predict_inputs(folder: Path, data: bytes) -> None:
    """The first byte chooses the file's ending, as a user would."""
    ending = ("", ".txt", ".csv", ".tsv", ".json", ".jsonl")[data[0] % 6 if data else 0]
    path = folder / f"inputs{ending}"
    path.write_bytes(data[1:])
    columns = {"text": "text", "label": "label"}
    for kind, known in (
        ("classify", columns),
        ("choice", {**columns, "pair": "choice0,choice1"}),
        ("tag", {"text": "words", "label": "tags"}),
        ("qa", {}),
    ):
        labels = ("bad", "good") if kind == "classify" else ()
        with suppress(UserError):
            read_inputs(path, name="x", kind=kind, columns=known, labels=labels, labelled=True)


def read_run_metrics(folder: Path, data: bytes) -> None:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_bytes(data)
    with suppress(UserError):
        render_runs(read_runs(find_runs(folder), ["run"]))
    metrics = read_metrics(run)
    if any(line["kind"] in ("train", "held_out") for line in metrics):  # as `write_report` asks
        render({run: metrics})


def read_study_results(folder: Path, data: bytes) -> None:
    (folder / RESULTS).write_bytes(data)
    read_results(folder)
    read_other_results(folder)


def model_file(name: str) -> Target:
    return Target(run=partial(read_model, name), prepare=make_model)


def make_package(folder: Path) -> None:
    make_model(folder / "discriminator")
    (folder / "discriminator" / "empty").touch()


CORPORA = {
    "text": "a.txt",
    "jsonl": "a.jsonl",
    "csv": "a.csv",
    "tsv": "a.tsv",
    "parquet": "a.parquet",
    "gzip": "a.txt.gz",
    "bzip2": "a.txt.bz2",
    "xz": "a.txt.xz",
    "zstd": "a.txt.zst",
    "tar": "a.tar",
    "tar-gz": "a.tgz",
    "zip": "a.zip",
    "wiki-extractor": "wiki_00",
    "wiki-dump": "a.xml",
}
TASKS = {
    "squad": ("squad1", "train.json"),
    "questions": ("qa", "train.jsonl"),
    "question-table": ("qa", "train.csv"),
    "conll": ("conll2003", "train.txt"),
    "tags": ("tag", "train.jsonl"),
    "glue-cola": ("cola", "train.tsv"),
    "glue-mnli": ("mnli", "train.tsv"),
    "glue-stsb": ("stsb", "train.tsv"),
    "glue-qqp": ("qqp", "train.tsv"),
    "table-csv": ("classify", "train.csv"),
    "table-tsv": ("pair", "train.tsv"),
    "table-jsonl": ("regress", "train.jsonl"),
    "table-json": ("choice", "train.json"),
    "table-choices": ("choice", "train.csv"),
}
TARGETS: dict[str, Target] = {
    "run-config": Target(run=read_config),
    "assignments": Target(run=read_assignments),
    "card-details": Target(run=read_details),
    "budgets": Target(run=read_strings),
    "train-state": Target(run=read_train_state),
    "random-state": Target(run=read_random),
    "sharded-header": Target(run=read_sharded, prepare=make_checkpoint),
    **{f"corpus-{key}": Target(run=partial(read_corpus, name)) for key, name in CORPORA.items()},
    "wikitext": Target(run=read_wikitext),
    "shard-index": Target(run=read_shards, prepare=make_shards),
    "bundle-index": Target(run=read_bundle, prepare=make_bundle),
    "bundle-block": Target(run=read_bundle_block, prepare=make_bundle),
    "bundle-latest": Target(run=read_latest),
    "model-config": model_file("config.json"),
    "model-weights": model_file("model.safetensors"),
    "weights-header": Target(run=read_safetensors_header, prepare=make_model),
    "task-card": Target(run=read_task_card, prepare=make_task_model),
    "model-manifest": Target(run=read_manifest, prepare=make_package),
    "tokenizer-json": Target(run=partial(read_tokenizer, "tokenizer.json")),
    "tokenizer-config": Target(
        run=partial(read_tokenizer, "tokenizer_config.json"), prepare=make_vocab
    ),
    "vocab-txt": Target(run=partial(read_tokenizer, "vocab.txt")),
    **{key: Target(run=partial(read_task, *names)) for key, names in TASKS.items()},
    "blimp": Target(run=read_pairs),
    "predict-inputs": Target(run=read_predict_inputs),
    "metrics": Target(run=read_run_metrics),
    "study-results": Target(run=read_study_results),
}
