"""Triton kernels that run on any GPU that Triton supports."""
