"""FLOPs by the rules of the paper, and the models that it compares.

The paper counts every operation, not only matrix products; counts an embedding lookup as the
product of a one-hot vector with the table; and lets a backward pass cost one forward pass. So its
numbers compare with each other, but not with what a device does (see `flops.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from electra.models.electra import GeneratorConfig, generator_sizes
from electra.models.encoder import EncoderConfig
from electra.models.flops import Workload

# Operations per element.
DROPOUT = 4
LAYER_NORM = 5
ACTIVATION = 8
SOFTMAX = 5

PAPER_VOCABULARY = 30522
PREDICTED = 0.15625
"""Fraction of positions that are predicted: 20 of 128, 80 of 512."""


def layer_flops(sizes: EncoderConfig, length: int) -> int:
    """Return the forward operations of one token in one layer."""
    h, inner = sizes.hidden, sizes.feed_forward_width
    products = 2 * (4 * h * h + 2 * h * inner) + 2 * 2 * h * length
    biases = 5 * h + inner
    scores = length * sizes.head_count * (1 + SOFTMAX + DROPOUT)
    outputs = 2 * h * (DROPOUT + 1)  # dropout and residual, after attention and after feed-forward
    # The authors' counter leaves out "x hidden" in the first of the two LayerNorms
    norms = LAYER_NORM + LAYER_NORM * h
    return products + biases + scores + outputs + norms + ACTIVATION * inner


def lookup_flops(sizes: EncoderConfig, length: int) -> int:
    """Return the forward operations of one token's embedding."""
    e = sizes.embedding
    found = 2 * e * (sizes.vocab_size + length + 2)  # token, position and segment, all one-hot
    return found + e * (2 + LAYER_NORM + DROPOUT)


def projection_flops(sizes: EncoderConfig) -> int:
    """Return the forward operations of one token's embedding projection."""
    e, h = sizes.embedding, sizes.hidden
    return 2 * e * h + h if e != h else 0


def mlm_head_flops(sizes: EncoderConfig, towers: int) -> int:
    """Return the forward operations of one prediction over the vocabulary."""
    h, e, vocabulary = sizes.hidden, sizes.embedding, sizes.vocab_size
    dense = 2 * towers * h * e + e * (1 + ACTIVATION + LAYER_NORM)
    return dense + vocabulary * (2 * e + SOFTMAX + 2)


def rtd_head_flops(sizes: EncoderConfig) -> int:
    """Return the forward operations of one prediction of 'replaced'."""
    h = sizes.hidden
    return 2 * h * h + h * (1 + ACTIVATION) + 2 * h


def paper_forward_flops(work: Workload, length: int) -> int:
    """Return the forward operations of one row through a network, heads included."""
    sizes = work.sizes
    tower = projection_flops(sizes) + sizes.layers * layer_flops(sizes, length)
    per_token = work.towers * tower + lookup_flops(sizes, length)
    mlm_head = work.mlm_positions * mlm_head_flops(sizes, work.towers)
    rtd_head = work.rtd_positions * rtd_head_flops(sizes)
    return length * per_token + mlm_head + rtd_head


def paper_row_flops(works: Iterable[Workload], length: int) -> int:
    """Return the operations of one row in a step; a backward pass costs one forward pass."""
    each = (
        (2 if w.trained else 1) * w.step_fraction * paper_forward_flops(w, length) for w in works
    )
    return round(sum(each))


def paper_inference_flops(sizes: EncoderConfig, length: int) -> int:
    """Return the operations of inference on one row, with a head like the discriminator's."""
    return paper_row_flops([Workload(sizes=sizes, rtd_positions=length, trained=False)], length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model that the paper compares, with its published FLOPs."""

    name: str
    train: float
    """Training FLOPs as published."""
    rows: float
    """Rows that it was trained on: steps x batch size."""
    length: int = 512
    works: tuple[Workload, ...] = ()
    """Its networks; empty if they are not plain transformers."""
    forward: float = 0
    """For those, the forward FLOPs of a row, which the authors took from TensorFlow's counter."""
    inference: float | None = None
    """Inference FLOPs of a row of 128 as published."""

    def train_flops(self) -> float:
        """Return the training FLOPs by the rules."""
        per_row = paper_row_flops(self.works, self.length) if self.works else 2 * self.forward
        return self.rows * per_row

    def inference_flops(self) -> float | None:
        """Return the inference FLOPs of a row of 128 by the rules."""
        return paper_inference_flops(self.works[-1].sizes, 128) if self.works else None


def _sizes(
    layers: int, hidden: int, embedding: int = 0, vocabulary: int = PAPER_VOCABULARY
) -> EncoderConfig:
    return EncoderConfig(
        layers=layers, hidden=hidden, embedding=embedding or hidden, vocab_size=vocabulary
    )


def _language_model(
    sizes: EncoderConfig, length: int = 512, predicted: float = PREDICTED
) -> tuple[Workload, ...]:
    return (Workload(sizes=sizes, mlm_positions=int(predicted * length)),)


def _electra(sizes: EncoderConfig, width: float, length: int = 512) -> tuple[Workload, ...]:
    small = generator_sizes(sizes, GeneratorConfig(width=width))
    # 15.625 % for all sizes, though ELECTRA-Large masks 25 %
    generator = Workload(sizes=small, mlm_positions=int(PREDICTED * length))
    return generator, Workload(sizes=sizes, rtd_positions=length)


SMALL, BASE, LARGE = _sizes(12, 256, 128), _sizes(12, 768), _sizes(24, 1024)

ELECTRA_SMALL = Published(
    name="ELECTRA-Small",
    train=1.4e18,
    rows=1e6 * 128,
    length=128,
    works=_electra(SMALL, 1 / 4, 128),
    inference=3.7e9,
)
BERT_BASE = Published(
    name="BERT-Base", train=6.4e19, rows=1e6 * 256, works=_language_model(BASE), inference=2.9e10
)

MODELS = (
    # 10 epochs over 768,648,884 tokens in batches of 20 x 128, counted by the batch
    Published(
        name="ELMo", train=3.3e18, rows=10 * 768_648_884 / (20 * 128), forward=568_093_262_680
    ),
    Published(
        name="GPT",
        train=4.0e19,
        rows=960_800 * 128,
        works=_language_model(_sizes(12, 768, vocabulary=40_000), predicted=1),
        inference=3.0e10,
    ),
    Published(
        name="BERT-Small",
        train=1.4e18,
        rows=1.45e6 * 128,
        length=128,
        works=_language_model(SMALL, 128),
        inference=3.7e9,
    ),
    BERT_BASE,
    Published(name="BERT-Large", train=1.9e20, rows=1e6 * 256, works=_language_model(LARGE)),
    ELECTRA_SMALL,
    Published(
        name="ELECTRA-Base",
        train=6.4e19,
        rows=766_000 * 256,
        works=_electra(BASE, 1 / 3),
        inference=2.9e10,
    ),
    Published(name="ELECTRA-400K", train=7.1e20, rows=400_000 * 2048, works=_electra(LARGE, 1 / 4)),
    Published(
        name="ELECTRA-1.75M", train=3.1e21, rows=1_750_000 * 2048, works=_electra(LARGE, 1 / 4)
    ),
    Published(
        name="RoBERTa-100K",
        train=6.4e20,
        rows=100_000 * 8000,
        works=_language_model(_sizes(24, 1024, vocabulary=50_265)),
    ),
    Published(
        name="RoBERTa",
        train=3.2e21,
        rows=500_000 * 8000,
        works=_language_model(_sizes(24, 1024, vocabulary=50_265)),
    ),
    # two attention streams; 32 rows counted
    Published(name="XLNet", train=3.9e21, rows=500_000 * 8192, forward=15_064_773_691_518 / 32),
    Published(
        name="ALBERT",
        train=3.1e22,
        rows=1.5e6 * 4096,
        works=_language_model(_sizes(12, 4096, 128, 30_000)),
    ),
)
"""The models of the paper's tables 1, 2 and 3."""
