"""Tokenizer inspection: metrics and warnings."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from electra.text.inspect import inspect_tokenizer
from electra.text.tokenizer import load_tokenizer, train_tokenizer


def warned(report, name: str) -> list[str]:
    """Return the warnings that start with a name."""
    return [w for w in report.warnings if w.startswith(name)]


@pytest.fixture
def look(tmp_path):
    """Train on one text and inspect on another."""

    def look(text, other=None, **options):
        path = tmp_path / "text.txt"
        path.write_text(text, encoding="utf-8")
        out = tmp_path / "tokenizer"
        tokenizer = train_tokenizer([path], out, **{"vocab_size": 300, "overwrite": True} | options)
        if other is not None:
            path.write_text(other, encoding="utf-8")
        return inspect_tokenizer(tokenizer, [path])

    return look


GERMAN = "Der größte Vogel hört schöne Töne über den Häusern und läuft für Öl.\n" * 50
ENGLISH = "the quick brown fox jumps over the lazy dog and runs away again\n" * 50


def test_metrics_of_a_known_case(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "d", "never"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = tmp_path / "a.txt"
    text.write_text("ab abc\nd x")
    report = inspect_tokenizer(tokenizer, [text])
    assert (report.kind, report.vocabulary_size, report.words) == ("WordPiece", 9, 4)
    assert report.tokens == 5
    assert report.unknown_rate == 1 / 5
    assert report.tokens_per_word == 5 / 4
    assert report.tokens_per_character == 5 / 7
    assert report.accents_lost_rate == 0
    assert report.continuation_rate == 1 / 5
    assert report.used_rate == 4 / 9  # ab, ##c, d and the unknown one
    assert ("x", "[UNK]") in report.examples
    assert warned(report, "high unknown rate")
    assert warned(report, "text changes: 50.0%")


def test_warning_for_lost_accents(look):
    report = look(GERMAN)
    (warning,) = warned(report, "accents lost")
    assert report.changed_rate > 0.1
    line = GERMAN.partition("\n")[0]
    letters = [c for c in line if c.isalpha()]
    assert report.accents_lost_rate == sum(c in "öäüÖ" for c in letters) / len(letters)
    assert not warned(report, "text changes")  # it has been said
    assert "ö→o" in warning
    assert "ü→u" in warning
    assert "--keep-accents" in warning
    for options in ({"keep_accents": True}, {"cased": True}, {"cased": True, "kind": "bpe"}):
        assert not warned(look(GERMAN, vocab_size=400, **options), "accents lost")
    assert not warned(look(ENGLISH), "accents lost")


def test_warning_for_lost_accents_in_decomposed_text(look):
    import unicodedata

    vietnamese = unicodedata.normalize("NFD", "Tiếng Việt là ngôn ngữ của người Việt Nam\n") * 20
    (warning,) = warned(look(vietnamese), "accents lost")
    assert "→" in warning


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_warning_for_lost_accents_with_bpe_and_unigram(look, kind):
    assert warned(look(GERMAN, kind=kind, vocab_size=400 if kind == "bpe" else 60), "accents lost")


def test_warning_for_lost_case(look):
    assert warned(look(GERMAN), "case lost")
    assert not warned(look(GERMAN, cased=True), "case lost")
    assert not warned(look(ENGLISH), "case lost")


def test_warning_for_unknown_text(look):
    report = look(ENGLISH, other="Ελληνικά γράμματα εδώ\n" * 30)
    assert warned(report, "high unknown rate")
    assert report.unknown_rate > 0.9
    assert report.changed_rate > 0.9
    assert not warned(look(ENGLISH, other="some other words\n"), "high unknown rate")


@pytest.mark.parametrize("text", ["東京は日本の首都です。" * 9, "ภาษาไทยเขียนติดกัน" * 9])
def test_warning_for_text_without_spaces(look, text):
    assert warned(look(text, vocab_size=500), "text without spaces")
    assert not warned(look(text, kind="bpe", vocab_size=500), "text without spaces")
    assert not warned(look(ENGLISH), "text without spaces")


def test_kana_keep_their_marks(look):
    """が and か differ by what Unicode calls an accent."""
    text = "がくせいがでんしゃでがっこうへいく。\n" * 20
    (warning,) = warned(look(text, kind="unigram", vocab_size=40), "accents lost")
    assert "が→か" in warning
    report = look(text, kind="unigram", vocab_size=40, keep_accents=True)
    assert report.accents_lost_rate == 0
    assert report.changed_rate == 0


def test_examples_without_spaces_are_shortened(look):
    report = look("東京は日本の首都です。" * 9, other="中" * 500, vocab_size=100)
    assert max(len(side) for pair in report.examples for side in pair) == 30


def test_warning_for_unused_vocabulary(look, make_text):
    report = look(make_text(200), other=ENGLISH * 40, vocab_size=600)
    assert warned(report, "vocabulary too large")


def test_warning_for_missing_special_tokens(tmp_path, tokenizer_folder):
    content = (tokenizer_folder / "tokenizer.json").read_text().replace("[MASK]", "[HIDE]")
    (tmp_path / "tokenizer.json").write_text(content)
    text = tmp_path / "a.txt"
    text.write_text("kari")
    report = inspect_tokenizer(load_tokenizer(tmp_path), [text])
    assert len(warned(report, "missing special token [MASK]")) == 1
    assert len(warned(report, "missing special token")) == 1
    named = inspect_tokenizer(load_tokenizer(tmp_path), [text], names={"mask": "[HIDE]"})
    assert not warned(named, "missing special token")


def test_no_warnings_for_a_good_fit(look):
    report = look(ENGLISH)
    assert report.warnings == ()
    assert report.changed_rate == 0
    assert report.unknown_rate == 0


def test_only_a_sample_is_read(tmp_path, tokenizer_folder):
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(["kari tomen"] * 1000))
    report = inspect_tokenizer(load_tokenizer(tokenizer_folder), [text], limit=100)
    assert report.text_bytes < 200
    text.write_text("kari tomen " * 1000)  # one long document
    report = inspect_tokenizer(load_tokenizer(tokenizer_folder), [text], limit=100)
    assert report.text_bytes < 200
    text.write_text("\n\n".join(["ö" * 10] * 1000), encoding="utf-8")  # bytes, not letters
    report = inspect_tokenizer(load_tokenizer(tokenizer_folder), [text], limit=100)
    assert 100 <= report.text_bytes < 150
