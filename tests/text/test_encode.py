"""Encoding of a chunk: which encoder is used, the id type, and the chunk's digest."""

import hashlib
from dataclasses import replace
from itertools import chain

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from electra.text import encode
from electra.text.encode import (
    build_encoder,
    chunk_digest,
    encode_with_library,
    open_tokenizer,
)
from electra.text.tasks import new_job
from electra.text.wordpiece_cache import WordPieceCache


@pytest.fixture
def job(tokenizer_folder, tmp_path):
    return new_job(tokenizer_folder, tmp_path, 32, "pairs", 0.1, 1)


@pytest.mark.parametrize(
    ("size", "dtype"), [(150, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")]
)
def test_smallest_id_type(job, size, dtype):
    assert replace(job, vocabulary=replace(job.vocabulary, size=size)).dtype == dtype


def changed(job, change):
    """Return the job with a changed tokenizer."""
    tokenizer = Tokenizer.from_str(job.tokenizer)
    change(tokenizer)
    return encode.Job(
        folder=job.folder,
        tokenizer=tokenizer.to_str(),
        vocabulary=job.vocabulary,
        length=job.length,
        layout=job.layout,
        held_out=job.held_out,
        seed=job.seed,
    )


def put(**parts):
    def change(tokenizer):
        for name, part in parts.items():
            setattr(tokenizer, name, part)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer.add_tokens(["kari to"]),
        lambda tokenizer: tokenizer.add_tokens([AddedToken("ari", normalized=False)]),
        put(normalizer=normalizers.BertNormalizer(clean_text=False)),
        put(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.BertNormalizer()])),
        put(normalizer=normalizers.Replace("a t", "b")),
        put(pre_tokenizer=pre_tokenizers.Whitespace()),
        put(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        put(model=models.WordLevel({"kari": 0, "[UNK]": 1}, unk_token="[UNK]")),
    ],
)
def test_other_rules_use_the_library(job, change, make_text):
    other = changed(job, change)
    tokenise = build_encoder(other)
    assert not isinstance(tokenise, WordPieceCache)
    documents = [text.encode() for text in ["kari to men", *make_text(5).split("\n\n")]]
    tokenizer = open_tokenizer(other)
    lines = [line for text in documents for line in text.decode().split("\n")]
    expected = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    assert tokenise(documents)[0].tolist() == list(chain.from_iterable(expected))


def test_truncation_and_padding_are_switched_off(job):
    def change(tokenizer):
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=8)

    texts = [b"the old farmer and the old sailor", b"the"]
    (ids, lines), (wanted, plain) = (
        encode_with_library(open_tokenizer(each), "uint16", texts)
        for each in (changed(job, change), job)
    )
    assert lines == plain
    assert ids.tolist() == wanted.tolist()


def test_chunk_digest_depends_on_document_boundaries():
    """Each document ends with a NUL byte, so other boundaries give another digest."""
    state = hashlib.blake2b(digest_size=16)
    for document in (b"one", b"two"):
        state.update(document + b"\0")
    assert chunk_digest([b"one", b"two"]) == state.hexdigest()
    assert len({chunk_digest(d) for d in ([b"ab"], [b"a", b"b"], [], [b""])}) == 4
