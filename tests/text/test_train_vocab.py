"""Vocabulary training: reproducible, with case, accents and alphabet as requested."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from electra.errors import UserError
from electra.text.tokenizer import train_tokenizer, vocabulary
from electra.text.train_vocab import SPECIAL, train_on


def test_special_tokens_have_the_first_ids(trained):
    tokenizer, _ = trained
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3, 4]
    known = vocabulary(tokenizer)
    assert (known.pad, known.unk, known.cls, known.sep, known.mask) == (0, 1, 2, 3, 4)
    assert known.special == (0, 2, 3, 4)  # not the unknown one
    assert known.absent == ()
    assert known.size == tokenizer.get_vocab_size()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_is_reproducible(tmp_path, kind):
    """Also in other processes, where the library's hash tables have another order."""
    dice = random.Random(1)
    words = ("".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(800))
    corpus = tmp_path / "ties.txt"
    corpus.write_text(" ".join(words))  # every word once: many pairs are equally frequent
    code = (
        "import sys; from electra.text.tokenizer import *\n"
        "train_tokenizer([sys.argv[1]], Path(sys.argv[2]), vocab_size=400, kind=sys.argv[3])"
    )
    for name in ("a", "b", "c"):
        subprocess.run(
            [sys.executable, "-c", code, str(corpus), str(tmp_path / name), kind],
            check=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "true" if name == "a" else "false"},
        )
    one, two, three = ((tmp_path / n / "tokenizer.json").read_bytes() for n in "abc")
    assert one == two == three


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "om te kari"),
        ({"keep_accents": True}, "öm té kari"),
        ({"cased": True}, "Öm té Kari"),
    ],
)
def test_case_and_accents(corpus, tmp_path, kind, options, expected):
    extra = tmp_path / "extra.txt"
    extra.write_text("Öm té Kari\n" * 30)
    tokenizer = train_tokenizer(
        [corpus, extra], tmp_path / "t", vocab_size=500, kind=kind, **options
    )
    ids = tokenizer.encode("Öm té Kari", add_special_tokens=False).ids
    assert tokenizer.decode(ids).strip() == expected


def test_wordpiece_word_length_limit(trained):
    tokenizer, _ = trained
    if type(tokenizer.model).__name__ != "WordPiece":
        pytest.skip("a rule of WordPiece")
    assert 1 not in tokenizer.encode("ka" * 100).ids
    assert 1 in tokenizer.encode("ka" * 100 + "k").ids


def test_mask_absorbs_the_space_before_it(trained):
    """A masked token includes its space in training; "a [MASK] b" must give the same tokens."""
    tokenizer, _ = trained
    whole = tokenizer.encode("kari to").ids
    masked = tokenizer.encode("kari [MASK] to").ids
    assert len(masked) == len(whole) + 1


def test_too_small_vocabularies_are_refused(corpus, tmp_path):
    for kind in ("wordpiece", "bpe"):
        with pytest.raises(UserError, match="larger --vocab-size"):
            train_tokenizer([corpus], tmp_path / kind, vocab_size=20, kind=kind)
        assert not (tmp_path / kind).exists()


def test_rare_characters_do_not_fill_the_vocabulary(tmp_path):
    text = tmp_path / "a.txt"
    rare = "".join(chr(0x4E00 + i) for i in range(1500))
    text.write_text("kari tomen \n" * 400_000 + rare, encoding="utf-8")
    for size, expected in ((8000, 1000), (2000, 500)):
        tokenizer = train_tokenizer([text], tmp_path / str(size), vocab_size=size)
        singles = [t for t in tokenizer.get_vocab() if len(t) == 1]
        assert len(singles) == expected
        assert set("karitomen") <= set(singles)
        assert "##k" in tokenizer.get_vocab()
        assert f"##{rare[0]}" not in tokenizer.get_vocab()  # ideographs are words of their own
    text.write_text("龍龜" * 300 + rare, encoding="utf-8")
    tokenizer = train_tokenizer([text], tmp_path / "late", vocab_size=2000)
    assert {"龍", "龜"} <= set(tokenizer.get_vocab())  # frequent, though late in the order


def test_scripts_of_many_characters_get_a_larger_alphabet(tmp_path):
    """With 1,000 characters, one in three of this text would be unknown."""
    text = tmp_path / "a.txt"
    many = "".join(chr(0x4E00 + i) for i in range(1500))
    text.write_text("\n".join([many] * 3), encoding="utf-8")
    tokenizer = train_tokenizer([text], tmp_path / "t", vocab_size=8000)
    assert 1 not in tokenizer.encode(many).ids
    assert len(tokenizer.encode(many, add_special_tokens=False).ids) == 1500


JAPANESE = ["東京の駅でカメラを見た。", "京都の駅でテレビを見る。", "東京でカメラとテレビを見た。"]


def test_unigram_splits_text_without_spaces_by_script(tmp_path):
    """Else a whole line is one word, and training takes minutes for megabytes."""
    text = tmp_path / "a.txt"
    text.write_text("\n".join(JAPANESE * 20) + "\nthe camera", encoding="utf-8")
    tokenizer = train_tokenizer(
        [text], tmp_path / "t", vocab_size=60, kind="unigram", keep_accents=True
    )
    words = tokenizer.pre_tokenizer.pre_tokenize_str("東京のカメラー、the ラ")
    assert [word for word, _ in words] == ["▁東京", "の", "カメラー", "、the", "▁ラ"]
    for line in [*JAPANESE, "the camera"]:
        ids = tokenizer.encode(line, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == line


def test_word_has_the_same_tokens_at_the_start_of_a_line(trained):
    tokenizer, _ = trained
    alone = tokenizer.encode("kari", add_special_tokens=False).ids
    inside = tokenizer.encode("to kari", add_special_tokens=False).ids
    assert inside[-len(alone) :] == alone


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_korean_syllables_stay_composed(corpus, tmp_path, kind):
    tokenizer = train_tokenizer([corpus], tmp_path, vocab_size=300, kind=kind)
    assert tokenizer.normalizer.normalize_str("한국어 É") == "한국어 e"


class SlowTokenizer:
    """Reads all lines and then, like the library, does not react to signals."""

    def __init__(self, seconds):
        self.seconds, self.read, self.complete = seconds, [], False

    def train_from_iterator(self, batches, trainer):
        self.read += batches
        self.complete = True
        time.sleep(self.seconds)


def test_ctrl_c_does_not_wait_for_the_library():
    start = time.monotonic()
    # In the background, a shell lets its processes ignore SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            train_on(SlowTokenizer(20), [["a"], ["b"]], None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 10


def test_an_error_in_the_text_ends_the_training():
    def lines():
        yield from [[str(number)] for number in range(20)]
        raise UserError("line 21")

    tokenizer = SlowTokenizer(0)
    with pytest.raises(UserError, match="line 21"):
        train_on(tokenizer, lines(), None)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5)
    assert not tokenizer.complete


def test_text_is_not_read_on_after_the_library_has_failed():
    class Failing:
        def train_from_iterator(self, batches, trainer):
            raise ValueError("too small")

    read = []

    def lines():
        for number in range(1000):
            read.append(number)
            time.sleep(0.001)
            yield [str(number)]

    with pytest.raises(ValueError, match="too small"):
        train_on(Failing(), lines(), None)
    assert len(read) < 1000
