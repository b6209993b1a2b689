"""The networks again, for speed: few kernels, few passes over memory, the same numbers.

Nothing here is needed to understand the model: `electra.models.encoder` describes it, and each
function of this folder has its twin there or beside it, in plain torch, with which the tests
compare it. Triton is imported where it is; elsewhere the plain modules run.
"""
