"""Upload an exported folder to the Hugging Face Hub, and the checkpoints of a run as revisions."""

import contextlib
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from electra.errors import UserError, require
from electra.export.card import write_card
from electra.export.folders import write_transformers
from electra.release.details import CardDetails, ScoreTable
from electra.train import checkpoint

Tell = Callable[[str], None]


def open_repository(name: str, *, private: bool) -> Any:
    """Create the repository if it is not there; returns the client of huggingface_hub.

    This comes first, so that a wrong name or a missing login ends the command at once.
    """
    hub = require("huggingface_hub", "hub")
    with hub_errors(f"--push-to-hub {name}", "Give a name such as me/electra-da"):
        require("huggingface_hub.utils", "hub").validate_repo_id(name)
    api = hub.HfApi(library_name="electra")
    with hub_errors(f"The Hub did not accept '{name}'", "Log in with: hf auth login"):
        api.create_repo(name, private=private, exist_ok=True)
    return api


def push_folder(api: Any, name: str, folder: Path, tell: Tell) -> None:
    """Upload a folder as the main revision."""
    again = shlex.join(["hf", "upload", name, str(folder)])
    with hub_errors(f"{folder} is written, but not on the Hub", f"Upload it with: {again}"):
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by electra")
    tell(f"{name}: on the Hub")


def push_checkpoints(
    api: Any, name: str, run: Path, card: tuple[CardDetails, list[ScoreTable]], tell: Tell
) -> None:
    """Upload the networks of each checkpoint as a revision with the checkpoint's name."""
    details, _ = card  # the scores are those of the last one
    for path in find_checkpoints(run):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / path.name
            write_transformers(str(path), folder)
            write_card(str(path), folder, "transformers", name, (details, []), path.name)
            with hub_errors(
                f"The checkpoint {path} is not on the Hub",
                "Run the same command with another --out to upload what is missing",
            ):
                api.create_branch(name, branch=path.name, exist_ok=True)
                api.upload_folder(
                    repo_id=name,
                    folder_path=folder,
                    revision=path.name,
                    commit_message=f"Upload {path.name} by electra",
                )
        tell(f"{name}: revision {path.name}")


def find_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    found = checkpoint.checkpoints(run.expanduser())
    if not found:
        raise UserError(f"{run} has no checkpoints: give a run, or leave out --checkpoints.")
    return found


@contextlib.contextmanager
def hub_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn the errors of the Hub's client into one sentence."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # the library raises a dozen types; the first line says why
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{what}: {reason.rstrip('.')}. {remedy}.") from None
