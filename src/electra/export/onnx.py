"""ONNX: write a network with dynamic shapes, and check it in onnxruntime against torch."""

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError, require
from electra.export.folders import Source
from electra.finetune.task_model import load_task_model
from electra.hub.folders import load_discriminator, load_encoder, read_weights
from electra.models.electra import Discriminator
from electra.models.encoder import Encoder
from electra.models.heads import TaskModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
"""Largest difference from torch, relative to the largest output where that is above 1."""
OPSET = 18


class ExportedNetwork(nn.Module):
    """A network with the inputs and outputs of the transformers classes."""

    def __init__(self, network: Encoder | Discriminator | TaskModel) -> None:
        super().__init__()
        self.network = network
        self.encoder = network if isinstance(network, Encoder) else network.encoder

    @property
    def output_names(self) -> list[str]:
        """The outputs of the graph, in their order."""
        if isinstance(self.network, TaskModel):
            return ["logits"]
        logits = ["logits"] if isinstance(self.network, Discriminator) else []
        return ["last_hidden_state", *logits]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        mask = attention_mask.bool()
        hidden = self.encoder(input_ids, token_type_ids, mask)
        if isinstance(self.network, TaskModel):
            return (self.network.head(hidden, mask),)
        if isinstance(self.network, Discriminator):
            head = self.network  # as in its forward, whose hidden states the graph returns too
            return hidden, head.score(F.gelu(head.dense(hidden))).squeeze(-1)
        return (hidden,)


def load_exported(source: Source) -> ExportedNetwork:
    """Load a fine-tuned model, a discriminator, or an encoder alone."""
    network: Encoder | Discriminator | TaskModel
    if source.is_task:
        network, card = load_task_model(source.folder)
        if card.kind == "qa":
            raise UserError(
                f"{source.folder} answers questions by a search over starts and ends, which is not "
                "one ONNX graph: use --format transformers."
            )
    elif "discriminator_predictions.dense.weight" in read_weights(source.folder):
        network = load_discriminator(source.folder)
    else:
        network = load_encoder(source.folder)
    return ExportedNetwork(network).eval()


def write_onnx(network: ExportedNetwork, path: Path) -> None:
    """Write the graph; batch and length are dynamic."""
    require("onnx", "onnx")
    require("onnxscript", "onnx")
    batch, length = torch.export.Dim("batch"), torch.export.Dim("sequence")
    with _quiet():
        torch.onnx.export(
            network,
            random_inputs(network, 2, 16),
            path,
            dynamo=True,
            input_names=INPUTS,
            output_names=network.output_names,
            dynamic_shapes={name: {0: batch, 1: length} for name in INPUTS},
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )


def random_inputs(network: ExportedNetwork, batch: int, length: int) -> tuple[Tensor, ...]:
    """Return random tokens of two segments; all rows but the first are padded."""
    random = torch.Generator().manual_seed(batch * 1000 + length)
    config = network.encoder.config
    ids = torch.randint(config.vocab_size, (batch, length), generator=random)
    ends = torch.randint(1, length + 1, (batch, 1), generator=random)
    ends[0] = length
    place = torch.arange(length)
    mask = place < ends
    return ids, mask.long(), ((place >= ends // 2) & mask).long()


class OnnxNetwork(nn.Module):
    """A graph in onnxruntime, with the inputs of our encoder and one of the graph's outputs."""

    def __init__(self, path: Path, output: str) -> None:
        super().__init__()
        runtime = require("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self.session = runtime.InferenceSession(str(path), options, providers=providers)
        self.output = output
        self.seconds = 0.0
        """Time in onnxruntime so far."""

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        inputs = zip(INPUTS, (ids, attention_mask.long(), segments), strict=True)
        begin = time.perf_counter()
        (found,) = self.session.run([self.output], {name: t.numpy() for name, t in inputs})
        self.seconds += time.perf_counter() - begin
        return torch.from_numpy(found)


def check_onnx(network: ExportedNetwork, path: Path) -> float:
    """Compare onnxruntime with torch on several shapes; returns the largest difference.

    A difference above `TOLERANCE` is an error.
    """
    longest = network.encoder.config.max_positions
    largest = 0.0
    runs = [OnnxNetwork(path, name) for name in network.output_names]
    for batch, length in ((1, min(2, longest)), (5, min(17, longest)), (2, longest)):
        ids, mask, segments = random_inputs(network, batch, length)
        with torch.no_grad():
            expected = network(ids, mask, segments)
        for run, wanted in zip(runs, expected, strict=True):
            difference = relative_difference(run(ids, segments, mask), wanted)
            if not difference <= TOLERANCE:  # NaN too
                raise UserError(
                    f"The ONNX graph differs from torch by {difference:.1e} ({run.output}, batch "
                    f"{batch}, length {length}), more than {TOLERANCE:.0e}: nothing was written. "
                    "Try another version of torch or onnxruntime."
                )
            largest = max(largest, difference)
    return largest


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, in units of the largest wanted value if that is above 1."""
    scale = max(1.0, float(wanted.abs().max()))
    return float((found - wanted).abs().max()) / scale


def quantize(path: Path, target: Path) -> None:
    """Write the graph with weights of 8 bits; activations are quantised when it runs."""
    onnx: Any = require("onnx", "onnx")
    quantization: Any = require("onnxruntime.quantization", "onnx")
    graph = onnx.load(path)
    del graph.graph.value_info[:]  # shapes of the fp32 graph, which contradict those of int8
    with _quiet():
        # Unsigned: products with signed weights saturate on x86 CPUs without VNNI.
        kind = quantization.QuantType.QUInt8
        quantization.quantize_dynamic(graph, target, weight_type=kind, per_channel=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the libraries print about their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
