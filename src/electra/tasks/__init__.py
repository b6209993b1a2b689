"""Labelled tasks: GLUE, SQuAD, tagging, your own files; read, turned into rows, scored."""
