"""A word cache for BERT's WordPiece: the library tokenizes each distinct word only once.

Text is split at white space, at common punctuation and around Chinese characters, where BERT's
rules always split; what lies between two splits is called a word here, in any script. No rule of
BERT looks beyond such a word, so the ids of a text are the concatenated ids of its words, and
BERT's own rules stay in the library.
"""

import string
from array import array
from collections import defaultdict
from itertools import count, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from electra.text.readers import batched

BATCH_BYTES = 500_000  # text that is encoded at once
MAX_CACHE_BYTES = 64_000_000  # approximate size of words and ids; then the cache is cleared
WORD_OVERHEAD = 130  # bytes that Python needs for a word besides its letters and ids
TABLE_SIZE = 1 << 19  # slots of the hash table, one per word
MAX_TABLE_WORD = 15  # bytes of the longest word in the hash table

SPACES = b" \t\n\r"  # other white space is left to the library
LETTER, SPACE, PUNCTUATION, THREE_BYTES = range(4)
# The class of each byte. Other scripts, and control characters, which the library drops, count as
# letters; THREE_BYTES starts a character of three bytes, which can be punctuation.
BYTE_CLASSES = bytearray([LETTER]) * 256
BYTE_CLASSES[0xE0:0xF0] = bytes([THREE_BYTES]) * 16
for byte in SPACES:
    BYTE_CLASSES[byte] = SPACE
for byte in string.punctuation.encode():
    BYTE_CLASSES[byte] = PUNCTUATION

# Three-byte characters that are punctuation: each is a word of its own, like ASCII punctuation.
THREE_BYTE_PUNCTUATION = [*range(0x2010, 0x2028), *range(0x3001, 0x3004), *range(0x3008, 0x3012)]
THREE_BYTE_PUNCTUATION += map(ord, "！（），：；？")
IDEOGRAPHS = [*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000)]

# The table stores a word as two integers: its first eight bytes, and its next seven bytes with the
# length. By length (16 for all longer words): masks for the bytes, and the bits of the length.
SIZES = range(MAX_TABLE_WORD + 2)
FIRST_MASK = np.array([(1 << 8 * min(n, 8)) - 1 for n in SIZES], dtype="<u8")
SECOND_MASK = np.array([(1 << 8 * min(max(n - 8, 0), 7)) - 1 for n in SIZES], dtype="<u8")
LENGTH_BITS = np.array([n << 56 for n in SIZES], dtype="<u8")

TokenIds = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def supports_cache(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are the ids of its words: BERT's rules and no others.

    Added tokens could match inside words or across them. Special tokens are harmless as long as
    `encode_special_tokens` is set, since they are text then.
    """
    normalizer = tokenizer.normalizer
    return (
        isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text  # without it, a line of unusual white space could have tokens
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(tokenizer.model, models.WordPiece)
        and tokenizer.encode_special_tokens
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


class WordPieceCache:
    """Encode documents with a cache of words, for tokenizers that `supports_cache` accepts.

    Each word gets a number, which leads to its ids. A NumPy hash table finds the numbers of nearly
    all words of a text at once; a dict finds the others.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: str) -> None:
        self.normalizer = tokenizer.normalizer
        self.pre_tokenizer = tokenizer.pre_tokenizer
        self.model = tokenizer.model
        self.dtype = dtype
        self.lowercase = self.normalizer.lowercase
        self.is_punctuation = np.zeros(1 << 16, dtype=np.bool_)
        self.is_punctuation[THREE_BYTE_PUNCTUATION] = True
        self.is_punctuation[IDEOGRAPHS] = self.normalizer.handle_chinese_chars
        self.clear()

    def clear(self) -> None:
        """Forget all words, which bounds the memory."""
        self.numbers: defaultdict[bytes, int] = defaultdict(count().__next__)
        # Word n has the ids from ends[n] to ends[n + 1].
        self.ids = array("H" if self.dtype == "uint16" else "I")
        self.ends = array("q", [0])
        self.size = 0
        # A word's two keys and its number, all zero in an empty slot. The fourth column aligns rows
        # with the CPU's cache lines.
        self.table: Keys = np.zeros((TABLE_SIZE, 4), dtype="<u8")

    def __call__(self, documents: list[bytes]) -> tuple[TokenIds, list[list[int]]]:
        """Return all ids, and for each document the number of ids of each line."""
        parts: list[TokenIds] = [np.empty(0, dtype=self.dtype)]
        lines: list[list[int]] = []
        for batch in batched(documents, BATCH_BYTES, len):
            ids, counts = self.encode(b"\n".join(batch))
            parts.append(ids)
            each = iter(counts.tolist())
            lines.extend(list(islice(each, text.count(b"\n") + 1)) for text in batch)
            if self.size > MAX_CACHE_BYTES:
                self.clear()
        return np.concatenate(parts), lines

    def encode(self, text: bytes) -> tuple[TokenIds, Ints]:
        """Return the ids of a text and the number of ids of each line."""
        # Padding: no word is at an edge, and 16 bytes can be read from any position.
        data = b" %b%b" % (text, b" " * (MAX_TABLE_WORD + 2))
        if self.lowercase:
            data = data.lower()  # bytes: only A to Z
        start, end = word_bounds(data, self.is_punctuation)
        numbers = self.look_up(data, start, end)
        ends = np.asarray(self.ends)
        first_id = ends[numbers]
        counts = ends[numbers + 1] - first_id
        after = np.concatenate([[0], np.cumsum(counts)])
        total = int(after[-1])
        index = np.repeat(first_id - after[:-1], counts) + np.arange(total)
        ids = np.asarray(self.ids)[index]
        newlines = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
        at_newlines = after[np.searchsorted(start, newlines)]
        return ids, np.diff(at_newlines, prepend=0, append=total)

    def look_up(self, data: bytes, start: Ints, end: Ints) -> Ints:
        """Return the numbers of the words that lie between `start` and `end`."""
        first, second = word_keys(data, start, end)
        slot = table_slots(first, second, len(self.table))
        rows = self.table.take(slot, axis=0)
        numbers = rows[:, 2].astype(np.int64)
        missing = np.flatnonzero((rows[:, 0] != first) | (rows[:, 1] != second))
        spans = zip(start[missing].tolist(), end[missing].tolist(), strict=True)
        words = [data[a:b] for a, b in spans]
        numbers[missing] = list(map(self.numbers.__getitem__, words))  # new words get new numbers
        self.tokenize_new_words()
        # The first word keeps its slot, since frequent words come early. Long words stay in the
        # dict.
        fits = second[missing] < LENGTH_BITS[MAX_TABLE_WORD + 1]
        missing = missing[(rows[missing, 1] == 0) & fits]
        free, chosen = np.unique(slot[missing], return_index=True)
        missing = missing[chosen]
        for column, values in enumerate((first, second, numbers)):
            self.table[free, column] = values[missing]
        return numbers

    def tokenize_new_words(self) -> None:
        """Let the library tokenize the words that have a number but no ids yet."""
        words, ids = len(self.ends) - 1, len(self.ids)
        new = list(islice(reversed(self.numbers), len(self.numbers) - words))[::-1]
        for word in new:
            for piece in self.pieces(word):
                for token in self.model.tokenize(piece):
                    self.ids.append(token.id)
            self.ends.append(len(self.ids))
        self.size += sum(map(len, new)) + WORD_OVERHEAD * len(new)
        self.size += (len(self.ids) - ids) * self.ids.itemsize

    def pieces(self, word: bytes) -> list[str]:
        """Normalize and pre-tokenize a word with the library."""
        text = word.decode()
        if not word.isalnum():  # lower-cased ASCII letters and digits need no normalization
            text = self.normalizer.normalize_str(text)
        if text.isascii() and text.isalnum():
            return [text]
        return [piece for piece, _ in self.pre_tokenizer.pre_tokenize_str(text)]


def word_bounds(data: bytes, is_punctuation: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return where words start and end: each is a run of letters or one punctuation mark."""
    classes = np.frombuffer(data.translate(BYTE_CLASSES), dtype=np.uint8)
    three = classes == THREE_BYTES
    letter = (classes == LETTER) | three
    starts = classes == PUNCTUATION
    ends = starts.copy()
    at = np.flatnonzero(three)
    raw = np.frombuffer(data, dtype=np.uint8)
    high, middle, low = (raw[at + n].astype(np.int64) for n in range(3))
    at = at[is_punctuation[(high & 15) << 12 | (middle & 63) << 6 | low & 63]]  # code points
    letter[at] = letter[at + 1] = letter[at + 2] = False
    starts[at] = ends[at + 2] = True
    starts[1:] |= letter[1:] & ~letter[:-1]
    ends[:-1] |= letter[:-1] & ~letter[1:]
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1


def word_keys(data: bytes, start: Ints, end: Ints) -> tuple[Keys, Keys]:
    """Return two integers per word, which are unique for words of up to 15 bytes."""
    size = np.minimum(end - start, MAX_TABLE_WORD + 1)
    # The eight bytes from each position on, as one integer.
    eights = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,)).copy()
    second = eights[start + 8] & SECOND_MASK[size] | LENGTH_BITS[size]
    return eights[start] & FIRST_MASK[size], second


def table_slots(first: Keys, second: Keys, size: int) -> Ints:
    """Hash the keys to slots of the table (multiplicative hashing)."""
    mixed = (first * np.uint64(0x9E3779B97F4A7C15) ^ second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed >> np.uint64(65 - size.bit_length())).astype(np.int64)
