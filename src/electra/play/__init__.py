"""`electra play`: a trained model on a local web page."""
