"""Labelled tasks (GLUE, SQuAD, tagging, your own files): read, featurize, score."""
