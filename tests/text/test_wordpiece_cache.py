"""The word cache gives the library's ids for any text."""

import random
import string
import sys
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from electra.text import encode, wordpiece_cache
from electra.text.encode import (
    build_encoder,
    encode_with_library,
    open_tokenizer,
)
from electra.text.prepare import prepare
from electra.text.tasks import new_job
from electra.text.tokenizer import train_tokenizer
from electra.text.wordpiece_cache import (
    IDEOGRAPHS,
    THREE_BYTE_PUNCTUATION,
    WordPieceCache,
    supports_cache,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RULES = [
    {"lowercase": lowercase, "strip_accents": strip, "handle_chinese_chars": chinese}
    for lowercase, strip, chinese in product((True, False), (None, True, False), (True, False))
]
BLANKS = [chr(c) for c in range(sys.maxunicode) if chr(c).isspace()]
CONTROLS = [chr(c) for c in (*range(32), *range(0x7F, 0xA0)) if chr(c) != "\n"]
FRAGMENTS = [
    *("a", "B", "ab", "Straße", "STRASSE ẞ", "ΟΔΟΣ", "Σ", "ός", "İstanbul", "ıI", "ﬁ", "ǅ"),
    *("\u212a", "\u212b", "é", "e\u0301", "\u0301", "\u0301\u0323", "\u0323\u0301", "\u0345"),
    *("≠", "=\u0338", "\uac01", "\u1100\u1161\u11a8", "ﷺ", "नमस्ते", "ไทย", "が", "カ゛", "ｶﾞ"),
    *("中", "中文a字", "𠀀", "㐀", "\uf900", "、。", "「a」", "！", "\ufffd", "\0", "\U000e0001"),
    *("👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "\u200d", "\u200b", "\ufeff", "\u00ad", "\u202e"),
    *("[SEP]", "[MASK]a", "[ SEP ]", "[", "##a", "#", "a##b", "don't", "e.g.", "1,000.5"),
    *("—", "–a", "…", "“", "’s", "‐", "‿", "⁀", "′", "²", "½", "Ⅳ", "℃", "€"),
    *("_", "^", "`", "~", "$", "+", "|", "a" * 15, "a" * 16, "b" * 17, "é" * 8, "a" * 99),
    *("a" * 100, "a" * 101, "b" * 300, "é" * 100, "e\u0301" * 60, "\n\n", "\r\n", "  "),
    *BLANKS,
    *CONTROLS,
]
TEXTS = st.lists(
    st.lists(
        st.sampled_from(FRAGMENTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        max_size=12,
    ).map("".join),
    max_size=4,
)


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def bert(vocabulary, **rules) -> Tokenizer:
    """Build BERT's tokenizer for plain text."""
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(**rules)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module")
def every() -> list[Tokenizer]:
    """A tokenizer for each set of rules, with every character of the BMP in its vocabulary."""
    characters = [chr(c) for c in range(1 << 16) if not 0xD800 <= c < 0xE000]
    tokens = [*SPECIAL, *characters, *("##" + c for c in characters), "ab", "##ab", "aaaa", "don"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    return [bert(vocabulary, **rules) for rules in RULES]


def check(tokenizer: Tokenizer, cache: WordPieceCache, texts: list[str]) -> None:
    """Compare the cache with the library."""
    documents = [text.encode() for text in texts]
    ids, lines = cache(documents)
    expected, counts = encode_with_library(tokenizer, cache.dtype, documents)
    assert ids.dtype == expected.dtype
    assert ids.tolist() == expected.tolist()
    assert [[n for n in each if n] for each in lines] == [[n for n in each if n] for each in counts]
    assert [len(each) for each in lines] == [text.count("\n") + 1 for text in texts]


@pytest.fixture(scope="module", params=[1 << 19, 4], ids=["large", "crowded"])
def caches(request, every):
    """A cache for each tokenizer; in a table of four slots nearly all words collide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wordpiece_cache, "TABLE_SIZE", request.param)
        return [WordPieceCache(tokenizer, "uint32") for tokenizer in every]


@settings(deadline=None, max_examples=300)
@given(texts=TEXTS, which=st.integers(0, len(RULES) - 1))
def test_any_text_gives_the_same_ids(every, caches, texts, which):
    check(every[which], caches[which], texts)


@pytest.mark.parametrize("which", [0, 7, *(slow(n) for n in range(len(RULES)) if n not in (0, 7))])
def test_every_character_of_the_bmp(every, which):
    """Alone on a line, inside and at the ends of words, doubled, and with an accent after it."""
    points = [c for c in range(1 << 16) if not 0xD800 <= c < 0xE000]
    check_characters(every[which], points)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 7])
def test_every_character_beyond_the_bmp(every, which):
    check_characters(every[which], range(1 << 16, sys.maxunicode + 1))


def check_characters(tokenizer, points):
    cache = WordPieceCache(tokenizer, "uint32")
    for start in range(0, len(points), 1 << 16):
        some = points[start : start + (1 << 16)]
        check(tokenizer, cache, ["\n".join(around(chr(c)) for c in some)])


def around(c: str) -> str:
    """Return lines with a character in many positions."""
    return f"{c}\na{c}B {c} {c}b,{c}a{c}\u0301 .{c}{c}{c}"


def test_punctuation_is_always_a_word():
    rules, cut = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    for c in (*string.punctuation, *map(chr, THREE_BYTE_PUNCTUATION + IDEOGRAPHS)):
        text = rules.normalize_str(f"a{c}b{c}\u0301c")
        assert [piece for piece, _ in cut.pre_tokenize_str(text)] == ["a", c, "b", c, "c"]


def test_similar_words_are_distinguished():
    """Words of 1 to 20 bytes that differ in length or in one byte."""
    words = ["abcdefghijklmnopqrst"[:n] for n in range(1, 21)]
    words += [word[:n] + "z" + word[n + 1 :] for word in words for n in range(len(word))]
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = bert(vocabulary)
    cache = WordPieceCache(tokenizer, "uint16")
    for _ in range(2):
        check(tokenizer, cache, [" ".join(words), " ".join(words[::-1])])
        assert 1 not in cache([" ".join(words).encode()])[0]


def test_empty_texts(every):
    cache = WordPieceCache(every[0], "uint32")
    for texts in (
        [],
        [""],
        ["", ""],
        ["\n"],
        ["\0"],
        [" \u200b\n\x1c", "\t"],
        ["a"],
        ["\n\na\n\n"],
    ):
        check(every[0], cache, texts)


def test_text_in_many_batches(every, monkeypatch, make_text):
    monkeypatch.setattr(wordpiece_cache, "BATCH_BYTES", 1000)
    texts = make_text(100, seed=5).split("\n\n")
    check(every[0], WordPieceCache(every[0], "uint32"), texts)


class Counting:
    """A model that records the words it tokenizes."""

    def __init__(self, model):
        self.model = model
        self.asked: list[str] = []

    def tokenize(self, text):
        self.asked.append(text)
        return self.model.tokenize(text)


def test_each_word_is_tokenized_once(every):
    cache = WordPieceCache(every[0], "uint32")
    cache.model = Counting(cache.model)
    long = "a" * 40
    for _ in range(3):
        cache([f"Some words, some WORDS and {long} {long}".encode()] * 3)
    assert sorted(cache.model.asked) == sorted(["some", "words", ",", "and", long])


def unique_words(count: int, seed: int = 0) -> str:
    dice = random.Random(seed)
    return " ".join(f"{dice.getrandbits(60):x}" for _ in range(count))


def test_memory_is_bounded(every, monkeypatch):
    """With ever new words the cache is cleared, and the ids stay correct."""
    monkeypatch.setattr(wordpiece_cache, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(wordpiece_cache, "MAX_CACHE_BYTES", 1_000_000)
    cache, most = WordPieceCache(every[0], "uint32"), 0
    for seed in range(10):
        text = unique_words(3000, seed)
        check(every[0], cache, [text[:20_000], text[20_000:], "the same words each time"])
        most = max(most, len(cache.numbers))
        assert cache.size <= 1_000_000
        assert len(cache.numbers) == len(cache.ends) - 1
    assert 3000 < most < 1_000_000 / wordpiece_cache.WORD_OVERHEAD


def test_memory_estimate_is_accurate(every):
    cache = WordPieceCache(every[0], "uint32")
    cache([b"begin"])
    text = unique_words(30_000).encode()
    tracemalloc.start()
    try:
        cache([text])
        real = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 < cache.size / real < 1.4


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_other_kinds_are_not_supported(corpus, tmp_path, kind):
    tokenizer = train_tokenizer([corpus], tmp_path / kind, vocab_size=400, kind=kind)
    tokenizer.encode_special_tokens = True
    assert not supports_cache(tokenizer)
    # A line of blanks has no tokens, though some tokenizers have one for a blank
    ids, lines = encode_with_library(tokenizer, "uint16", [b"the farmer\n \t \nthe sailor", b"  "])
    plain, _ = encode_with_library(tokenizer, "uint16", [b"the farmer", b"the sailor"])
    assert ids.tolist() == plain.tolist()
    assert [len(counts) for counts in lines] == [2, 0]


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("keep_accents", [True, False])
def test_trained_wordpiece_uses_the_cache(corpus, tmp_path, cased, keep_accents, make_text):
    options = {"vocab_size": 300, "cased": cased, "keep_accents": keep_accents}
    train_tokenizer([corpus], tmp_path / "own", **options)
    own = new_job(tmp_path / "own", tmp_path, 32, "pairs", 0.1, 1)
    cache = build_encoder(own)
    assert isinstance(cache, WordPieceCache)
    check(open_tokenizer(own), cache, make_text(20, seed=8).split("\n\n"))


def test_cache_requires_special_tokens_as_text(every):
    tokenizer = Tokenizer.from_str(every[0].to_str())
    assert not tokenizer.encode_special_tokens
    assert not supports_cache(tokenizer)
    tokenizer.encode_special_tokens = True
    assert supports_cache(tokenizer)


@pytest.mark.parametrize("layout", ["pairs", "packed"])
@pytest.mark.parametrize("workers", [1, 2])
def test_shards_are_the_same_with_and_without_the_cache(
    tokenizer_folder, tmp_path, monkeypatch, layout, workers
):
    """The cache does not change a byte."""
    dice = random.Random(3)
    text = tmp_path / "text.txt"
    fragments = [
        *(f for f in FRAGMENTS if "\0" not in f),
        *["kari", "Tomen", "sul,", " ", "\n"] * 50,
    ]
    text.write_text("".join(dice.choices(fragments, k=20_000)), encoding="utf-8", newline="")
    options = {"tokenizer": tokenizer_folder, "length": 32, "layout": layout, "held_out": 0.1}
    fast = prepare([text], out=tmp_path / "fast", workers=workers, **options)
    monkeypatch.setattr(encode, "supports_cache", lambda tokenizer: False)
    plain = prepare([text], out=tmp_path / "plain", workers=1, **options)
    assert fast.text_tokens == plain.text_tokens > 10_000
    assert fast.unknown == plain.unknown > 0
    for path in (tmp_path / "plain").rglob("*"):
        if path.is_file():
            assert (tmp_path / "fast" / path.relative_to(tmp_path / "plain")).read_bytes() == (
                path.read_bytes()
            )


def test_known_words_come_from_the_table(every, monkeypatch):
    """On the second pass, short words come from the table and not from the dict."""
    cache = WordPieceCache(every[0], "uint32")
    text = "the quick brown fox — jumps, over the lazy dog fifteenlettersx".encode()
    first = cache([text])[0]
    monkeypatch.setattr(cache, "numbers", {})
    monkeypatch.setattr(cache, "tokenize_new_words", lambda: None)
    assert np.array_equal(cache([text])[0], first)
    with pytest.raises(KeyError):
        cache([text + b"s"])
