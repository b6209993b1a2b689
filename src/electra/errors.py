"""Errors for users: one sentence that says what is wrong and what to do."""

import importlib
from types import ModuleType


class UserError(Exception):
    """An error that the user can fix; the command line prints it and exits with code 2."""


class DivergedError(UserError):
    """Training whose loss is not a finite number any more."""


class QuietError(UserError):
    """An error that another process of the same run reports."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or torch on the CPU or a GPU, lacked memory."""
    told = ("allocate memory", "out of memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in told)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional library, or name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"This needs the library '{module.split('.')[0]}', which is not installed: "
            f"run  pip install 'electra[{extra}]'"
        ) from None


def nearest(name: str, known: list[str]) -> str:
    """'did you mean …?' for a misspelt name, or the list of known names."""
    close = find_nearest(name, known)
    return f"did you mean '{close}'?" if close else f"there are: {', '.join(sorted(known))}."


def find_nearest(name: str, known: list[str]) -> str | None:
    """The known name that a misspelt one most likely means; None if none is near."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not close:  # only the last part, such as 'lr' for 'optim.lr'
        close = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    if not close:  # the words of an abbreviation, such as 'learning_rate' for 'lr'
        initials = "".join(word[:1] for word in name.rpartition(".")[2].split("_"))
        close = [k for k in known if len(initials) > 1 and k.rpartition(".")[2] == initials][:1]
    return close[0] if close else None
