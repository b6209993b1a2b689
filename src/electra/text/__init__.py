"""Raw text to token shards: readers, tokenizers, rows and the files on disk; no torch."""
