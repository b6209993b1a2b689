"""The paper's tables and figures as studies that you can run."""
