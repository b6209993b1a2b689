"""The model electra-small-en; `PATH` is the folder with its networks."""

from pathlib import Path

__version__ = "1.0.0"
PATH = Path(__file__).parent
