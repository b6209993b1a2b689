"""BERT's WordPiece by looking words up: each word is tokenised once, by the library itself.

Text is cut at blanks, at common punctuation and around Chinese characters, where BERT's rules
always cut; what stands between two cuts is a word here, in whatever script. No rule of BERT looks
beyond such a word, so the ids of a text are those of its words one after the other, and no rule
has to be written a second time.
"""

import string
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

BATCH = 500_000  # bytes that are looked up at once
LIMIT = 64_000_000  # bytes of words and ids, about; then everything is forgotten
OVERHEAD = 130  # bytes that Python needs for a word beside its letters and ids
SLOTS = 1 << 19  # of the table; each word has one
SHORT = 15  # bytes of the longest word that the table takes

BLANKS = b" \t\n\r"  # other blanks are left to the library
LETTER, BLANK, MARK, THREE = range(4)
# The kind of each byte. Other scripts, and control characters, which the library drops, count as
# letters; THREE begins a character of three bytes, which may be a mark.
KINDS = bytearray([LETTER]) * 256
KINDS[0xE0:0xF0] = bytes([THREE]) * 16
for byte in BLANKS:
    KINDS[byte] = BLANK
for byte in string.punctuation.encode():
    KINDS[byte] = MARK

# Characters of three bytes that are marks: each is a word of its own, as ASCII punctuation is.
MARKS = [*range(0x2010, 0x2028), *range(0x3001, 0x3004), *range(0x3008, 0x3012)]
MARKS += map(ord, "！（），：；？")
IDEOGRAPHS = [*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000)]

# The table knows a word as two numbers, eight letters and seven with the length. By length, 16 for
# all that are longer: which bits belong to the word, and the length's own bits.
SIZES = range(SHORT + 2)
FIRST = np.array([(1 << 8 * min(n, 8)) - 1 for n in SIZES], dtype="<u8")
SECOND = np.array([(1 << 8 * min(max(n - 8, 0), 7)) - 1 for n in SIZES], dtype="<u8")
LENGTH = np.array([n << 56 for n in SIZES], dtype="<u8")

VocabInfo = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Text = TypeVar("Text", str, bytes)


def words_suffice(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words: with BERT's rules and no others.

    An added token could be found inside of words or across them. The special ones are harmless
    while `encode_special_tokens` is set: then they are text.
    """
    normalizer = tokenizer.normalizer
    return (
        isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text  # without it a line of odd blanks could have tokens
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(tokenizer.model, models.WordPiece)
        and tokenizer.encode_special_tokens
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


class WordCache:
    """Documents -> ids with a memory for words; for tokenizers of which `words_suffice`.

    Every word that was met has a number, and the number leads to its ids. A table in NumPy gives
    the numbers of nearly all words at once; a dict knows the rest.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: str) -> None:
        self.normalizer = tokenizer.normalizer
        self.pre_tokenizer = tokenizer.pre_tokenizer
        self.model = tokenizer.model
        self.dtype = dtype
        self.lowercase = self.normalizer.lowercase
        self.marks = np.zeros(1 << 16, dtype=np.bool_)
        self.marks[MARKS] = True
        self.marks[IDEOGRAPHS] = self.normalizer.handle_chinese_chars
        self.forget()

    def forget(self) -> None:
        """Begin with no word known, which bounds the memory."""
        self.numbers: defaultdict[bytes, int] = defaultdict(count().__next__)
        # Word n has the ids from ends[n] to ends[n + 1].
        self.ids = array("H" if self.dtype == "uint16" else "I")
        self.ends = array("q", [0])
        self.held = 0
        # A word's two keys and its number, all zero where there is no word. The fourth column only
        # keeps a row from lying across two lines of the processor's cache.
        self.table: Keys = np.zeros((SLOTS, 4), dtype="<u8")

    def __call__(self, documents: list[bytes]) -> tuple[VocabInfo, list[list[int]]]:
        """All ids in one array, and for each document the numbers of ids of its lines."""
        parts: list[VocabInfo] = [np.empty(0, dtype=self.dtype)]
        lines: list[list[int]] = []
        for batch in batches(documents):
            ids, counts = self.encode(b"\n".join(batch))
            parts.append(ids)
            each = iter(counts.tolist())
            lines.extend(list(islice(each, text.count(b"\n") + 1)) for text in batch)
            if self.held > LIMIT:
                self.forget()
        return np.concatenate(parts), lines

    def encode(self, text: bytes) -> tuple[VocabInfo, Ints]:
        """The ids of a text and the number of ids of each of its lines."""
        # Blanks around the text: no word is at an edge, and 16 bytes can be read from any place.
        data = b" %b%b" % (text, b" " * (SHORT + 2))
        if self.lowercase:
            data = data.lower()  # of bytes: A to Z and nothing else
        begin, end = bounds(data, self.marks)
        numbers = self.look_up(data, begin, end)
        ends = np.asarray(self.ends)
        start = ends[numbers]
        counts = ends[numbers + 1] - start
        after = np.concatenate([[0], np.cumsum(counts)])
        total = int(after[-1])
        places = np.repeat(start - after[:-1], counts) + np.arange(total)
        ids = np.asarray(self.ids)[places]
        breaks = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
        at_breaks = after[np.searchsorted(begin, breaks)]
        return ids, np.diff(at_breaks, prepend=0, append=total)

    def look_up(self, data: bytes, begin: Ints, end: Ints) -> Ints:
        """The numbers of the words from `begin` to `end`."""
        first, second = keys(data, begin, end)
        slot = slots(first, second, len(self.table))
        rows = self.table.take(slot, axis=0)
        numbers = rows[:, 2].astype(np.int64)
        rest = np.flatnonzero((rows[:, 0] != first) | (rows[:, 1] != second))
        spans = zip(begin[rest].tolist(), end[rest].tolist(), strict=True)
        words = [data[start:stop] for start, stop in spans]
        numbers[rest] = list(map(self.numbers.__getitem__, words))  # a new word gets the next one
        self.learn()
        # Who comes first keeps the slot: frequent words come early. Long ones are left to the dict.
        rest = rest[(rows[rest, 1] == 0) & (second[rest] < LENGTH[SHORT + 1])]
        place, chosen = np.unique(slot[rest], return_index=True)
        rest = rest[chosen]
        for column, values in enumerate((first, second, numbers)):
            self.table[place, column] = values[rest]
        return numbers

    def learn(self) -> None:
        """Have the library tokenise the words that got a number but have no ids yet."""
        words, ids = len(self.ends) - 1, len(self.ids)
        new = list(islice(reversed(self.numbers), len(self.numbers) - words))[::-1]
        for word in new:
            for piece in self.pieces(word):
                for token in self.model.tokenize(piece):
                    self.ids.append(token.id)
            self.ends.append(len(self.ids))
        self.held += sum(map(len, new)) + OVERHEAD * len(new)
        self.held += (len(self.ids) - ids) * self.ids.itemsize

    def pieces(self, word: bytes) -> list[str]:
        """What the library's rules make of a word before the vocabulary is asked."""
        text = word.decode()
        if not word.isalnum():  # ASCII letters, lowered already, and digits are left as they are
            text = self.normalizer.normalize_str(text)
        if text.isascii() and text.isalnum():
            return [text]
        return [piece for piece, _ in self.pre_tokenizer.pre_tokenize_str(text)]


def bounds(data: bytes, marks: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Where the words begin and end: each is a run of letters, or one mark."""
    kinds = np.frombuffer(data.translate(KINDS), dtype=np.uint8)
    three = kinds == THREE
    letter = (kinds == LETTER) | three
    begins = kinds == MARK
    ends = begins.copy()
    at = np.flatnonzero(three)
    raw = np.frombuffer(data, dtype=np.uint8)
    high, middle, low = (raw[at + n].astype(np.int64) for n in range(3))
    at = at[marks[(high & 15) << 12 | (middle & 63) << 6 | low & 63]]  # UTF-8's code points
    letter[at] = letter[at + 1] = letter[at + 2] = False
    begins[at] = ends[at + 2] = True
    begins[1:] |= letter[1:] & ~letter[:-1]
    ends[:-1] |= letter[:-1] & ~letter[1:]
    return np.flatnonzero(begins), np.flatnonzero(ends) + 1


def keys(data: bytes, begin: Ints, end: Ints) -> tuple[Keys, Keys]:
    """Each word as two numbers, which are different for different words of up to 15 bytes."""
    size = np.minimum(end - begin, SHORT + 1)
    # The eight bytes from each place on, as one number.
    eights = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,)).copy()
    return eights[begin] & FIRST[size], eights[begin + 8] & SECOND[size] | LENGTH[size]


def slots(first: Keys, second: Keys, size: int) -> Ints:
    """The words' places in the table: the upper bits of a product with large odd numbers."""
    mixed = (first * np.uint64(0x9E3779B97F4A7C15) ^ second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed >> np.uint64(65 - size.bit_length())).astype(np.int64)


def batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Lists of texts of limited size, which keep the memory flat."""
    batch: list[Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
