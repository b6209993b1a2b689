"""Compile each kernel that networks and losses launch for a Hopper GPU, without having one.

    python tests/kernels/hopper.py

prints of each its name, its bytes of shared memory, and what `Machine` lists.

Run by test_hopper.py in a process of its own, for here Triton must not interpret. Launches compile
and do nothing else; the tensors of a step are on the CPU, full of zeros.
"""

import re
import subprocess
import tempfile
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.device import autocast
from electra.kernels import encoder_stack as layers
from electra.kernels.any_gpu import linear
from electra.kernels.any_gpu import mlm_head as head
from electra.kernels.any_gpu import mlm_loss as vocabulary
from electra.kernels.any_gpu import rtd_head as score
from electra.kernels.cuda import fused_linear_cross_entropy as words
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
done: set[str] = set()


class Machine(NamedTuple):
    """What the machine code of a kernel has."""

    registers: int
    spilled: int
    """Bytes of a thread."""
    instructions: int
    cycles: int
    """That a warp needs for each instruction once: the assembler writes into each how long the next
    one has to wait. What comes from memory takes longer, and loops come again."""


def kind(value: Any) -> str:
    """The type of an argument, as Triton writes it."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    return {bool: "i1", int: "i32", float: "fp32"}[type(value)]


def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """What `JITFunction.run` would do before the launch."""
    names = self.arg_names
    given = dict(zip(names, args, strict=False)) | {n: kwargs.pop(n) for n in names if n in kwargs}
    fixed = {p.name for p in self.params if p.is_constexpr}
    fixed |= {n for n, v in given.items() if type(v) is int and v == 1}  # as Triton has it
    signature = {n: "constexpr" if n in fixed else kind(given[n]) for n in names}
    values = {(names.index(n),): given[n] for n in fixed}
    even = [n for n in names if signature[n][0] == "*" or _even(given[n])]
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in even if n not in fixed}
    key = f"{self.__name__} {signature} {values} {kwargs}"
    if key in done:
        return
    done.add(key)
    source = ASTSource(fn=self, signature=signature, constexprs=values, attrs=attrs)
    made = triton.compile(source, target=HOPPER, options=kwargs)
    print(self.__name__, made.metadata.shared, *machine(made.asm["cubin"]), flush=True)


def machine(cubin: bytes) -> Machine:
    """By the tools that come with Triton."""
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
    # An instruction is two words, the second alone on a line; its bits 41 to 44 are the cycles
    words = re.findall(r"^\s+/\* 0x([0-9a-f]{16}) \*/$", code, re.MULTILINE)
    cycles = sum(int(word, 16) >> 41 & 15 for word in words)
    return Machine(*map(int, found.groups()), len(words), cycles)


def _even(value: Any) -> bool:
    return type(value) is int and value % 16 == 0


def weight_grad(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()  # the CPU has no products with another result


def step(model: dict[str, Any], width: float, length: int, training: bool) -> None:
    """One pass of both networks, and back."""
    config = EncoderConfig(layers=2, vocab_size=512, **model)
    objective = build(
        ObjectiveConfig(), config, GeneratorConfig(width=width), VocabInfo(4, (0, 2, 3, 4))
    )
    use_fused_kernels_(objective)
    objective.train(training)
    rows = torch.full((2, length + 2), 7, dtype=torch.int32)
    with torch.set_grad_enabled(training):
        mask_batch = objective.mask_batch(rows)
        with autocast(rows.device, torch.bfloat16, cache=False):
            outcome = objective(*mask_batch)
        if training:
            outcome.loss.backward()


def guess(slots: int) -> None:
    """What besides CUDA C++ finds words: a step on the CPU takes another way."""
    count = 30522
    hidden, table = (torch.zeros(n, 128, dtype=torch.bfloat16) for n in (slots, count))
    bias, absent, labels = torch.zeros(count), torch.zeros(count) > 0, torch.zeros(slots).long()
    schedule = words.TileSchedule(132, triton.cdiv(count, 128), triton.cdiv(slots, 192) * 239)
    offset, stats = words.pad_bias(bias, absent), torch.zeros(slots, schedule.parts, 4, 4)
    (seed,) = vocabulary.draw_seeds(1, hidden.device)
    words.settle(stats, schedule, hidden, table, offset, labels, labels > 0, labels, seed)
    parts = torch.zeros(schedule.parts, slots, 128)
    vocabulary.weigh(parts, schedule, hidden, torch.zeros(()).expand(slots))


def main() -> None:
    """ELECTRA-Small in training and in evaluation, and ELECTRA-Base, which has other kernels."""
    JITFunction.run = compile_only
    for name in ("empty", "empty_like"):
        setattr(torch, name, getattr(torch, name.replace("empty", "zeros")))
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    for module in (layers, head, linear, score, vocabulary):
        module.product = weight_grad
    small, base = {"hidden": 256, "heads": 4, "embedding": 128}, {"hidden": 768, "heads": 12}
    step(small, 0.25, 128, training=True)
    step(small, 0.25, 128, training=False)
    step(base | {"embedding": 768}, 1 / 3, 512, training=True)
    for slots in (1, 2560, 20480):
        guess(slots)


if __name__ == "__main__":
    main()
