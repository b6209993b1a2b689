"""Load, train and save tokenizers, and find their special tokens."""

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
from electra.files import new_folder, staging_folder, sync, write_atomic
from electra.json_types import parse_json
from electra.text.plain_text import read_texts
from electra.text.readers import clean
from electra.text.sources import pipes_as_files
from electra.text.train_vocab import (
    MAX_WORD_CHARS,
    SPECIAL,
    Kind,
    train_bpe,
    train_unigram,
    train_wordpiece,
)

SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
}

MAX_VOCABULARY = 10_000_000
"""A network has a row for each id, so one large id would take all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What training needs to know about a tokenizer."""

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
    """Ids that are never masked; [UNK] is not one of them, as in google-research/electra."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer from a folder with `tokenizer.json` or `vocab.txt`, or from such a file."""
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"There is no tokenizer '{path}': train one with "
            "`electra tokenizer train`, or name a folder with a tokenizer.json."
        )
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        return from_vocab_txt(path)
    if file.name == "vocab.txt":
        return from_vocab_txt(file.parent)
    with _readable(file):
        tokenizer = Tokenizer.from_file(str(file))
        for pair in (None, "b"):  # fails where a template names a token that is not there
            tokenizer.encode("a", pair)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn the errors of the library into one of ours; a panic of its code in Rust is one too."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise UserError(
            f"'{file}' cannot be read as a tokenizer ({error}): name a folder with a "
            "tokenizer.json or vocab.txt, or train the tokenizer again."
        ) from None


def from_vocab_txt(folder: Path) -> Tokenizer:
    """Build BERT's tokenizer from a `vocab.txt` and the settings next to it."""
    file = folder / "vocab.txt"
    if not file.is_file():
        raise UserError(
            f"'{folder}' holds neither tokenizer.json nor vocab.txt: "
            "name a tokenizer's folder, or train one with `electra tokenizer train`."
        )
    return from_vocab_file(file, read_json(folder / "tokenizer_config.json"))


def from_vocab_file(file: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Build BERT's tokenizer from a file with a token per line and `tokenizer_config.json`."""
    try:
        tokens = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise UserError(
            f"'{file}' is not a vocabulary in UTF-8: name one, or save it so."
        ) from None
    vocab = {token.rstrip("\r"): i for i, token in enumerate(tokens) if token.rstrip("\r")}
    if "[UNK]" not in vocab:
        raise UserError(f"'{file}' has no [UNK] token, which WordPiece needs: add it as a line.")
    tokenizer = Tokenizer(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    )
    with _readable(file.with_name("tokenizer_config.json")):
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
    """Make `encode` return [CLS] A [SEP] B [SEP] with segment ids 0 and 1."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty one."""
    if not path.is_file():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' is not valid JSON ({error}): fix it or delete it.") from None
    if not isinstance(content, dict):
        raise UserError(f"'{path}' is not an object of JSON: fix it or delete it.")
    return content


def special_names(path: Path) -> dict[str, str]:
    """Return the special tokens that `tokenizer_config.json` names, by role."""
    folder = path if path.is_dir() else path.parent
    settings = read_json(folder / "tokenizer_config.json")
    found: dict[str, str] = {}
    for role in SPECIAL_NAMES:
        value = settings.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[role] = clean(value)
    return found


def find_special(tokenizer: Tokenizer, names: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return the ids of the special tokens that the tokenizer has, by role."""
    found: dict[str, int] = {}
    for role, usual in SPECIAL_NAMES.items():
        given = (names[role],) if names and role in names else ()
        for name in (*given, *usual):
            if (token_id := tokenizer.token_to_id(name)) is not None:
                found[role] = token_id
                break
    return found


def vocabulary(tokenizer: Tokenizer, names: Mapping[str, str] | None = None) -> Vocabulary:
    """Describe a tokenizer's vocabulary; `names` gives unusual special tokens by role."""
    found = find_special(tokenizer, names)
    for role in ("pad", "cls", "sep", "mask"):
        if role not in found:
            raise UserError(
                f"The tokenizer has no {SPECIAL_NAMES[role][0]} token (nor "
                f"{', '.join(SPECIAL_NAMES[role][1:])}): add it to the tokenizer, name it as "
                f"{role}_token in tokenizer_config.json, or train a tokenizer with "
                "`electra tokenizer train`."
            )
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    size = max(ids) + 1
    if size > MAX_VOCABULARY:
        raise UserError(
            f"The tokenizer has the id {size - 1:,}, and ids must be below {MAX_VOCABULARY:,}: "
            "number its tokens without gaps."
        )
    flagged = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    flagged |= {token_id for role, token_id in found.items() if role != "unk"}
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
    """Describe the vocabulary of a tokenizer's folder."""
    return vocabulary(load_tokenizer(path), special_names(path))


@contextmanager
def special_tokens_as_text(tokenizer: Tokenizer) -> Iterator[None]:
    """Encode text that looks like a special token, such as "[SEP]", as plain text."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    try:
        yield
    finally:
        tokenizer.encode_special_tokens = before


def fingerprint(tokenizer: Tokenizer) -> str:
    """Hash what the tokenizer does, without truncation and padding."""
    # Floats can differ in the last digit after saving and loading: compare six digits.
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
    settings |= {f"{role}_token": tokenizer.id_to_token(i) for role, i in found.items()}
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    write_folder(
        out,
        {
            "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
            "tokenizer.json": plain.to_str(pretty=True),  # last: it makes the folder a tokenizer
        },
    )


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer; others in its folder, such as links, stay behind."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_folder(out: Path, files: dict[str, str]) -> None:
    """Write all files to a staging folder, then move them into place in the given order."""
    if not out.is_dir():
        with new_folder(out) as staging:
            for name, content in files.items():
                (staging / name).write_bytes(content.encode())
        return
    with staging_folder(out / next(iter(files))) as staging:
        for name, content in files.items():
            write_atomic(staging / name, content.encode())
        for name in files:
            (staging / name).replace(out / name)
            sync(out)


def model_kind(tokenizer: Tokenizer) -> str:
    """Return the kind of model: WordPiece, BPE, Unigram, …"""
    return type(tokenizer.model).__name__


def check_out(out: Path, overwrite: bool) -> None:
    """Refuse an output folder that already holds a tokenizer, or that cannot be written."""
    if (out / "tokenizer.json").exists() and not overwrite:
        raise UserError(
            f"'{out}' already holds a tokenizer: choose another --out, or replace it "
            "with --overwrite."
        )
    # Known now, not after the training
    above = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not above.is_dir():
        raise UserError(f"'{above}' is a file: name a folder with --out.")
    if not os.access(above, os.W_OK):
        raise UserError(f"'{above}' cannot be written: choose another --out.")


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
    """Train a tokenizer and save it; `progress` is called with the number of bytes read.

    WordPiece and BPE training is reproducible; the library's Unigram training is not.
    """
    out = Path(out)
    check_out(out, overwrite)
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe, "unigram": train_unigram}[kind]
    with pipes_as_files(inputs) as files:

        def lines() -> Iterator[list[str]]:
            workers = os.cpu_count() or 1
            for chunk in read_texts(
                files, text_field=text_field, on_bytes=progress, workers=workers
            ):
                for document in chunk:
                    yield document.split("\n")

        tokenizer = train(lines, vocab_size, cased, keep_accents)
    add_template(tokenizer)
    save_tokenizer(tokenizer, out)
    return tokenizer
