"""Raw text to token shards: readers, tokenizers, layouts and the files on disk. No torch."""
