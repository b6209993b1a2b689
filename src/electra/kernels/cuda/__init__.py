"""CUDA C++ kernels for Hopper GPUs, each for exact sizes."""
