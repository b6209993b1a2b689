"""The functions that have a fused form, in one place: change both, then update the digest here.

A fused form computes again, in other code, what these functions say. When you change one of them:

1. change its fused form (the file named beside it, in `electra/kernels` unless it says otherwise)
   in the same way;
2. run the tests of that form, on a GPU too: `make test-gpu`;
3. update the digest: `python tests/kernels/test_fused_forms.py` rewrites the table of this file.

Comments, docstrings and formatting do not count.
"""

import ast
import hashlib
import importlib
import inspect
import operator
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.train import accelerate

FORMS = {
    "electra.models.encoder:Embeddings.__init__": (
        "any_gpu/embedding.py: Embedding",
        "7897fcb3a7710744",
    ),
    "electra.models.encoder:Embeddings.forward": (
        "any_gpu/embedding.py: Embedding",
        "5c6f2afd300637f0",
    ),
    "electra.models.encoder:Attention.__init__": (
        "any_gpu/attention.py, cuda/attention.py",
        "75f5d56c41da1dbd",
    ),
    "electra.models.encoder:Attention.forward": (
        "any_gpu/attention.py, cuda/attention.py",
        "bd06fd41e86d38d2",
    ),
    "electra.models.encoder:Layer.__init__": (
        "layer_params.py, encoder_stack.py, cuda/fused_encoder.py",
        "210815c935dd7581",
    ),
    "electra.models.encoder:Layer.forward": (
        "encoder_stack.py, cuda/fused_encoder.py",
        "09982f1ba0edade7",
    ),
    "electra.models.encoder:Layer.attend": (
        "encoder_stack.py, cuda/fused_encoder.py",
        "1df2d2b6be813003",
    ),
    "electra.models.encoder:Encoder.__init__": (
        "modules.py: encoder_forward",
        "cfeeaa2fb93f8d81",
    ),
    "electra.models.encoder:Encoder.forward": (
        "modules.py: encoder_forward",
        "d7a192efbb66bca0",
    ),
    "electra.models.electra:Generator.__init__": (
        "modules.py: mlm_loss",
        "4297c79f46b2f06a",
    ),
    "electra.models.electra:Generator.forward": (
        "modules.py: mlm_loss",
        "0590ea557121bb2d",
    ),
    "electra.models.electra:Generator.states": (
        "modules.py: mlm_loss",
        "776977ccf0d78917",
    ),
    "electra.models.electra:Generator.predict": (
        "any_gpu/mlm.py: MlmHead",
        "fa33111b7b3f3347",
    ),
    "electra.models.electra:Generator.output_bias": (
        "any_gpu/mlm.py, cuda/fused_linear_cross_entropy.py",
        "6192c4c128bdb565",
    ),
    "electra.models.electra:Discriminator.__init__": (
        "modules.py: discriminator_forward",
        "0727cc0f5bd101ef",
    ),
    "electra.models.electra:Discriminator.forward": (
        "modules.py: discriminator_forward, any_gpu/rtd.py: RtdHead",
        "5b60b0c49987d1e1",
    ),
    "electra.objectives.batch:unpack": (
        "any_gpu/masking.py: mask_rows",
        "6d219ad0db2e7b37",
    ),
    "electra.objectives.corrupt:mask_tokens": (
        "any_gpu/masking.py: mask_rows",
        "7d7186335d4eaabd",
    ),
    "electra.objectives.corrupt:mask_counts": (
        "any_gpu/masking.py: mask_rows",
        "70de325ef1181817",
    ),
    "electra.objectives.corrupt:sample_positions": (
        "any_gpu/masking.py: mask_rows",
        "1d00000c14747d90",
    ),
    "electra.objectives.corrupt:max_masked": (
        "train/accelerate.py: _mask_batch",
        "e44f290a7dc060b1",
    ),
    "electra.objectives.random:mix": (
        "any_gpu/masking.py",
        "79619f3e4c51028f",
    ),
    "electra.objectives.random:row_keys": (
        "any_gpu/masking.py: mask_rows",
        "5459846f37d61ddb",
    ),
    "electra.objectives.random:uniform": (
        "any_gpu/masking.py: mask_rows, uniform_of_slot",
        "2360fc327d949fb6",
    ),
    "electra.objectives.corrupt:scatter_tokens": (
        "any_gpu/masking.py: scatter_tokens",
        "2eedddf2d7c4a277",
    ),
    "electra.objectives.corrupt:sample_tokens": (
        "any_gpu/mlm.py, cuda/fused_linear_cross_entropy.py",
        "8dc3eeb88d1798b6",
    ),
    "electra.objectives.corrupt:sample_categorical": (
        "any_gpu/random.py: sample_categorical",
        "f1e6955f416172f8",
    ),
    "electra.objectives.corrupt:sampling_numbers": (
        "any_gpu/masking.py: uniform_of_slot",
        "d41ca5bc242b3a0f",
    ),
    "electra.objectives.objective:Objective.mask_batch": (
        "train/accelerate.py: _mask_batch",
        "5cc045133ab2375d",
    ),
    "electra.objectives.objective:Objective.unpack": (
        "train/accelerate.py: _mask_batch",
        "1c2e87473ca4363e",
    ),
    "electra.objectives.objective:Objective.mask": (
        "train/accelerate.py: _mask_batch",
        "f394e29b1591437e",
    ),
    "electra.objectives.objective:Objective.totals": (
        "train/accelerate.py: _mask_batch",
        "42f6297def964511",
    ),
    "electra.objectives.objective:Objective.run_mlm": (
        "train/accelerate.py: _run_mlm",
        "bc3f87df9c5f26f7",
    ),
    "electra.objectives.mlm_output:mlm_output": (
        "train/accelerate.py: _run_mlm",
        "a1ca5376024b51c3",
    ),
    "electra.objectives.mlm_output:sample_replacements": (
        "any_gpu/mlm.py, cuda/fused_linear_cross_entropy.py",
        "c3a7fd09b0b13125",
    ),
    "electra.objectives.mlm_output:is_correct": (
        "any_gpu/mlm.py, cuda/fused_linear_cross_entropy.py",
        "35f2c93132f4957f",
    ),
    "electra.objectives.mlm_output:cross_entropy_sum": (
        "any_gpu/mlm.py, cuda/fused_linear_cross_entropy.py",
        "aee4537e38c055ad",
    ),
    "electra.objectives.objective:CorruptingObjective.corrupt": (
        "any_gpu/masking.py: scatter_tokens",
        "4f5b2cb0d404a277",
    ),
    "electra.objectives.objective:generator_sums": (
        "any_gpu/rtd.py: RtdLoss",
        "ff0f9368beb1f255",
    ),
    "electra.objectives.rtd:ReplacedTokenDetection.forward": (
        "train/accelerate.py: _rtd_forward",
        "85ef5c0d1a4defdd",
    ),
    "electra.objectives.two_stage:GeneratorFirst.forward": (
        "train/accelerate.py: _generator_first_forward",
        "7495db39a0f4c02c",
    ),
    "electra.objectives.rtd:ReplacedTokenDetection.detection_loss": (
        "any_gpu/rtd.py: RtdLoss",
        "c84f64d7d11efddd",
    ),
    "electra.objectives.all_tokens_mlm:AllTokensMlm.token_log_probs": (
        "train/accelerate.py: _token_log_probs",
        "d4bcc3aa0dbdb645",
    ),
    "electra.optim.adam:PaperAdam.step": (
        "optim/fused_adam.py",
        "7bfaa34613db4232",
    ),
    "electra.optim.adam:PaperAdam.clip_scales": (
        "optim/fused_adam.py",
        "bcfffe07bac09d4c",
    ),
    "electra.optim.adam:gradient_norm": (
        "optim/fused_adam.py",
        "fda678a71a5afadb",
    ),
    "electra.optim.adam:foreach_update": (
        "optim/fused_adam.py",
        "19af229d4afc730c",
    ),
}
"""Function: its fused form, and the digest of its source."""


def find(name: str) -> Callable:
    module, _, path = name.partition(":")
    return operator.attrgetter(path)(importlib.import_module(module))


def digest(function: Callable) -> str:
    """Of the source without comments, docstrings and formatting."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", FORMS)
def test_a_function_with_a_fused_form_is_what_the_fused_form_computes(name):
    form, wanted = FORMS[name]
    assert digest(find(name)) == wanted, (
        f"{name} has changed, and it has a fused form: change {form} in the same way, run its "
        f"tests on a GPU too, and update the digest: python tests/kernels/{Path(__file__).name}"
    )


def test_whatever_is_called_a_fused_form_is_listed():
    """Each docstring that begins so, and each method that `_replace_methods` replaces."""
    source = Path(importlib.import_module("electra").__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py")]
    called = {m[1] for text in texts for m in re.finditer(r"fused form of `(\w+\.\w+)`", text)}
    assert len(called) >= 8
    forms = re.findall(r"\((\w+), \(([^)]*)\),", inspect.getsource(accelerate._replace_methods))
    replaced = {f"{kind}.{name}" for kind, names in forms for name in re.findall(r"\w+", names)}
    assert "ReplacedTokenDetection.detection_loss" in replaced
    replaced |= {f"Objective.{name}" for name in accelerate.MASKING}
    listed = {name.partition(":")[2] for name in FORMS}
    assert called | replaced <= listed, sorted((called | replaced) - listed)


def test_the_digest_sees_code_only(tmp_path, monkeypatch):
    sources = {
        "plain": "def f(x):\n    return x + 1\n",
        "commented": 'def f(x):\n    """A sentence."""\n    return (x + 1)  # why\n',
        "other": "def f(x):\n    return x + 2\n",
    }
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in sources.items():
        (tmp_path / f"{name}_form.py").write_text(source)
    plain, commented, other = (digest(find(f"{name}_form:f")) for name in sources)
    assert plain == commented != other


def update() -> None:
    """Write the digests of the present sources into this file."""
    path = Path(__file__)
    text = path.read_text()
    for name in FORMS:
        entry = rf'("{re.escape(name)}": \(\s*"[^"]*",\s*)"[^"]*"'
        text = re.sub(entry, rf'\g<1>"{digest(find(name))}"', text)
    path.write_text(text)


if __name__ == "__main__":
    update()
