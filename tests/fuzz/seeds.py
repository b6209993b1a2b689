"""Valid files for each target: what the fuzzers start from."""

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tests.fuzz.targets import TARGETS, checked, make_model, make_vocab, tiny_encoder
from tests.hub.conftest import block, field, table
from tokenizers import Tokenizer

from electra.config import to_yaml
from electra.hub.heads import TaskCard
from electra.models.electra import Discriminator
from electra.text.tokenizer import from_vocab_txt
from electra.train.checkpoint import TrainState
from electra.train.settings import PretrainConfig

TEXT = b"The first document.\nIts second line.\n\nThe second document, caf\xc3\xa9.\n"
ARTICLE = (
    "'''Bread''' is [[food|baked]] of {{cite|1}} flour.<ref>a</ref>\n== Kinds ==\n* [[File:a.png]]"
    "\n{| class=x\n| cell\n|}\n[http://a.b link] &amp; &#233; <math>x</math> -{zh:a;b}-\n"
)
SHARD_SHA = "5dcc1b5872dd9ff1c234501f1fefda01f664164e1583c3e1bb3dbea47588ab31"
"""SHA-256 of sixty zeros, the shard of the target."""
EMPTY_SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of an empty file."""


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def packed(files: dict[str, bytes], compression: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def parquet() -> bytes:
    import pyarrow
    from pyarrow.parquet import write_table

    out = io.BytesIO()
    write_table(pyarrow.table({"text": ["one", None, "three"], "n": [1, 2, 3]}), out)
    return out.getvalue()


def zstd() -> bytes:
    import pyarrow

    return pyarrow.compress(TEXT, codec="zstd", asbytes=True)


def dump() -> bytes:
    return (
        '<mediawiki xml:lang="en"><siteinfo><namespaces><namespace key="6">File</namespace>'
        "</namespaces></siteinfo><page><title>Bread</title><ns>0</ns><revision><model>wikitext"
        f"</model><text>{ARTICLE.replace('&', '&amp;').replace('<', '&lt;')}</text></revision>"
        "</page></mediawiki>"
    ).encode()


def shard_index() -> bytes:
    shard = {"file": "shard-00000.bin", "rows": 3, "held_out": 1, "tokens": 9}
    return lines(
        {
            "format": 1,
            "length": 8,
            "layout": "packed",
            "dtype": "uint16",
            "tokenizer": "a",
            "vocabulary_size": 16,
            "shards": [shard | {"sha256": SHARD_SHA}],
        }
    )


def bundle_items() -> list[tuple[bytes, bytes]]:
    names = ("electra/embeddings/word_embeddings", "electra/encoder/layer_0/x", "global_step")
    shape = field(2, field(1, 4)) + field(2, field(1, 8))
    entry = field(1, 1) + field(2, shape) + field(4, 16) + field(5, 128)
    entry += b"\x35" + checked(bytes(127))[-4:]  # the checksum of 128 zeros
    return [(b"", field(1, 1)), *((name.encode(), entry) for name in names)]


def made(make: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return (Path(folder) / name).read_bytes()


def tokenizer_json() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        make_vocab(Path(folder))
        tokenizer: Tokenizer = from_vocab_txt(Path(folder))
    return tokenizer.to_str().encode()


def question(**more: Any) -> dict[str, Any]:
    return {"id": "1", "question": "Who bakes?", **more}


def squad() -> bytes:
    qas = [question(answers=[{"text": "baker", "answer_start": 4}], is_impossible=False)]
    contexts = ("The baker bakes bread.", "The baker sings.", "The baker sleeps.")
    paragraphs = [{"context": context, "qas": qas} for context in contexts]
    return json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}).encode()


def mrqa() -> bytes:
    asked = {"qid": "1", "question": "Who?", "answers": ["baker"]}
    asked["detected_answers"] = [{"text": "baker", "char_spans": [[4, 8]]}]
    contexts = ("The baker bakes.", "The baker sings.", "The baker sleeps.")
    return lines({"header": {}}, *({"context": text, "qas": [asked]} for text in contexts))


def metrics() -> bytes:
    held_out = {"mlm_loss": 2.0, "auc": 0.7, "recall": 0.4, "precision": 0.5}
    train = {"mlm_loss": 2.1, "tokens": 64, "seconds": 1.5, "tokens_per_second": 10.0}
    started = {"message": "started", "parameters": {"generator": 10}, "hardware": "cpu"}
    score = {"task": "cola", "metric": "f1", "origin": "a", "score": 0.5, "seeds": 1}
    return lines(
        {"kind": "event", "step": 0, **started, "kernels": "none"},
        {"kind": "phase", "step": 0, "seq_length": 8, "batch_size": 2},
        {"kind": "train", "step": 5, **train, "learning_rate": 1e-3},
        {"kind": "held_out", "step": 5, **held_out, "generator_accuracy": 0.2},
        {"kind": "score", "step": 5, **score},
        {"kind": "event", "step": 6, "message": "a warning"},
    )


def study_results() -> bytes:
    score = {"value": 0.5, "origin": {"settings": {"lr": 1e-4}}}
    result = {"study": "size", "arm": "a", "seed": 0, "data_digest": "d"}
    return lines({**result, "settings": {"optim.lr": 1e-3}, "scores": {"glue": score}})


CARD = b"""license: Apache-2.0
language: da
data:
- {name: a, url: b}
minutes: 3.5
evaluations:
- title: GLUE
  scores:
  - {task: cola, metric: matthews, score: 0.5, seed: 1}
"""
TABLE = b'id,text,label\n1,"a ""good"" day",good\n2,a bad day,bad\n3,"x\ny",good\n4,z,bad\n'
CONLL = b"-DOCSTART- O\n\nJohn B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n\nOK O\n\nMary B-PER\n"
CONLLU = (
    b"# text = Ja\n1\tJa\tja\tINTJ\t_\t_\t0\troot\t_\t_\n\n1\tNej\tnej\tINTJ\t_\t_\t0\t_\t_\t_\n"
)
PREDICT = (b"\0text,label\na,good\n", b"\1one\ntwo\n", b"\2text,label,choice0,choice1\na,0,b,c\n")


def task_seeds() -> dict[str, list[bytes]]:
    pairs = [{"sentence1": text, "sentence2": "b", "label": 0.5} for text in "acd"]
    choices = [{"text": text, "choices": ["b", "c"], "label": 1} for text in "acd"]
    tagged = [{"words": [name, "lives"], "tags": ["B-PER", "O"]} for name in "ABC"]
    answer = {"text": ["baker"], "answer_start": [4]}
    nested = [question(context=f"The baker {text}.", answers=answer) for text in "abc"]
    asked = [f"Who?,The baker {text}.,baker,4\n" for text in "abc"]
    mnli = (
        b"index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\tc\td\t-\n2\te\tf\tneutral\n"
    )
    options = b"question,choice0,choice1,label\na,b,c,0\nd,e,f,1\n"
    return {
        "squad": [squad()],
        "questions": [mrqa(), lines(*nested)],
        "question-table": [f"question,context,answer,answer_start\n{''.join(asked)}".encode()],
        "conll": [CONLL, CONLLU],
        "tags": [lines(*tagged)],
        "glue-cola": [b"x\t1\t\tGood.\ny\t0\t*\tBad.\nz\t1\t\tFine.\n"],
        "glue-mnli": [mnli],
        "glue-stsb": [b"index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n1\tc\td\t5\n"],
        "glue-qqp": [b"id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\nbroken\n1\tc\td\t0\n"],
        "table-csv": [TABLE, TABLE.replace(b",", b";")],
        "table-tsv": [b'sentence1\tsentence2\tlabel\na\t"b"\t0\n"c\t""d\t1\n'],
        "table-jsonl": [lines(*pairs)],
        "table-json": [json.dumps(choices, indent=1).encode()],
        "table-choices": [options],
        "predict-inputs": [*PREDICT, b"\5" + lines(*nested, *tagged), b"\4" + squad()],
        "blimp": [
            lines(dict.fromkeys(("sentence_good", "sentence_bad", "linguistics_term", "UID"), "a"))
        ],
    }


def corpus_seeds() -> dict[str, list[bytes]]:
    files = {"a.txt": TEXT, "b/c.jsonl": lines({"text": "x"}), ".hidden": b"x"}
    files |= {"d.txt.gz": gzip.compress(TEXT), "inner.tar": packed({"e.txt": TEXT})}
    wiki = b'<doc id="1" url="u" title="Bread">\nBread\n\nIt is food.\n</doc>\n'
    return {
        "corpus-text": [TEXT, b"\xef\xbb\xbfa\r\nb\r\r\nc"],
        "corpus-jsonl": [lines({"text": "a"}, {"text": None}, {"text": "caf\u00e9 \ud83d"})],
        "corpus-csv": [b'id,text\n1,"a ""b""\nc"\n2,d\n'],
        "corpus-tsv": [b'id\ttext\n1\ta "b\n2\tc\n'],
        "corpus-parquet": [parquet()],
        "corpus-gzip": [gzip.compress(TEXT), gzip.compress(TEXT) * 2],
        "corpus-bzip2": [bz2.compress(TEXT)],
        "corpus-xz": [lzma.compress(TEXT)],
        "corpus-zstd": [zstd()],
        "corpus-tar": [packed(files)],
        "corpus-tar-gz": [packed(files, "gz")],
        "corpus-zip": [zipped(files)],
        "corpus-wiki-extractor": [wiki * 2, b'{"id": "1", "url": "u", "text": "Bread"}\n'],
        "corpus-wiki-dump": [dump()],
    }


def sharded_header() -> bytes:
    """The header of a sharded checkpoint with one part."""
    tensors = {
        f"model.{k}": p.detach() for k, p in Discriminator(tiny_encoder()).named_parameters()
    }
    offsets = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in tensors.items()}
    content = save(tensors, {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)})
    return content[8 : 8 + int.from_bytes(content[:8], "little")].strip()


def model_seeds() -> dict[str, list[bytes]]:
    weights = made(make_model, "model.safetensors")
    length = int.from_bytes(weights[:8], "little")
    card = TaskCard(name="reviews", kind="classify", labels=["bad", "good"])
    settings = {"do_lower_case": True, "strip_accents": None, "mask_token": {"content": "[MASK]"}}
    return {
        "shard-index": [shard_index()],
        "bundle-index": [table(bundle_items(), 2)],
        "bundle-block": [block(bundle_items())[:-5]],
        "bundle-latest": [b'model_checkpoint_path: "/tmp/model.ckpt-1"\n'],
        "model-config": [made(make_model, "config.json")],
        "model-weights": [weights],
        "weights-header": [weights[8 : 8 + length].strip()],
        "task-card": [json.dumps(dataclasses.asdict(card)).encode()],
        "model-manifest": [
            lines({"name": "a", "version": "1", "sha256": {"discriminator/empty": EMPTY_SHA}})
        ],
        "tokenizer-json": [tokenizer_json()],
        "tokenizer-config": [lines(settings)],
        "vocab-txt": [made(make_vocab, "vocab.txt")],
    }


def all_seeds() -> dict[str, list[bytes]]:
    """One or more valid files for each target."""
    state = TrainState(step=3, rows=6, tokens=48, rows_of_length={8: 6}, held_out={"auc": 0.5})
    seeds = {
        "run-config": [to_yaml(PretrainConfig()).encode()],
        "assignments": [b"model.layers=4\noptim.lr=1e-3\ndata.seq_length=128,512@0.9\nseed=2"],
        "card-details": [CARD],
        "budgets": [b"25min", b"1e9tokens", b"128,512@0.9\n128,256@0.2"],
        "train-state": [json.dumps(dataclasses.asdict(state)).encode()],
        "random-state": [save({"cpu": torch.get_rng_state()})],
        "sharded-header": [sharded_header()],
        "wikitext": [ARTICLE.encode()],
        "metrics": [metrics()],
        "study-results": [study_results()],
        **corpus_seeds(),
        **model_seeds(),
        **task_seeds(),
    }
    assert seeds.keys() == TARGETS.keys()
    return seeds
