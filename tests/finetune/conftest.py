"""Made-up tasks that the tiny encoder of `model_folder` learns in seconds."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from electra.finetune.kinds import TaskKind, make_kind
from electra.finetune.rows import RowBatch, rows_to_device
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import TaskCard
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import TaskModel
from electra.tasks.examples import IGNORE_INDEX, Features
from electra.tasks.load import load_task

CPU = torch.device("cpu")
SIZES = EncoderConfig(
    layers=2, hidden=32, heads=2, embedding=16, max_positions=32, vocab_size=40, init_std=0.2
)
LENGTHS = (7, 12, 9, 12, 5, 10)
FIRST = (3, 5, 4, 2, 2, 6)
QUICK = FinetuneConfig(lr=3e-3, layer_decay=1.0, epochs=8, batch_size=16, device="cpu")


def made_rows(kind: str, count: int, seed: int = 0) -> Features:
    """Random rows of a kind, of various lengths; one token determines the label."""
    rng = np.random.default_rng(seed)
    each = 3 if kind == "choice" else 1
    ids, first, target = [], [], []
    for _ in range(count):
        answer = int(rng.integers(3))
        for option in range(each):
            row = rng.integers(10, 40, rng.integers(8, 30)).astype(np.int32)
            middle = len(row) // 2
            row[[0, middle, -1]] = 2, 3, 3
            place = int(rng.integers(middle + 1, len(row) - 1))
            if kind == "choice":
                row[place] = 5 if option == answer else 6
            elif kind == "qa":
                row[place] = 5 if answer else row[place]
                span = (place, min(place + 1, len(row) - 2)) if answer else (0, 0)
                target.append((*span, int(not answer)))
            elif kind == "tag":
                tags = (row % 3).astype(np.int64)
                tags[row < 10] = IGNORE_INDEX
                target.append(tags)
            else:
                row[place] = 5 + answer
            ids.append(row)
            first.append(middle + 1)
        if kind in ("classify", "choice"):
            target.append(answer)
        elif kind == "regress":
            target.append(answer / 2)
    dtype = np.float32 if kind == "regress" else np.int64
    return Features(
        input_ids=ids,
        segment_start=np.array(first, np.int32),
        labels=target if kind == "tag" else np.array(target, dtype),
        example_index=np.repeat(np.arange(count), each),
        rows_per_example=each,
    )


@pytest.fixture
def made():
    """Rows without a tokenizer: `made("classify", 20)`, ids below 40, three labels or options."""
    return made_rows


@pytest.fixture
def quick() -> FinetuneConfig:
    """Settings with which the tiny encoder learns a made-up task in a second."""
    return QUICK


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, model_folder, reviews):
    """The output of `finetune` after two seeds on `reviews`; read only."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("tuned") / "out"
    task = load_task("classify", reviews)
    finetune(str(model_folder), task, out, [0, 1], QUICK, Console(file=io.StringIO(), width=200))
    return out


def make(name: str, head: str = "paper", outputs: int = 3, **card) -> TaskKind:
    """A kind with `outputs` labels; for questions, 0 means that all have an answer."""
    labels = [str(i) for i in range(outputs)]
    return make_kind(
        TaskCard(
            name="made", kind=name, labels=labels, head=head, has_unanswerable=outputs > 0, **card
        )
    )


def loss(model: TaskModel, batch: RowBatch, kind: str, weight: float = 0.5) -> Tensor:
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    config = FinetuneConfig(answerability_weight=weight)
    return make(kind).loss(model.head, hidden, batch, config)


def outputs(model: TaskModel, batch: RowBatch, kind: str, beam: int = 1) -> dict[str, Tensor]:
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    return make(kind, beam_size=beam).outputs(model.head, hidden, batch)


def task_model(kind: str, head: str = "paper", outputs: int = 3) -> TaskModel:
    torch.manual_seed(0)
    encoder = Encoder(SIZES)
    model = TaskModel(encoder, make(kind, head, outputs).build_head(encoder)).eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)  # biases must matter too
    return model


def features(target, rows_per_example: int = 1) -> Features:
    rng = np.random.default_rng(0)
    return Features(
        input_ids=[rng.integers(5, 40, n).astype(np.int32) for n in LENGTHS],
        segment_start=np.array(FIRST, np.int32),
        labels=target,
        example_index=np.repeat(np.arange(len(LENGTHS) // rows_per_example), rows_per_example),
        rows_per_example=rows_per_example,
    )


def batch_of(rows: Features) -> RowBatch:
    """All rows at once, padded far beyond the longest."""
    return rows_to_device(rows, 0, 16, CPU).gather(torch.arange(len(rows.input_ids)), 16)


def alone(model: TaskModel, rows: Features, row: int) -> Tensor:
    """The hidden states of one row, computed on its own and without padding."""
    ids = torch.from_numpy(rows.input_ids[row]).long()[None]
    segments = (torch.arange(ids.shape[1]) >= int(rows.segment_start[row])).long()[None]
    return model.encoder(ids, segments)[0]


@pytest.fixture(name="make")
def make_fixture():
    """`make("qa", head="transformers")`: a task kind."""
    return make


@pytest.fixture(name="loss")
def loss_fixture():
    """`loss(model, batch, kind)`."""
    return loss


@pytest.fixture(name="outputs")
def outputs_fixture():
    """`outputs(model, batch, kind)`."""
    return outputs


@pytest.fixture(name="task_model")
def task_model_fixture():
    """`task_model(kind)`: an encoder with the head of a kind."""
    return task_model


@pytest.fixture(name="features")
def features_fixture():
    """`features(labels)`: six rows, or two examples with three options."""
    return features


@pytest.fixture(name="batch_of")
def batch_of_fixture():
    """`batch_of(rows)`: all rows as one batch."""
    return batch_of


@pytest.fixture(name="alone")
def alone_fixture():
    """`alone(model, rows, row)`: the hidden states of one row."""
    return alone
