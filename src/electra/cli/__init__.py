"""The command line; each command imports what it needs when it runs."""

import io
import os
import sys
import time
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from electra import __version__
from electra.cli import (
    bench,
    export,
    finetune,
    inference,
    models,
    play,
    release,
    research,
    text,
    train,
)
from electra.cli.console import plain
from electra.errors import QuietError, UserError, is_out_of_memory
from electra.files import is_disk_full

WAIT_POLICY = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
"""Environment variables that decide how long idle OpenMP threads spin."""
PATIENCE = 0.5
"""Seconds until a process ends whose error another one reports: torchrun then ends that one."""
NO_READER = 141
"""Exit code of a process that SIGPIPE ended, as a shell reports it."""


class CommandsInOrder(TyperGroup):
    """The commands in the order of use; Typer puts groups, such as `tokenizer`, last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(
            super().list_commands(ctx), key=lambda name: name not in ("demo", "tokenizer")
        )


app = typer.Typer(
    name="electra",
    cls=CommandsInOrder,
    help="Raw text in, a pre-trained ELECTRA text encoder out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
TEXT, TRAIN, TUNE = "Text", "Pre-training", "Fine-tuning and scores"
USE, RESEARCH = "Use a model", "Research"
app.command()(inference.demo)
app.add_typer(text.tokenizer_app, name="tokenizer", rich_help_panel=TEXT)
app.command(rich_help_panel=TEXT)(text.prepare)
app.command(rich_help_panel=TRAIN)(train.recipes)
app.command(rich_help_panel=TRAIN)(train.pretrain)
app.command(rich_help_panel=TRAIN)(train.evaluate)
app.command(rich_help_panel=TRAIN)(train.report)
app.command(rich_help_panel=TUNE)(finetune.finetune)
app.command(rich_help_panel=TUNE)(finetune.predict)
app.command(rich_help_panel=TUNE)(finetune.glue)
app.command(rich_help_panel=TUNE)(finetune.probe)
app.command(rich_help_panel=USE)(inference.detect)
app.command(rich_help_panel=USE)(inference.fill)
app.command(rich_help_panel=USE)(inference.score)
app.command(rich_help_panel=USE)(play.play)
app.command("import", rich_help_panel=USE)(models.import_command)
app.command(rich_help_panel=USE)(export.export)
app.command(rich_help_panel=USE)(release.release)
app.command(rich_help_panel=RESEARCH)(research.study)
app.command(rich_help_panel=RESEARCH)(research.flops)
app.add_typer(bench.bench_app, name="bench", rich_help_panel=RESEARCH)


def print_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"electra {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Raw text in, a pre-trained ELECTRA text encoder out."""


def fail(message: str, code: int) -> int:
    """Print an error message on one line and return the exit code."""
    print(f"error: {plain(message)}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line; errors that the user can fix have no traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    use_passive_waiting()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {plain(str(message))}\n"
    sys.exit(run_app())


def use_passive_waiting() -> None:
    """Let idle OpenMP threads sleep, unless the user has chosen a wait policy.

    By default they spin, which makes training 5 to 10 times slower when another process needs the
    same cores; sleeping costs 15 to 35 % of the speed of a small model on idle cores. The OpenMP
    library reads the environment when torch is imported, so this runs before that.
    """
    if not WAIT_POLICY & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def check_arguments() -> None:
    """Refuse arguments that are not valid UTF-8, which configurations and libraries need."""
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            escaped = argument.encode(errors="backslashreplace").decode()
            raise UserError(
                f"The argument '{escaped}' is not valid UTF-8: write it in UTF-8, and rename a "
                "file that has such a name; if it is UTF-8, set PYTHONUTF8=1."
            ) from None


def run_app() -> int:
    """Run the command of sys.argv and return the exit code."""
    try:
        check_arguments()
        app(standalone_mode=True)
    except QuietError:
        time.sleep(PATIENCE)
        return 2
    except UserError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return fail("stopped.", 130)
    except Exception as error:
        if is_disk_full(error):
            return fail("the disk is full: free some space and run the same command again.", 2)
        if is_out_of_memory(error):
            return fail("out of memory: use a smaller model or batch.", 2)
        # A path that the system refuses
        if isinstance(error, OSError) and error.filename is not None:
            return fail(f"'{error.filename}' cannot be used: {error.strerror}.", 2)
        raise
    except SystemExit as exiting:
        # Typer exits silently on Ctrl-C; a run that stopped gracefully has printed a message.
        if isinstance(getattr(exiting.__context__, "__cause__", None), KeyboardInterrupt):
            return fail("stopped.", 130)
        # Typer and rich exit silently when the reader of a pipe, such as head, has gone.
        if isinstance(exiting.__context__, BrokenPipeError):
            return NO_READER
        return exiting.code if isinstance(exiting.code, int) else 1
    return 0
