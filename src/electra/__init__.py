"""Pre-train ELECTRA text encoders on your own text, and use them.

`electra.load` opens a trained model in Python; the command line is `electra --help`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from electra.api import Model as Model
    from electra.api import load as load

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> object:
    """Import torch only when a model is loaded, so that `import electra` stays fast."""
    if name in ("Model", "load"):
        from electra import api

        return getattr(api, name)
    raise AttributeError(f"module 'electra' has no attribute '{name}'")
