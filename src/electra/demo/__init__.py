"""`electra demo`: every step from raw text to a fine-tuned model, in a few minutes."""
