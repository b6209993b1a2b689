"""Fused forms of the networks and losses for GPUs: few kernels, few passes over memory.

`electra.models` and `electra.objectives` describe what is computed; a test compares each function
here with that description or with a reference implementation. `plan.py` chooses the implementation.
Without Triton the plain modules run.
"""
