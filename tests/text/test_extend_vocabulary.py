"""New pieces against a slow learner, a longest match by hand, and the library's own BPE."""

from collections import Counter
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from electra.errors import UserError
from electra.text.extend_vocabulary import Merges, count_words, extend_tokenizer
from electra.text.inspect import inspect_tokenizer
from electra.text.tokenizer import load_tokenizer, train_tokenizer, vocabulary

MEDICINE = (
    "the cardiologist saw cardiomyopathy and cardiology patients\n"
    "echocardiography shows cardiomyopathy , cardiology notes echocardiography\n"
    "neuropathy , myopathy and cardiomyopathies ; a neurologist wrote neurology notes\n"
)


GENERAL = (
    "the quick brown fox jumps over a lazy dog , and the doctor saw it\n"
    "old card games were played on paper by sixty men ; my path is long\n"
    "a note , notes , the logic of it , he is a patient man with patients\n"
)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "general.txt"
    path.write_text(GENERAL * 3, encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "medicine.txt"
    path.write_text(MEDICINE * 3 + "\nunseen onceword\n", encoding="utf-8")
    return path


@pytest.fixture
def tokenizer(corpus, tmp_path) -> Tokenizer:
    return train_tokenizer([corpus], tmp_path / "tokenizer", vocab_size=150)


def longest_match(piece: str, vocab: dict[str, int]) -> list[str]:
    """WordPiece by hand; a piece that begins with ## is inside of a word."""
    found, inside, rest = [], piece.startswith("##"), piece.removeprefix("##")
    while rest:
        ends = range(len(rest), 0, -1)
        end = next(e for e in ends if ("##" if inside else "") + rest[:e] in vocab)
        found.append(("##" if inside else "") + rest[:end])
        rest, inside = rest[end:], True
    return found


def slow_merges(words: dict[str, int], tokenizer: Tokenizer, steps: int) -> list[tuple[str, str]]:
    """Count all pairs anew before each merge."""
    split = {w: [t.value for t in tokenizer.model.tokenize(w)] for w in words}
    done = []
    for _ in range(steps):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for pair in pairwise(pieces):
                if "[UNK]" not in pair:
                    pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[best] < 2:
            break
        done.append(best)
        for pieces in split.values():
            i = 0
            while i + 1 < len(pieces):
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i : i + 2] = [pieces[i] + pieces[i + 1].removeprefix("##")]
                i += 1
    return done


def test_merges_are_those_of_a_slow_learner(tokenizer, corpus, text):
    for path in (text, corpus):
        words = count_words(tokenizer, [path.read_text(encoding="utf-8")])
        merges = Merges("##", tokenizer.get_vocab())
        merges.add_words(tokenizer, words)
        merges.learn(1000, drop_unused=False)
        assert merges.done == slow_merges(dict(words), tokenizer, 1000)
        assert path == corpus or len(merges.done) > 30


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_old_ids_stay_and_new_pieces_consist_of_old_ones(tokenizer, text, count):
    before = tokenizer.get_vocab(with_added_tokens=True)
    extended = extend_tokenizer(tokenizer, [text], count)
    after = extended.tokenizer.get_vocab(with_added_tokens=True)
    assert {token: after[token] for token in before} == before
    assert extended.first == len(before)
    assert [after[piece] for piece in extended.pieces] == list(range(len(before), len(after)))
    assert 0 < len(extended.pieces) <= count
    assert len(extended.pieces) == count or count == 1000
    for piece, ids in extended.pieces.items():
        assert [before[old] for old in longest_match(piece, before)] == list(ids)
        assert len(ids) > 1
    reloaded = Tokenizer.from_str(extended.tokenizer.to_str())
    assert reloaded.get_vocab(with_added_tokens=True) == after
    assert vocabulary(reloaded).special == vocabulary(tokenizer).special


def test_frequent_words_become_one_piece(tokenizer, text):
    extended = extend_tokenizer(tokenizer, [text], 1000)
    new, pieces = extended.tokenizer, extended.pieces
    assert new.encode("cardiomyopathy", add_special_tokens=False).tokens == ["cardiomyopathy"]
    assert "onceword" not in pieces  # it occurs once
    before, after = (inspect_tokenizer(t, [text]).tokens_per_word for t in (tokenizer, new))
    words = MEDICINE.lower().split()
    assert after < 1.2 < 3 < before
    # No place is wasted on what only occurs inside of longer pieces.
    used = {token for word in words for token in new.encode(word).tokens}
    assert set(pieces) <= used
    again = extend_tokenizer(tokenizer, [text], 1000)
    assert again.pieces == pieces


def test_bpe_goes_on_as_the_library_trains_it(corpus, text, tmp_path):
    """A BPE of 300 tokens that learns 20 more is one of 320."""
    for name, size in (("small", 300), ("large", 320)):
        train_tokenizer([text, corpus], tmp_path / name, vocab_size=size, kind="bpe")
    small, large = (load_tokenizer(tmp_path / name) for name in ("small", "large"))
    extended = extend_tokenizer(small, [text, corpus], 20)
    assert extended.tokenizer.get_vocab_size() == large.get_vocab_size() == 320
    sample = MEDICINE * 3 + GENERAL * 3
    old, ours, theirs = (len(t.encode(sample).ids) for t in (small, extended.tokenizer, large))
    assert ours == pytest.approx(theirs, rel=0.03)  # they decide between equal counts
    assert ours < 0.9 * old
    assert len(set(extended.pieces) & large.get_vocab().keys()) >= 10
    assert (
        extended.tokenizer.decode(extended.tokenizer.encode(sample).ids).split() == sample.split()
    )


def test_added_tokens_keep_their_ids(tokenizer, text):
    tokenizer.add_special_tokens(["[ENTITY]"])
    entity = tokenizer.token_to_id("[ENTITY]")
    extended = extend_tokenizer(tokenizer, [text], 10)
    assert extended.first == entity + 1
    reloaded = Tokenizer.from_str(extended.tokenizer.to_str())
    assert reloaded.token_to_id("[ENTITY]") == entity
    assert reloaded.encode("[ENTITY]", add_special_tokens=False).ids == [entity]


def test_words_with_unknown_characters_are_left_out(tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u03b2\u03b2\u03b2blocker \u03b2\u03b2\u03b2blocker oldfox oldfox\n")
    assert list(extend_tokenizer(tokenizer, [path], 10).pieces) == ["oldfox"]


def test_what_cannot_be_extended(corpus, tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the fox , the notes and a doctor\n")
    with pytest.raises(UserError, match="no new pieces"):
        extend_tokenizer(tokenizer, [path], 10)
    train_tokenizer([corpus], tmp_path / "unigram", vocab_size=60, kind="unigram")
    with pytest.raises(UserError, match="A Unigram vocabulary cannot be extended"):
        extend_tokenizer(load_tokenizer(tmp_path / "unigram"), [corpus], 10)
