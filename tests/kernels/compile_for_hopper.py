"""Compile every Triton kernel of networks and losses for a Hopper GPU, without having one.

    python tests/kernels/compile_for_hopper.py

prints, for each kernel, its name, its bytes of shared memory, and the fields of `MachineCode`.

test_compile_for_hopper.py runs it in a process of its own, because Triton must not interpret here.
Launches compile and do nothing else; the tensors of a step are on the CPU, full of zeros.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.device import autocast
from electra.kernels import encoder_stack
from electra.kernels.any_gpu import embedding, mlm, rtd
from electra.kernels.cuda import fused_linear_cross_entropy as cross_entropy
from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.objectives.settings import ObjectiveConfig
from electra.train.accelerate import use_fused_kernels_

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "i1",
}
SMS, VOCAB = 132, 30522
compiled: set[str] = set()


class MachineCode(NamedTuple):
    """What the machine code of a kernel needs."""

    registers: int
    spilled: int
    """Bytes per thread."""
    instructions: int
    cycles: int
    """Cycles that a warp needs to issue each instruction once: the assembler writes into each how
    long the next one has to wait. Memory latency and loops come on top."""


def triton_type(value: Any) -> str:
    """The type of an argument, as Triton writes it."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    return {bool: "i1", int: "i32", float: "fp32"}[type(value)]


def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """What `JITFunction.run` does before the launch."""
    names = self.arg_names
    given = dict(zip(names, args, strict=False)) | {n: kwargs.pop(n) for n in names if n in kwargs}
    fixed = {p.name for p in self.params if p.is_constexpr}
    fixed |= {n for n, v in given.items() if type(v) is int and v == 1}  # Triton specializes on 1
    signature = {n: "constexpr" if n in fixed else triton_type(given[n]) for n in names}
    values = {(names.index(n),): given[n] for n in fixed}
    aligned = [n for n in names if signature[n][0] == "*" or _is_multiple_of_16(given[n])]
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned if n not in fixed}
    key = f"{self.__name__} {signature} {values} {kwargs}"
    if key in compiled:
        return
    compiled.add(key)
    source = ASTSource(fn=self, signature=signature, constexprs=values, attrs=attrs)
    made = triton.compile(source, target=HOPPER, options=kwargs)
    print(self.__name__, made.metadata.shared, *machine_code(made.asm["cubin"]), flush=True)


def machine_code(cubin: bytes) -> MachineCode:
    """Read by the tools that come with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage, code = (
            subprocess.run(
                [tool, how, file.name], capture_output=True, text=True, check=True
            ).stdout
            for how in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    # An instruction is two words, the second alone on a line; its bits 41 to 44 are the cycles.
    words = re.findall(r"^\s+/\* 0x([0-9a-f]{16}) \*/$", code, re.MULTILINE)
    cycles = sum(int(word, 16) >> 41 & 15 for word in words)
    return MachineCode(*map(int, found.groups()), len(words), cycles)


def _is_multiple_of_16(value: Any) -> bool:
    return type(value) is int and value % 16 == 0


def cpu_weight_grad(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()  # on the CPU a GEMM has the precision of its operands


def zeroed(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same with zeros: what kernels would write must not be NaN or an invalid index."""
    return lambda *args, **kwargs: make(*args, **kwargs).zero_()


def run_step(model: dict[str, Any], width: float, length: int, training: bool) -> None:
    """Forward and backward of both networks."""
    config = EncoderConfig(layers=2, vocab_size=512, **model)
    objective = build(
        ObjectiveConfig(), config, GeneratorConfig(width=width), VocabInfo(4, (0, 2, 3, 4))
    )
    use_fused_kernels_(objective)
    objective.train(training)
    rows = torch.full((2, length + 2), 7, dtype=torch.int32)
    with torch.set_grad_enabled(training):
        masked_batch = objective.mask_batch(rows)
        with autocast(rows.device, torch.bfloat16, cache=False):
            output = objective(*masked_batch)
        if training:
            output.loss.backward()


def run_cross_entropy(positions: int) -> None:
    """The Triton kernels around the CUDA C++ cross-entropy, which a step on the CPU leaves out."""
    hidden, table = (torch.zeros(n, 128, dtype=torch.bfloat16) for n in (positions, VOCAB))
    absent, labels = torch.zeros(VOCAB) > 0, torch.zeros(positions).long()
    across = triton.cdiv(VOCAB, 128)
    schedule = cross_entropy.TileSchedule(SMS, across, triton.cdiv(positions, 192) * across)
    bias = cross_entropy.pad_bias(torch.zeros(VOCAB), absent)
    stats = torch.zeros(positions, schedule.parts, 4, 4)
    given = (hidden, table, bias, labels, labels > 0, labels, labels[:1])
    cross_entropy.finalize(stats, schedule, *given)
    partials = torch.zeros(schedule.parts, positions, 128)
    mlm.scale_grads(partials, schedule, hidden, torch.zeros(()).expand(positions))


def main() -> None:
    """ELECTRA-Small in training and in evaluation, and ELECTRA-Base, which has other kernels."""
    JITFunction.run = compile_only
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, zeroed(getattr(owner, name)))
    for module in (encoder_stack, embedding, mlm, rtd):
        module.weight_grad = cpu_weight_grad
    small, base = {"hidden": 256, "heads": 4, "embedding": 128}, {"hidden": 768, "heads": 12}
    run_step(small, 0.25, 128, training=True)
    run_step(small, 0.25, 128, training=False)
    run_step(base | {"embedding": 768}, 1 / 3, 512, training=True)
    for positions in (1, 2560, 20480):
        run_cross_entropy(positions)


if __name__ == "__main__":
    main()
