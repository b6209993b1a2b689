"""Triton kernels for narrow models on Hopper GPUs, which need their shared memory and TMA."""
