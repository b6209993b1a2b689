"""Export models for transformers, onnxruntime and sentence-transformers."""
