"""What the tests of the kernels share."""

from collections.abc import Callable

import pytest
import torch

from electra.device import autocast
from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives import electric, mlm_output
from electra.objectives.batch import Batch, unpack
from electra.objectives.kinds import build
from electra.objectives.objective import Objective, VocabInfo
from electra.objectives.settings import ObjectiveConfig

SPECIAL = (0, 2, 3, 4)  # [PAD] [CLS] [SEP] [MASK]


@pytest.fixture
def seed(device):
    """A row of `draw_seeds`, one key of which is negative."""
    return torch.tensor([123456789, -987654321, 0, 0], dtype=torch.int32, device=device)


@pytest.fixture
def normal(device):
    """`normal(3, 4)`: random numbers, the same on every device, that want a gradient."""
    torch.manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(device).requires_grad_()

    return draw


@pytest.fixture
def hopper(device):
    """A GPU that has to take the kernels in CUDA C++."""
    from electra.kernels.cuda import runtime as cuda

    if torch.cuda.get_device_capability(device) != cuda.HOPPER:
        pytest.skip("needs a Hopper GPU")
    assert cuda.is_supported(device)
    return device


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16])
def dtype(request, device):
    """Each precision in which kernels that multiply run here."""
    from electra.kernels.hopper.gemm import supports

    if not supports(64, 256, request.param, device):
        pytest.skip("not in this precision on this GPU")
    if device.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies bf16 as if it were whole numbers")
    return request.param


@pytest.fixture
def near():
    """Two tensors of one shape; the difference is a share of the largest number."""

    def check(found: torch.Tensor, wanted: torch.Tensor, name: str = "", share=2e-5) -> None:
        assert found.shape == wanted.shape, name
        off = (found.detach() - wanted.detach()).abs().max().item()
        largest = wanted.detach().abs().max().item()
        assert off <= share * largest + 1e-9, name

    return check


@pytest.fixture
def split_qkv():
    """`split_qkv(name, grad)`: a gradient by its name; those of queries, keys and values apart.

    At the initial weights the values' gradient is hundreds of times the queries', and would hide
    their errors.
    """

    def split(name: str, grad: torch.Tensor) -> dict[str, torch.Tensor]:
        if not name.endswith(("qkv.weight", "qkv.bias")):
            return {name: grad}
        return dict(zip((f"{name}[{part}]" for part in "qkv"), grad.chunk(3), strict=True))

    return split


@pytest.fixture
def grads_near(near, split_qkv):
    """`grads_near(found, wanted)`: gradients by name."""

    def check(found: dict, wanted: dict, share=2e-5) -> None:
        assert found.keys() == wanted.keys()
        for name, grad in wanted.items():
            parts = split_qkv(name, found[name]), split_qkv(name, grad)
            for part, expected in parts[1].items():
                if part.endswith("bias[k]"):  # zero: a softmax ignores what all scores share
                    limit = share * grad.abs().max().item() + 1e-9
                    assert (parts[0][part] - expected).abs().max() <= limit, part
                else:
                    near(parts[0][part], expected, part, share)

    return check


@pytest.fixture
def follows():
    """`follows(found, expected)`: how often each was drawn, by the test called chi-square."""

    def check(found: torch.Tensor, expected: torch.Tensor) -> None:
        squares = ((found - expected) ** 2 / expected).sum()
        free = len(expected) - 1
        assert squares < free + 4 * (2 * free) ** 0.5  # its mean and spread

    return check


@pytest.fixture
def through():
    """`through(x, doc_ids, heads, p, attention_p, *params)`: all layers of an encoder.

    `recompute` and `setting` are those of the plan, whose fields other keywords replace.
    """
    from electra.kernels.encoder_stack import EncoderStack, StackConfig
    from electra.kernels.layer_params import NUM_CAST, PARAM_NAMES
    from electra.kernels.plan import EncoderShape, plan_encoder
    from electra.kernels.shadow_weights import ShadowWeights

    def run(x, doc_ids, heads, p, attention_p, *params, recompute=False, setting="auto", **planned):
        layers = [params[i : i + NUM_CAST] for i in range(0, len(params), len(PARAM_NAMES))]
        weights = ShadowWeights(layers, x.dtype).refresh()
        inner, hidden = params[2].shape
        sizes = (*doc_ids.shape, hidden, inner, heads, p, attention_p)
        shape = EncoderShape(*sizes, x.dtype, x.device, recompute)
        plan = plan_encoder(shape, setting)._replace(**planned)
        config = StackConfig(heads, p, attention_p, 1e-12, plan, recompute)
        return EncoderStack.apply(x, doc_ids, config, weights, *params)

    return run


@pytest.fixture
def make(device):
    """`make("mlm", mask_rate=0.3)`; the generator by `generator={...}`, sizes by `model={...}`.

    `perturbed=False` leaves the weights as they are initialised.
    """

    def made(
        kind, *, generator=None, model=None, absent=(), perturbed=True, **settings
    ) -> Objective:
        torch.manual_seed(0)
        sizes = {"layers": 1, "hidden": 64, "heads": 2, "embedding": 48, "vocab_size": 60}
        quiet = {"dropout": 0.0, "attention_dropout": 0.0}
        pair = {"width": 1.0, "tie": "none"} if kind == "two-stage" else {"width": 0.5}
        objective = build(
            ObjectiveConfig(kind=kind, **settings),
            EncoderConfig(**sizes | quiet | (model or {})),
            GeneratorConfig(**pair | (generator or {})),
            VocabInfo(4, SPECIAL, absent),
        )
        with torch.no_grad():
            # At the start attention is even, and biases are zero
            for p in objective.parameters() if perturbed else ():
                p.add_(0.05 * torch.randn_like(p))
        return objective.to(device)

    return made


@pytest.fixture
def text(device) -> Callable[..., Batch]:
    """`text(3, 24, 60)`: rows of words below 60, each with more padding than the one before."""

    def written(rows: int, length: int, words: int) -> Batch:
        torch.manual_seed(1)
        stored = torch.zeros(rows, length + 2, dtype=torch.int32)
        for row in range(rows):
            total = length - row * length // (rows + 1)
            first = total // 2
            stored[row, :total] = torch.randint(5, words, (total,))
            stored[row, 0] = 2
            stored[row, [first - 1, total - 1]] = 3
            stored[row, -2], stored[row, -1] = first, total
        return unpack(stored.to(device))

    return written


@pytest.fixture
def agreed(monkeypatch):
    """Plain code and kernels put the same samples: `agreed(masked, 60)`."""
    from electra.kernels.any_gpu import mlm

    mlm_loss_, forward = mlm.mlm_loss_, mlm.cross_entropy_forward

    def force(masked, words: int) -> None:
        torch.manual_seed(4)
        samples = torch.randint(5, words, masked.positions.shape).to(masked.positions)
        samples = torch.where(samples % 3 == 0, masked.labels, samples)  # some are true

        def agree(losses, is_masked, best, logs):
            agreed = samples.flatten() if is_masked.numel() == samples.numel() else is_masked
            return losses, agreed, best, logs

        def by_tiles(*given):
            found, kept = forward(*given)
            return agree(*found), kept

        monkeypatch.setattr(mlm, "mlm_loss_", lambda *given: agree(*mlm_loss_(*given)))
        monkeypatch.setattr(mlm, "cross_entropy_forward", by_tiles)
        for module in (mlm_output, electric):
            monkeypatch.setattr(module, "sample_tokens", lambda *_: samples)

    return force


@pytest.fixture
def ask():
    """One pass: its outcome, and the gradients by name; as in training, only the forward pass has
    another precision."""

    def asked(objective: Objective, batch: Batch, masked, dtype=torch.float32):
        objective.zero_grad()
        with autocast(batch.ids.device, dtype, cache=False):
            outcome = objective(batch, masked, objective.totals(batch, masked))
        outcome.loss.backward()
        named = objective.named_parameters()
        return outcome, {n: p.grad.clone() for n, p in named if p.grad is not None}

    return asked
