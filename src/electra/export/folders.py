"""Find what to export, and write the plain folders for transformers and sentence-transformers."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from electra.hub.folders import (
    BODY,
    load_encoder,
    load_tokenizer_and_vocab,
    named_encoder,
    transformers_config,
    write_model,
)
from electra.hub.heads import CARD
from electra.hub.import_model import import_model
from electra.model_paths import find_model, find_network
from electra.text.tokenizer import save_tokenizer, special_names

CONFIG_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", CARD)
CONTRASTIVE_STEP = (
    "These are the embeddings of a pre-trained encoder, which are not made for comparing texts: "
    "train the folder with a contrastive loss first (docs/embeddings.md)."
)
HEAD_IS_LOST = (
    "transformers loads only the encoder of this model, because it has no class with the paper's "
    "head: use electra.load, or fine-tune with head=transformers."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The network to export."""

    folder: Path
    """The folder of a fine-tuned model, a discriminator, or a masked language model."""
    is_task: bool
    """Whether it is fine-tuned."""


def find_source(model: str) -> Source:
    """Return the folder of a fine-tuned model, or of the network that a pre-training run keeps."""
    folder = find_network(find_model(model), "encoder")
    return Source(folder=folder, is_task=(folder / CARD).is_file())


def write_transformers(model: str, staging: Path) -> list[str]:
    """Write the plain folders; returns the names of those below, or none for a single one.

    A fine-tuned model is one folder; a pre-trained one has a folder for each network.
    """
    source = find_source(model)
    if not source.is_task:
        return list(import_model([model], staging))
    for name in (*CONFIG_FILES, "model.safetensors"):
        copy_file(source.folder, name, staging)
    ensure_tokenizer(source.folder, staging)
    return []


def loads_head(folder: Path) -> bool:
    """Return whether transformers has a class for the head of a fine-tuned model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("architectures") != ["ElectraModel"]


def copy_file(folder: Path, name: str, target: Path) -> None:
    """Copy a file if it is there."""
    if (folder / name).is_file():
        shutil.copyfile(folder / name, target / name)


def ensure_tokenizer(folder: Path, target: Path) -> None:
    """Write the tokenizer as `tokenizer.json` if it was only there as `vocab.txt`."""
    tokenizer, _ = load_tokenizer_and_vocab(folder)
    if not (target / "tokenizer.json").is_file():
        length = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        save_tokenizer(
            tokenizer,
            target,
            max_length=length["max_position_embeddings"],
            names=special_names(folder),
        )


def write_sentence_transformers(model: str, staging: Path) -> None:
    """Write the encoder with mean pooling, in the layout that all versions of the library load."""
    folder = find_source(model).folder
    encoder = load_encoder(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    config = encoder.config
    tensors = ((name.removeprefix(BODY), tensor) for name, tensor in named_encoder(encoder))
    settings = transformers_config(config, "ElectraModel", vocab.pad)
    write_model(staging, tensors, settings, config.vocab_size)
    length = config.max_positions
    save_tokenizer(tokenizer, staging, max_length=length, names=special_names(folder))
    package = "sentence_transformers.models"
    _write_json(
        staging / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
        ],
    )
    _write_json(
        staging / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False}
    )
    (staging / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config.hidden, "pooling_mode_mean_tokens": True}
    others = ("cls_token", "max_tokens", "mean_sqrt_len_tokens")
    pooling |= {f"pooling_mode_{name}": False for name in others}
    _write_json(staging / "1_Pooling" / "config.json", pooling)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
