"""Tokenizers: saving, loading, special tokens, fingerprint, and use in transformers."""

import errno
import json
import os
import threading

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from electra.errors import UserError
from electra.text.tokenizer import (
    check_out,
    copy_tokenizer,
    fingerprint,
    load_tokenizer,
    load_vocabulary,
    save_tokenizer,
    special_names,
    train_tokenizer,
    vocabulary,
)
from electra.text.train_vocab import SPECIAL


def word_tokenizer(*tokens: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_pairs_have_segments(trained):
    tokenizer, _ = trained
    encoding = tokenizer.encode("kari", "tomen")
    inner = [i for i, t in enumerate(encoding.ids) if t in (2, 3)]
    assert encoding.ids[0] == 2
    assert len(inner) == 3
    cut = inner[1] + 1
    assert encoding.type_ids == [0] * cut + [1] * (len(encoding.ids) - cut)


def test_fingerprint_is_stable_over_save_and_load(trained, tmp_path):
    tokenizer, out = trained
    mark = fingerprint(tokenizer)
    again = load_tokenizer(out)
    assert fingerprint(again) == mark
    save_tokenizer(again, tmp_path)
    assert fingerprint(load_tokenizer(tmp_path / "tokenizer.json")) == mark
    again.enable_truncation(7)
    again.enable_padding(length=9)
    assert fingerprint(again) == mark
    again.add_tokens(["new"])
    assert fingerprint(again) != mark


def test_transformers_gives_the_same_ids(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer, _ = trained
    save_tokenizer(tokenizer, tmp_path, max_length=256)
    for beside in (False, True):
        if beside:
            (tmp_path / "config.json").write_text('{"model_type": "electra"}')
        other = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for text in ("Kari tomen, dra-lu!", "Övafté  öm [MASK] 東京 x\u0301"):
            ours, theirs = tokenizer.encode(text), other(text)
            assert theirs["input_ids"] == ours.ids
            ours, theirs = tokenizer.encode(text, "lu bex"), other(text, "lu bex")
            assert theirs["input_ids"] == ours.ids
            assert theirs["token_type_ids"] == ours.type_ids
        assert (other.pad_token, other.mask_token) == ("[PAD]", "[MASK]")
        assert other.model_max_length == 256


def test_existing_tokenizer_is_kept_without_overwrite(corpus, tmp_path):
    train_tokenizer([corpus], tmp_path, vocab_size=300)
    before = (tmp_path / "tokenizer.json").read_bytes()
    with pytest.raises(UserError, match=r"already holds a tokenizer.*--overwrite"):
        train_tokenizer([corpus], tmp_path, vocab_size=350)
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    train_tokenizer([corpus], tmp_path, vocab_size=350, overwrite=True)
    assert load_tokenizer(tmp_path).get_vocab_size() == 350
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_bert_vocab_txt(tmp_path):
    tokens = [*SPECIAL, "hello", "##s", "über", "uber", "Hello"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hellos Über").tokens == ["[CLS]", "hello", "##s", "uber", "[SEP]"]
    assert vocabulary(tokenizer).size == len(tokens)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"do_lower_case": true, "strip_accents": false}')
    assert "über" in load_tokenizer(tmp_path).encode("Über").tokens
    settings.write_text('{"do_lower_case": false}')
    assert "Hello" in load_tokenizer(tmp_path / "vocab.txt").encode("Hello").tokens


@pytest.mark.parametrize("missing", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_missing_special_token_is_named(missing):
    names = [name for name in SPECIAL if name != missing]
    with pytest.raises(UserError) as caught:
        vocabulary(word_tokenizer(*names, "a"))
    assert missing in str(caught.value)
    assert "tokenizer_config.json" in str(caught.value)


def test_other_special_names_and_id_gaps():
    tokenizer = word_tokenizer("<s>", "<pad>", "</s>", "<unk>", "a")
    tokenizer.add_special_tokens(["<mask>", "<unk>", AddedToken("<extra>", special=True)])
    known = vocabulary(tokenizer)
    assert (known.cls, known.pad, known.sep, known.unk, known.mask) == (0, 1, 2, 3, 5)
    assert known.special == (0, 1, 2, 5, 6)

    gaps = Tokenizer(models.WordLevel({**{n: i for i, n in enumerate(SPECIAL)}, "a": 9}, "[UNK]"))
    assert vocabulary(gaps).absent == (5, 6, 7, 8)
    assert vocabulary(gaps).size == 10


def test_special_names_from_tokenizer_config(tmp_path):
    tokenizer = word_tokenizer("<<p>>", "BEGIN", "END", "HIDE", "[UNK]", "a")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "pad_token": "<<p>>",
                "cls_token": {"content": "BEGIN"},
                "sep_token": "END",
                "mask_token": "HIDE",
            }
        )
    )
    names = special_names(tmp_path)
    known = vocabulary(load_tokenizer(tmp_path), names)
    assert (known.pad, known.cls, known.sep, known.mask) == (0, 1, 2, 3)
    both = word_tokenizer(*SPECIAL, "HIDE")
    assert vocabulary(both, {"mask": "HIDE"}).mask == 5  # what is said comes before what is usual
    assert vocabulary(both).mask == 4
    save_tokenizer(load_tokenizer(tmp_path), tmp_path / "again", names=names)
    assert special_names(tmp_path / "again") == names | {"unk": "[UNK]"}


@pytest.mark.parametrize("content", [None, "", "{}", "no json"])
def test_unreadable_tokenizers(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="There is no tokenizer"):
        load_tokenizer(tmp_path / "none")


def test_truncation_and_padding_of_a_file_are_ignored(trained, tmp_path):
    tokenizer, _ = trained
    cut = Tokenizer.from_str(tokenizer.to_str())
    cut.enable_truncation(4)
    cut.enable_padding(length=50)
    cut.save(str(tmp_path / "tokenizer.json"))
    ids = load_tokenizer(tmp_path).encode("kari to men sul va pe no").ids
    assert ids == tokenizer.encode("kari to men sul va pe no").ids
    assert len(ids) > 4


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_from_a_pipe(corpus, tmp_path, kind):
    """WordPiece training reads the text twice, a pipe can be read once."""
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes(corpus.read_bytes()), daemon=True
    )
    thread.start()
    train_tokenizer([tmp_path / "pipe"], tmp_path / "a", vocab_size=300, kind=kind)
    train_tokenizer([corpus], tmp_path / "b", vocab_size=300, kind=kind)
    piped, plain = ((tmp_path / n / "tokenizer.json").read_bytes() for n in "ab")
    assert piped == plain


@pytest.mark.parametrize("free", [0, 50, 400, 5000])
def test_full_disk_leaves_no_incomplete_tokenizer(corpus, tmp_path, monkeypatch, free):
    """Nothing is left behind, so the same command works once there is space again."""
    out = tmp_path / "tokenizer"
    with monkeypatch.context() as patch:
        limit_disk(patch, free)
        with pytest.raises(OSError, match="No space"):
            train_tokenizer([corpus], out, vocab_size=300)
    assert list(tmp_path.iterdir()) == []
    train_tokenizer([corpus], out, vocab_size=300)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert sorted(before) == ["tokenizer.json", "tokenizer_config.json"]
    with monkeypatch.context() as patch:
        limit_disk(patch, free)
        with pytest.raises(OSError, match="No space"):
            train_tokenizer([corpus], out, vocab_size=350, overwrite=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def limit_disk(patch: pytest.MonkeyPatch, free: int) -> None:
    """Make writes fail after some bytes."""
    left = [free]
    real = os.fsync

    def fsync(handle: int) -> None:
        left[0] -= os.fstat(handle).st_size
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    patch.setattr(os, "fsync", fsync)


def test_an_id_that_would_take_all_memory_is_refused(tmp_path):
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    made = json.loads(Tokenizer(models.WordPiece(vocab, unk_token="[UNK]")).to_str())
    made["model"]["vocab"]["[MASK]"] = 4_000_000_000  # to_str would count up to it
    (tmp_path / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(UserError, match="the id 4,000,000,000"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize("text", ["[]", "5", "[" * 10_000, '{"do_lower_case": "yes"}'])
def test_settings_of_the_wrong_type_are_refused(tmp_path, text):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL))
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_special_tokens_that_are_no_text(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL))
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "\\ud800"}')
    assert load_vocabulary(tmp_path).mask == SPECIAL.index("[MASK]")


def test_a_vocabulary_without_the_unknown_token_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(UserError, match=r"no \[UNK\] token"):
        load_tokenizer(tmp_path)


def test_only_the_files_of_a_tokenizer_are_copied(tokenizer_folder, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for file in tokenizer_folder.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (tmp_path / "secret").write_text("secret")
    (source / "notes.txt").symlink_to(tmp_path / "secret")
    copy_tokenizer(source, tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("template", ["single", "pair"])
def test_a_template_with_a_token_that_is_not_there_is_refused(template, tokenizer_folder, tmp_path):
    content = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    content["post_processor"][template][0]["SpecialToken"]["id"] = "[NONE]"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="cannot be read as a tokenizer"):
        load_tokenizer(tmp_path).encode("a")


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    out = tmp_path / "new" / "tokenizer"
    check_out(out, overwrite=False)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UserError, match=rf"'{tmp_path}' cannot be written: choose another --out"):
        check_out(out, overwrite=False)
    assert not out.parent.exists()


def test_a_folder_below_a_file_is_refused_before_the_training(tmp_path):
    (tmp_path / "text.txt").touch()
    for out in (tmp_path / "text.txt", tmp_path / "text.txt" / "new" / "tokenizer"):
        with pytest.raises(UserError, match=r"text.txt' is a file: name a folder with --out"):
            check_out(out, overwrite=False)
