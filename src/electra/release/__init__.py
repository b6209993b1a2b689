"""`electra release`: a trained model as a pip package with a model card."""
