"""How each kind of vocabulary is learnt from lines of text."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from electra.errors import UserError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # get the ids 0 to 4
WORD_LIMIT = 200  # characters of a word, as the original's WordPiece
ALPHABET = 1000  # characters that WordPiece knows at most; the rarer are unknown
LEAST = 64  # tokens of a WordPiece vocabulary

Kind = Literal["wordpiece", "bpe", "unigram"]
Lines = Callable[[], Iterator[list[str]]]


def learn_wordpiece(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """BERT's tokenizer with a vocabulary learnt by merging pairs."""
    if vocab_size < LEAST:
        raise UserError(
            f"A vocabulary of {vocab_size} tokens is too small: "
            f"choose a larger --vocab-size, at least {LEAST}."
        )
    # The training needs two passes: the library numbers the continuing characters (##a) in the
    # order of a hash table, and breaks ties by these numbers. Given beforehand, they are fixed.
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=WORD_LIMIT))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=not cased, strip_accents=not (cased or keep_accents)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # Each character stands for itself and once more with ##: half of a small vocabulary at most.
    alphabet = frequent_characters(lines, tokenizer, min(ALPHABET, vocab_size // 4))
    continuing = [f"##{c}" for c in alphabet if continues(tokenizer, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines(), trainer)
    learnt = tokenizer.get_vocab()
    ordered = dict.fromkeys([*SPECIAL, *alphabet, *continuing])
    ordered |= dict.fromkeys(sorted(learnt, key=learnt.__getitem__))
    # A fresh tokenizer, in which the continuing characters are no special tokens.
    fresh = Tokenizer(
        models.WordPiece(
            {token: place for place, token in enumerate(ordered)},
            unk_token="[UNK]",
            max_input_chars_per_word=WORD_LIMIT,
        )
    )
    fresh.normalizer, fresh.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    fresh.decoder = tokenizer.decoder
    fresh.add_special_tokens(list(SPECIAL))
    return fresh


def frequent_characters(lines: Lines, tokenizer: Tokenizer, limit: int) -> list[str]:
    """The most frequent characters of the normalised text, in the order of their code points."""
    raw: npt.NDArray[np.int64] = np.zeros(0x110000, dtype=np.int64)
    for some in lines():
        points = np.frombuffer("".join(some).encode("utf-32-le"), dtype=np.uint32)
        values, counts = np.unique(points, return_counts=True)
        raw[values] += counts
    found: dict[str, int] = {}
    for point in np.flatnonzero(raw):
        for c in tokenizer.normalizer.normalize_str(chr(point)):
            if not c.isspace():
                found[c] = found.get(c, 0) + int(raw[point])
    return sorted(sorted(found, key=lambda c: (-found[c], c))[:limit])


def continues(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the character can stand inside a word."""
    text = tokenizer.normalizer.normalize_str("a" + character)
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def learn_bpe(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """Byte-level BPE, which knows every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(SPECIAL) + len(alphabet):
        raise UserError(
            f"A byte-level vocabulary has at least {len(SPECIAL) + len(alphabet)} tokens, not "
            f"{vocab_size}: choose a larger --vocab-size."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = composed_normalizer(normalizers.NFC, cased, keep_accents)
    # With the prefix a word is the same tokens at the start of a line as inside it.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=spaced_special(),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines(), trainer)
    return tokenizer


def learn_unigram(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """SentencePiece's unigram model with its ▁ before words."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = composed_normalizer(normalizers.NFKC, cased, keep_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=spaced_special(),
        unk_token="[UNK]",
        show_progress=False,
    )
    try:
        tokenizer.train_from_iterator(lines(), trainer)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise UserError(
            f"The unigram vocabulary could not be learnt ({error}): "
            "give more text, or another --vocab-size."
        ) from None
    return tokenizer


def spaced_special() -> list[AddedToken]:
    """The special tokens where a space is part of a word: [MASK] takes the one before it."""
    return [AddedToken(name, lstrip=name == "[MASK]", special=True) for name in SPECIAL]


def composed_normalizer(form: type[Any], cased: bool, keep_accents: bool) -> Any:
    """Unicode normal form, then lower case and stripped accents as wanted."""
    steps = [form()]
    if not cased:
        steps.append(normalizers.Lowercase())
    if not (cased or keep_accents):
        # Composed again, for what is decomposed but has no accent, as Korean syllables.
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    steps.append(normalizers.Replace(Regex(r"\s+"), " "))
    return normalizers.Sequence(steps)
