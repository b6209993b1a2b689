"""Our steps in datatrove's pipelines: the shards of `electra prepare`, from other readers."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("datatrove")

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader

from electra.errors import UserError
from electra.text.cluster import finish_tasks
from electra.text.datatrove_steps import WriteIndex, WriteShards
from electra.text.prepare import prepare
from electra.text.shards import Shards

TASKS = 2


@pytest.fixture
def records(make_text, tmp_path) -> Path:
    """A folder of three files of JSON lines, with texts that need cleaning."""
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(3):
        texts = make_text(60, seed=number).split("\n\n")
        texts[1:3] = [f"  {texts[1]}\r\nand more\n", " \n"]
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def step(tokenizer_folder, tmp_path):
    """`WriteShards` with short sequences."""

    def step(out: str = "steps", **options) -> WriteShards:
        defaults = {"tokenizer": tokenizer_folder, "length": 32, "held_out": 0.1}
        return WriteShards(tmp_path / out, **defaults | options)

    return step


def rows(folder: Path) -> tuple[str, dict[str, bytes]]:
    """The identity of a folder's data, and its shards."""
    found = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    return Shards.open(folder).digest, found


def test_reader_of_datatrove_gives_the_shards_of_prepare(records, step, tokenizer_folder, tmp_path):
    def run(pipeline, name: str, tasks: int) -> None:
        logs = str(tmp_path / "logs" / name)
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=tasks, logging_dir=logs).run()

    shards = step()
    run([JsonlReader(str(records)), shards], "shards", TASKS)
    run([WriteIndex(shards, tasks=TASKS)], "index", 1)
    options = {"tokenizer": tokenizer_folder, "length": 32, "held_out": 0.1, "workers": 1}
    prepare([records], out=tmp_path / "prepare", tasks=TASKS, **options)
    assert rows(tmp_path / "steps") == rows(tmp_path / "prepare")
    stats = json.loads((tmp_path / "logs" / "shards" / "stats.json").read_text())
    totals = json.loads((tmp_path / "steps" / "index.json").read_text())["totals"]
    assert stats[-1]["stats"]["documents"]["total"] == totals["documents"]


def test_filter_before_our_step(step, tmp_path, make_text):
    texts = make_text(40).split("\n\n")
    shards = step()
    documents = (Document(text=text, id=str(n)) for n, text in enumerate(texts))
    shards.run(LambdaFilter(lambda d: int(d.id) % 2 == 0).run(documents), 0, 1)
    WriteIndex(shards, tasks=1).run()
    index = json.loads((tmp_path / "steps" / "index.json").read_text())
    assert index["totals"]["documents"] == 20
    assert index["request"]["inputs"] == []


def test_lone_surrogate_is_replaced(step, tmp_path, make_text):
    shards = step()
    shards.run(iter([Document(text=make_text(9) + " \ud800", id="0")]), 0, 1)
    WriteIndex(shards, tasks=1).run()
    assert Shards.open(tmp_path / "steps").tokens


def test_inputs_relative_to_another_folder(step, corpus, tmp_path, monkeypatch):
    """A task may start in another folder than the command that plans it."""
    monkeypatch.chdir(corpus.parent)
    shards = step(inputs=[corpus.name])
    monkeypatch.chdir(tmp_path)
    shards.run(None, 0, 1)
    WriteIndex(shards, tasks=1).run()
    assert Path.cwd() == tmp_path
    assert Shards.open(tmp_path / "steps").rows("train")


def test_index_waits_for_all_tasks(step, corpus, tokenizer_folder, tmp_path, read_files):
    shards = step(inputs=[corpus] * 3, tasks=3)
    shards.run(None, 1, 3)
    before = read_files(tmp_path / "steps")
    with pytest.raises(UserError, match=r"2 of 3 tasks have not finished \(0, 2\)"):
        WriteIndex(shards, tasks=3).run()
    assert before.items() <= read_files(tmp_path / "steps").items()
    shards.run(None, 0, 3)
    shards.run(None, 2, 3)
    WriteIndex(shards, tasks=3).run()
    options = {"tokenizer": tokenizer_folder, "length": 32, "held_out": 0.1, "workers": 1}
    prepare([corpus] * 3, out=tmp_path / "prepare", tasks=3, **options)
    assert read_files(tmp_path / "steps") == read_files(tmp_path / "prepare")


def test_input_that_changed_since_its_task_is_read_again(step, corpus, tmp_path):
    path = tmp_path / "copy.txt"
    path.write_bytes(corpus.read_bytes())
    step(inputs=[path]).run(None, 0, 1)
    path.write_bytes(corpus.read_bytes() + b"\n\nMore.\n")
    later = step(inputs=[path])
    with pytest.raises(UserError, match="1 of 1 tasks have not finished"):
        finish_tasks(later.plan)
    later.run(None, 0, 1)
    finish_tasks(later.plan)


def test_failed_task_says_why(step, corpus, tmp_path):
    damaged = tmp_path / "damaged.txt"
    damaged.write_bytes(b"\xff broken")
    shards = step(inputs=[corpus, damaged], tasks=2)
    shards.run(None, 0, 2)
    with pytest.raises(UserError, match=r"'.*damaged.txt' is not valid UTF-8"):
        shards.run(None, 1, 2)
    with pytest.raises(UserError, match=r"'.*damaged.txt' is not valid UTF-8"):
        finish_tasks(shards.plan)


def test_finished_folder_stays(step, corpus, tmp_path, read_files):
    shards = step(inputs=[corpus])
    shards.run(None, 0, 1)
    finish_tasks(shards.plan)
    before = read_files(tmp_path / "steps")
    assert finish_tasks(shards.plan).already
    with pytest.raises(UserError, match="is already prepared"):
        shards.run(None, 0, 1)
    assert read_files(tmp_path / "steps") == before


def test_no_text_at_all(step):
    shards = step()
    shards.run(iter([]), 0, 1)
    with pytest.raises(UserError, match="There is no text"):
        finish_tasks(shards.plan)


def test_the_example_of_the_page(bash, make_text, tokenizer_folder, tmp_path):
    """It drops what is short and what is there twice, also in another file."""
    page = Path(__file__).parents[2] / "docs" / "cluster.md"
    (script,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", page.read_text(), re.S)
    (tmp_path / "clean.py").write_text(script, encoding="utf-8")
    (tmp_path / "tokenizer").symlink_to(tokenizer_folder)
    (tmp_path / "documents").mkdir()
    texts = [text for text in make_text(300).split("\n\n") if len(text.split()) >= 20]
    files = [texts[:120] + texts[50:60], [texts[0], "too short", *texts[100:]]]
    for number, each in enumerate(files):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in each)
        (tmp_path / "documents" / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    bash("python clean.py 2>&1")
    index = json.loads((tmp_path / "shards" / "index.json").read_text())
    assert index["totals"]["documents"] == len(set(texts))
    assert index["request"]["tasks"] == 2
    assert Shards.open(tmp_path / "shards").rows("train")
