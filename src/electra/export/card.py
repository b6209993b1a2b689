"""The model card of an exported folder, by the same generator as that of a package."""

from pathlib import Path

from torch import nn

from electra.errors import UserError
from electra.export.folders import Source, find_source, loads_head
from electra.files import file_sha256
from electra.finetune.results import RESULTS, read_results, summary
from electra.finetune.task_model import load_task_model
from electra.hub.folders import load_encoder
from electra.hub.import_model import load_folders
from electra.model_paths import find_model
from electra.models.heads import TaskModel
from electra.release.card import Access, CardFacts, Network, model_card
from electra.release.details import CardDetails, ScoreTable
from electra.release.run_facts import read_run

ONNX_CODE = """
import onnxruntime
from tokenizers import Tokenizer

# in a copy of this folder
tokenizer = Tokenizer.from_file("tokenizer.json")
session = onnxruntime.InferenceSession("onnx/model.onnx")
"""
EMBEDDING_CODE = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{place}")
vectors = model.encode(["one text", "another"])
"""


def write_card(
    model: str,
    folder: Path,
    form: str,
    place: str,
    card: tuple[CardDetails, list[ScoreTable]],
    revision: str = "",
) -> None:
    """Write `README.md` into an exported folder that readers will find at `place`.

    `place` is a name on the Hub or that of the folder; `revision` is its branch on the Hub.
    """
    details, evaluations = card
    source = find_source(model)
    networks: dict[str, Network] = {}
    task, electric = None, False
    if source.is_task:
        networks["model"], task = load_task_model(source.folder)
        evaluations = [*own_scores(source.folder.parent), *evaluations]
    elif form == "transformers":
        loaded = dict(load_folders(model))
        networks |= {name: found.network for name, found in loaded.items()}
        electric = any(found.electric for found in loaded.values())
    else:  # only the encoder is exported, which may have no head
        networks["encoder"] = TaskModel(load_encoder(source.folder), nn.Identity())
    weights = sorted((*folder.rglob("*.safetensors"), *folder.rglob("*.onnx")))
    facts = CardFacts(
        name=place.rpartition("/")[2],
        access=access_to(place, form, networks, source, revision),
        networks=networks,
        electric=electric,
        task=task,
        sha256={path.relative_to(folder).as_posix(): file_sha256(path) for path in weights},
        run=None if task else read_run(find_model(model)),
        evaluations=evaluations,
    )
    (folder / "README.md").write_text(model_card(facts, details), encoding="utf-8")


def access_to(
    place: str, form: str, networks: dict[str, Network], source: Source, revision: str
) -> Access:
    """How readers load what was exported."""
    if form == "onnx":
        return Access(code=ONNX_CODE, library="onnx")
    if form == "sentence-transformers":
        return Access(code=EMBEDDING_CODE.format(place=place), library="sentence-transformers")
    branch = f', revision="{revision}"' if revision else ""
    on_hub = "/" in place
    folders = {
        name: f'"{place}", subfolder="{name}"{branch}' if on_hub else f'"{place}/{name}"'
        for name in networks
    }
    library = "transformers"
    if source.is_task:
        if loads_head(source.folder):
            folders = {"model": f'"{place}"{branch}'}
        else:  # the Hub must not offer code that loads the model with a random head
            folders, library = {}, "electra"
    note = f"This is the checkpoint `{revision}` of the run." if revision else ""
    # Commands take no revision.
    return Access(model="" if revision else place, folders=folders, note=note, library=library)


def own_scores(folder: Path) -> list[ScoreTable]:
    """The dev scores of a fine-tuned model, if its results are beside it."""
    try:
        results = read_results(folder) if (folder / RESULTS).is_file() else []
        rows = [summary(results)] if results else []
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder / RESULTS} is damaged: fine-tune again, or delete it.") from None
    return [ScoreTable(title="", note="On the dev examples.", rows=rows)] if rows else []
