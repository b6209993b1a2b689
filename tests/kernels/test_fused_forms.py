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

FORMS = {
    "electra.models.encoder:Embeddings.forward": (
        "any_gpu/embedding.py: Embedding",
        "5c6f2afd300637f0",
    ),
    "electra.models.encoder:Attention.forward": (
        "any_gpu/attention.py, cuda/attention.py",
        "bd06fd41e86d38d2",
    ),
    "electra.models.encoder:Layer.forward": (
        "encoder_stack.py, cuda/fused_encoder.py",
        "7c1ad769390ab282",
    ),
    "electra.models.encoder:Layer.attend": (
        "encoder_stack.py, cuda/fused_encoder.py",
        "8f82af1c3008bff9",
    ),
    "electra.models.encoder:Encoder.forward": (
        "modules.py: encoder_forward",
        "a47e001996f73894",
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
        "any_gpu/heads.py: MlmHead, any_gpu/mlm_loss.py",
        "aa063034f3252ea2",
    ),
    "electra.models.electra:Generator.word_bias": (
        "any_gpu/mlm_loss.py, cuda/fused_linear_cross_entropy.py",
        "4b6613928f1300cd",
    ),
    "electra.models.electra:Discriminator.forward": (
        "modules.py: discriminator_forward, any_gpu/heads.py: RtdHead",
        "5b60b0c49987d1e1",
    ),
    "electra.objectives.batch:unpack": (
        "any_gpu/masking.py: mask_rows",
        "844a555ba0c70626",
    ),
    "electra.objectives.corrupt:mask_tokens": (
        "any_gpu/masking.py: mask_rows",
        "a555cdb6c8e59353",
    ),
    "electra.objectives.corrupt:mask_counts": (
        "any_gpu/masking.py: mask_rows",
        "70de325ef1181817",
    ),
    "electra.objectives.corrupt:sample_positions": (
        "any_gpu/masking.py: mask_rows",
        "affbfb61f2042544",
    ),
    "electra.objectives.corrupt:put": (
        "any_gpu/masking.py: scatter_tokens",
        "0dcc6085d0c320ac",
    ),
    "electra.objectives.corrupt:sample_tokens": (
        "any_gpu/mlm_loss.py, cuda/fused_linear_cross_entropy.py",
        "95293d6b1b433fc1",
    ),
    "electra.objectives.objective:Objective.mask_batch": (
        "train/accelerate.py: _mask_batch",
        "5cc045133ab2375d",
    ),
    "electra.objectives.objective:Objective.mask": (
        "train/accelerate.py: _mask_batch",
        "807d4ddc1bc6c599",
    ),
    "electra.objectives.objective:Objective.totals": (
        "train/accelerate.py: _mask_batch",
        "42f6297def964511",
    ),
    "electra.objectives.objective:Objective.run_mlm": (
        "train/accelerate.py: _run_mlm",
        "258856c8c496a34e",
    ),
    "electra.objectives.objective:Objective.read": (
        "any_gpu/mlm_loss.py, cuda/fused_linear_cross_entropy.py",
        "410158dd36a379ef",
    ),
    "electra.objectives.objective:loss_at": (
        "any_gpu/mlm_loss.py, cuda/fused_linear_cross_entropy.py",
        "38762922e7dafe48",
    ),
    "electra.objectives.objective:CorruptingObjective.corrupt": (
        "any_gpu/masking.py: scatter_tokens",
        "22ef2553f63548e6",
    ),
    "electra.objectives.objective:generator_sums": (
        "any_gpu/rtd_loss.py: RtdLoss",
        "30b794d0557ec6ee",
    ),
    "electra.objectives.rtd:ReplacedTokenDetection.detection_loss": (
        "any_gpu/rtd_loss.py: RtdLoss",
        "c191b852e5adedf0",
    ),
    "electra.objectives.all_tokens_mlm:AllTokensMlm.say": (
        "train/accelerate.py: _say",
        "f4ae6a812fb3d4da",
    ),
    "electra.optim.adam:PaperAdam.step": (
        "optim/fused_adam.py",
        "0b7a1d85c4700ede",
    ),
    "electra.optim.adam:written_out": (
        "optim/fused_adam.py",
        "61d322f8dbbb5ee2",
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
