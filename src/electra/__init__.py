"""ELECTRA: raw text in, a pre-trained text encoder out."""

__version__ = "0.1.0"
