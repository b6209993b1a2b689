"""`electra export`: write a model for another library, checked, whole or not at all."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from electra.errors import UserError, nearest
from electra.export.card import write_card
from electra.export.folders import (
    CONFIG_FILES,
    CONTRASTIVE_STEP,
    HEAD_IS_LOST,
    copy_file,
    ensure_tokenizer,
    find_source,
    loads_head,
    write_sentence_transformers,
    write_transformers,
)
from electra.export.push import (
    find_checkpoints,
    open_repository,
    push_checkpoints,
    push_folder,
)
from electra.files import new_folder
from electra.release.details import read_card
from electra.run_dir import check_new_dir

Format = Literal["transformers", "onnx", "sentence-transformers"]
FORMATS: tuple[str, ...] = get_args(Format)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Where to upload an exported model."""

    name: str
    """A repository on the Hub, as `user/model`."""
    private: bool = False
    checkpoints: bool = False
    """Also upload each checkpoint of the run, as a revision."""


def export_model(
    model: str,
    out: Path,
    form: str,
    *,
    int8: bool = False,
    data: Path | None = None,
    push: Push | None = None,
    card: Path | None = None,
    tell: Tell,
) -> None:
    """Export a model to a new folder; `tell` gets each line of the summary."""
    if form not in FORMATS:
        raise UserError(f"There is no format '{form}': {nearest(form, list(FORMATS))}")
    if (int8 or data is not None) and form != "onnx":
        raise UserError("--int8 and --data are for --format onnx: leave them out.")
    if int8 != (data is not None):
        raise UserError(
            "--int8 needs --data, a file on which the loss of accuracy is measured, and --data is "
            "for --int8 alone: give both or neither."
        )
    check_new_dir(out)
    details = read_card(card)
    api = None
    if push is not None:
        if push.checkpoints and form != "transformers":
            raise UserError("--checkpoints is for --format transformers: leave it out.")
        if push.checkpoints:
            find_checkpoints(Path(model))
        find_source(model)
        api = open_repository(push.name, private=push.private)
    with new_folder(out) as staging:
        if form == "onnx":
            export_onnx(model, staging, data, tell)
            said = [f"{out / 'onnx'}: for onnxruntime"]
        elif form == "transformers":
            folders = write_transformers(model, staging)
            names = f", {' and '.join(folders)}" if folders else ""
            said = [f"{out}: for transformers{names}"]
            if not folders and not loads_head(staging):
                said.append(HEAD_IS_LOST)
        else:
            write_sentence_transformers(model, staging)
            said = [f"{out}: for sentence-transformers, with mean pooling", CONTRASTIVE_STEP]
        write_card(model, staging, form, push.name if push else out.absolute().name, details)
    for line in said:
        tell(line)
    if push is not None:
        push_folder(api, push.name, out, tell)
        if push.checkpoints:
            push_checkpoints(api, push.name, Path(model), details, tell)


def export_onnx(model: str, staging: Path, data: Path | None, tell: Tell) -> None:
    """Write `onnx/model.onnx`, checked, and with `data` also `onnx/model_quantized.onnx`."""
    from electra.export.compare import compare, read_data
    from electra.export.onnx import check_onnx, load_exported, quantize, write_onnx

    source = find_source(model)
    network = load_exported(source)
    if data is not None and not data.exists():
        raise UserError(f"There is no file '{data}' for --data: check the path.")
    examples = read_data(source, data) if data is not None else []
    for name in CONFIG_FILES:
        copy_file(source.folder, name, staging)
    ensure_tokenizer(source.folder, staging)
    path = staging / "onnx" / "model.onnx"
    path.parent.mkdir()
    write_onnx(network, path)
    difference = check_onnx(network, path)
    tell(
        f"onnx/model.onnx: {megabytes(path)}, outputs {' and '.join(network.output_names)}, within "
        f"{difference:.0e} of torch in onnxruntime"
    )
    if data is None:
        return
    small = path.with_name("model_quantized.onnx")
    quantize(path, small)
    tell(f"onnx/model_quantized.onnx: {megabytes(small)}")
    found = compare(source, path, small, examples)
    tell(f"On the {found.examples:,} examples of {data}:")
    tell("      " + (f"{found.metric:>12}" if found.metric else "") + f"{'texts/s':>12}")
    for number, kind in enumerate(("fp32", "int8")):
        score = f"{found.scores[number]:12.4f}" if found.metric else ""
        tell(f"  {kind}{score}{found.speeds[number]:12,.1f}")
    tell(found.agreement)


def megabytes(path: Path) -> str:
    """Return the size of a file in MB."""
    return f"{path.stat().st_size / 1e6:.1f} MB"
