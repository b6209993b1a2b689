"""Speed of training, compared with transformers in one process."""
