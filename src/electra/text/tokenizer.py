"""Tokenizers: load any of the ecosystem, know its special tokens, save it for transformers."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from electra.errors import UserError
from electra.files import TEMPORARY, write_atomic
from electra.text.read import read_chunks
from electra.text.sources import pipes_as_files
from electra.text.train_vocab import (
    SPECIAL,
    WORD_LIMIT,
    Kind,
    learn_bpe,
    learn_unigram,
    learn_wordpiece,
)

NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What training needs to know of a tokenizer."""

    size: int
    """The largest id plus one."""
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int | None
    absent: tuple[int, ...]
    """Ids below `size` that no token has."""
    special: tuple[int, ...]
    """Ids that are never masked; the unknown token is none of them, as in the original."""


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a folder with tokenizer.json, that file, or a folder with a vocab.txt."""
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"There is no tokenizer '{path}': make one with  electra tokenizer train, "
            "or name a folder with a tokenizer.json."
        )
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        return from_vocab_txt(path)
    if file.name == "vocab.txt":
        return from_vocab_txt(file.parent)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise UserError(
            f"'{file}' is no tokenizer file that can be read ({error}): "
            "save or train the tokenizer again."
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def from_vocab_txt(folder: Path) -> Tokenizer:
    """BERT's tokenizer from its vocab.txt and the settings beside it."""
    file = folder / "vocab.txt"
    if not file.is_file():
        raise UserError(
            f"'{folder}' holds neither tokenizer.json nor vocab.txt: "
            "name a tokenizer's folder, or make one with  electra tokenizer train."
        )
    tokens = file.read_text(encoding="utf-8").split("\n")
    vocab = {token.rstrip("\r"): place for place, token in enumerate(tokens) if token.rstrip("\r")}
    settings = read_json(folder / "tokenizer_config.json")
    tokenizer = Tokenizer(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=WORD_LIMIT)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    present = [token for token in SPECIAL if token in vocab]
    tokenizer.add_special_tokens(present)
    if {"[CLS]", "[SEP]"} <= set(present):
        add_template(tokenizer)
    return tokenizer


def add_template(tokenizer: Tokenizer) -> None:
    """Let `encode` put [CLS] A [SEP] B [SEP] with segment ids 0 and 1."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or nothing when the file is not there."""
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' is no valid JSON ({error}): repair it or delete it.") from None
    return content


def special_names(path: Path) -> dict[str, str]:
    """The names of special tokens that tokenizer_config.json beside a tokenizer gives."""
    folder = path if path.is_dir() else path.parent
    settings = read_json(folder / "tokenizer_config.json")
    found: dict[str, str] = {}
    for role in NAMES:
        value = settings.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[role] = value
    return found


def find_special(tokenizer: Tokenizer, names: Mapping[str, str] | None = None) -> dict[str, int]:
    """The ids of the special tokens that are there, by role."""
    found: dict[str, int] = {}
    for role, usual in NAMES.items():
        given = (names[role],) if names and role in names else ()
        for name in (*given, *usual):
            if (place := tokenizer.token_to_id(name)) is not None:
                found[role] = place
                break
    return found


def vocabulary(tokenizer: Tokenizer, names: Mapping[str, str] | None = None) -> Vocabulary:
    """The vocabulary of a tokenizer; `names` tells special tokens with unusual names by role."""
    found = find_special(tokenizer, names)
    for role in ("pad", "cls", "sep", "mask"):
        if role not in found:
            raise UserError(
                f"The tokenizer has no {NAMES[role][0]} token (also looked for: "
                f"{', '.join(NAMES[role][1:])}): add it to the tokenizer, name it as "
                f"{role}_token in tokenizer_config.json, or train a tokenizer with "
                " electra tokenizer train."
            )
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    size = max(ids) + 1
    flagged = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    flagged |= {place for role, place in found.items() if role != "unk"}
    flagged.discard(found.get("unk", -1))
    return Vocabulary(
        size=size,
        pad=found["pad"],
        cls=found["cls"],
        sep=found["sep"],
        mask=found["mask"],
        unk=found.get("unk"),
        absent=tuple(sorted(set(range(size)) - ids)),
        special=tuple(sorted(flagged)),
    )


def load_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer's folder, with special tokens by the names used there."""
    return vocabulary(load_tokenizer(path), special_names(path))


@contextmanager
def names_are_text(tokenizer: Tokenizer) -> Iterator[None]:
    """For a while, a text that names a special token, as "[SEP]", is text and no such token."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    try:
        yield
    finally:
        tokenizer.encode_special_tokens = before


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of what the tokenizer does; truncation and padding do not count."""
    # The library reads floats of a file with a last digit more or less: six digits are the same.
    content = json.loads(tokenizer.to_str(), parse_float=lambda text: f"{float(text):.6g}")
    content.pop("truncation", None)
    content.pop("padding", None)
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save_tokenizer(
    tokenizer: Tokenizer,
    out: Path,
    *,
    max_length: int = 512,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write `tokenizer.json` and the `tokenizer_config.json` that transformers reads.

    A folder that does not exist yet appears whole or not at all.
    """
    found = find_special(tokenizer, names)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    settings |= {f"{role}_token": tokenizer.id_to_token(place) for role, place in found.items()}
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    write_folder(
        out,
        {
            "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
            "tokenizer.json": plain.to_str(pretty=True),  # last: without it there is no tokenizer
        },
    )


def write_folder(out: Path, files: dict[str, str]) -> None:
    """Write all files to a staging folder, then move them into place in the given order."""
    existed = out.is_dir()
    parent = out if existed else out.parent
    staging = parent / f"{out.name}.{os.getpid()}{TEMPORARY}"
    parent.mkdir(parents=True, exist_ok=True)
    try:
        staging.mkdir(exist_ok=True)
        for name, content in files.items():
            write_atomic(staging / name, content.encode())
        if existed:
            for name in files:
                (staging / name).replace(out / name)
        else:
            staging.replace(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def model_kind(tokenizer: Tokenizer) -> str:
    """The kind of model in the tokenizer: WordPiece, BPE, Unigram, …"""
    return type(tokenizer.model).__name__


def train_tokenizer(
    inputs: Sequence[str | Path],
    out: Path,
    *,
    vocab_size: int,
    kind: Kind = "wordpiece",
    cased: bool = False,
    keep_accents: bool = False,
    text_field: str = "text",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """Learn a vocabulary from text and save the tokenizer; `progress` hears of bytes read.

    WordPiece and BPE give the same tokenizer for the same text; Unigram's training in the library
    is not exactly repeatable.
    """
    out = Path(out)
    if (out / "tokenizer.json").exists() and not overwrite:
        raise UserError(
            f"'{out}' already holds a tokenizer: choose another --out, or replace it "
            "with --overwrite."
        )
    if out.exists() and not out.is_dir():
        raise UserError(f"'{out}' is a file: name a folder with --out.")

    learn = {"wordpiece": learn_wordpiece, "bpe": learn_bpe, "unigram": learn_unigram}[kind]
    with pipes_as_files(inputs) as files:

        def lines() -> Iterator[list[str]]:
            for chunk in read_chunks(files, text_field=text_field, on_bytes=progress):
                for document in chunk:
                    yield document.split("\n")

        tokenizer = learn(lines, vocab_size, cased, keep_accents)
    add_template(tokenizer)
    save_tokenizer(tokenizer, out)
    return tokenizer
