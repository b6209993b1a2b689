"""Train a WordPiece, BPE or Unigram vocabulary on lines of text."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
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

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
MAX_WORD_CHARS = 200  # a longer word is unknown, as in google-research/electra
MIN_ALPHABET = 1000  # characters of a WordPiece vocabulary; rarer ones are unknown
COVERAGE = 0.9995  # a script of many characters, such as Chinese, gets more, for this share of text
MIN_WORDPIECE = 64  # smallest WordPiece vocabulary
END_SECONDS = 2.0  # how long the library may take to notice that there will be no more text
# Runs of scripts without spaces between words: each is a word, or a text would be a single one.
UNSPACED_RUN = (
    r"▁?\p{Han}+|▁?\p{Hiragana}+|▁?[\p{Katakana}ー]+|▁?\p{Thai}+|▁?\p{Lao}+|▁?\p{Khmer}+|"
    r"▁?\p{Myanmar}+"
)

Kind = Literal["wordpiece", "bpe", "unigram"]
Lines = Callable[[], Iterator[list[str]]]
"""Returns a new pass over the text, in lists of lines."""


def train_wordpiece(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """Train BERT's tokenizer."""
    if vocab_size < MIN_WORDPIECE:
        raise UserError(
            f"A vocabulary of {vocab_size} tokens is too small: "
            f"choose a larger --vocab-size, at least {MIN_WORDPIECE}."
        )
    # Two passes over the text: the library numbers the continuation characters (##a) in hash table
    # order and breaks ties by these numbers. Passing them in makes the result reproducible.
    tokenizer = Tokenizer(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=not cased, strip_accents=not (cased or keep_accents)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # Each character needs up to two tokens (a, ##a): at most half of a small vocabulary.
    alphabet = frequent_characters(lines, tokenizer, vocab_size // 4)
    continuation = [f"##{c}" for c in alphabet if is_inside_word(tokenizer, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL, *continuation],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    train_on(tokenizer, lines(), trainer)
    learned = tokenizer.get_vocab()
    ordered = dict.fromkeys([*SPECIAL, *alphabet, *continuation])
    ordered |= dict.fromkeys(sorted(learned, key=learned.__getitem__))
    # A new tokenizer, in which the continuation characters are not special tokens.
    final = Tokenizer(
        models.WordPiece(
            {token: token_id for token_id, token in enumerate(ordered)},
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_CHARS,
        )
    )
    final.normalizer, final.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    final.decoder = tokenizer.decoder
    final.add_special_tokens(list(SPECIAL))
    return final


def train_on(tokenizer: Tokenizer, batches: Iterable[list[str]], trainer: Any) -> None:
    """Call the library in a thread, because it ignores Ctrl-C until it is done.

    The text is read here, since workers that the main thread starts do not see Ctrl-C.
    """
    queue: Queue[list[str] | None] = Queue(maxsize=4)
    errors: list[BaseException] = []
    complete = False

    def read_queue() -> Iterator[list[str]]:
        while (batch := queue.get()) is not None:
            yield batch
        if not complete:
            raise EOFError

    def work() -> None:
        try:
            tokenizer.train_from_iterator(read_queue(), trainer)
        except BaseException as error:  # also a panic of its code in Rust
            errors.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        for batch in batches:
            if not feed(queue, batch, thread):
                break  # it has failed: the rest of the text need not be read
        complete = True
        feed(queue, None, thread)
        thread.join()
    except BaseException:
        complete = False
        feed(queue, None, thread)
        thread.join(END_SECONDS)  # the end of the process must not meet it in Python code
        raise
    if errors:
        raise errors[0]


def feed(queue: "Queue[list[str] | None]", batch: list[str] | None, reader: Thread) -> bool:
    """Wait until the queue takes the batch; False if nobody reads it any more."""
    while reader.is_alive():
        with suppress(Full):
            queue.put(batch, timeout=0.5)
            return True
    return False


def frequent_characters(lines: Lines, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Return the most frequent characters of the normalized text, ordered by code point.

    That is as many as cover nearly all of the text, but not fewer than 1,000, if they fit.
    """
    raw_counts: npt.NDArray[np.int64] = np.zeros(0x110000, dtype=np.int64)
    for batch in lines():
        points = np.frombuffer("".join(batch).encode("utf-32-le"), dtype=np.uint32)
        values, counts = np.unique(points, return_counts=True)
        raw_counts[values] += counts
    totals: dict[str, int] = {}
    for point in np.flatnonzero(raw_counts):
        for c in tokenizer.normalizer.normalize_str(chr(point)):
            if not c.isspace():
                totals[c] = totals.get(c, 0) + int(raw_counts[point])
    ordered = sorted(totals, key=lambda c: (-totals[c], c))
    covered = np.cumsum([totals[c] for c in ordered])
    needed = int(np.searchsorted(covered, COVERAGE * covered[-1])) + 1 if ordered else 0
    return sorted(ordered[: min(limit, max(MIN_ALPHABET, needed))])


def is_inside_word(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the pre-tokenizer keeps the character inside a word."""
    text = tokenizer.normalizer.normalize_str("a" + character)
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def train_bpe(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """Train byte-level BPE, which has no unknown tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(SPECIAL) + len(alphabet):
        raise UserError(
            f"A byte-level vocabulary has at least {len(SPECIAL) + len(alphabet)} tokens, not "
            f"{vocab_size}: choose a larger --vocab-size."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = build_normalizer(normalizers.NFC, cased, keep_accents)
    # The prefix gives a word the same tokens at the start of a line as inside it.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens(),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    train_on(tokenizer, lines(), trainer)
    return tokenizer


def train_unigram(lines: Lines, vocab_size: int, cased: bool, keep_accents: bool) -> Tokenizer:
    """Train SentencePiece's unigram model, which marks the start of words with ▁."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = build_normalizer(normalizers.NFKC, cased, keep_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(UNSPACED_RUN), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens(),
        unk_token="[UNK]",
        show_progress=False,
    )
    try:
        train_on(tokenizer, lines(), trainer)
    except UserError:
        raise
    except Exception as error:  # the library has no specific exception
        raise UserError(
            f"The unigram vocabulary could not be trained ({error}): "
            "add text, or choose another --vocab-size."
        ) from None
    return tokenizer


def special_tokens() -> list[AddedToken]:
    """Return the special tokens of BPE and Unigram: [MASK] absorbs the space before it."""
    return [AddedToken(name, lstrip=name == "[MASK]", special=True) for name in SPECIAL]


def build_normalizer(form: type[Any], cased: bool, keep_accents: bool) -> Any:
    """Combine a Unicode normal form, lower-casing and the removal of accents."""
    steps = [form()]
    if not cased:
        steps.append(normalizers.Lowercase())
    if not (cased or keep_accents):
        # Compose again, for what NFD decomposes without an accent, such as Korean syllables.
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    steps.append(normalizers.Replace(Regex(r"\s+"), " "))
    return normalizers.Sequence(steps)
