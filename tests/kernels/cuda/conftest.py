"""Random numbers, guarded memory and errors for the tests of the CUDA C++ kernels."""

from collections.abc import Callable, Sequence

import pytest
import torch


@pytest.fixture
def draw(device):
    """`draw(3, 4, scale=0.1)`: random numbers in bf16."""
    torch.manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape) * scale).to(device, torch.bfloat16)

    return normal


@pytest.fixture
def guarded() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """`guarded(rows, width, device)`: an output with memory behind it."""

    def guarded(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """An output, and memory behind it that has to stay 7."""
        both = torch.full((rows + 64, width), 7.0, dtype=torch.bfloat16, device=device)
        return both[:rows], both[rows:]

    return guarded


@pytest.fixture
def relative_error() -> Callable[..., float]:
    """`relative_error(found, expected)`: the norm of the difference over that of the expected."""

    def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
        return ((found.float() - expected).norm() / expected.norm()).item()

    return relative_error


@pytest.fixture
def several_documents() -> Callable[..., torch.Tensor]:
    """`several_documents(batch_size, starts, device)`: document ids."""

    def several_documents(batch_size: int, starts: Sequence[int], device) -> torch.Tensor:
        """Document ids: each of these starts begins a document, in one row and in all after it."""
        doc_ids = torch.zeros(batch_size, 128, dtype=torch.int32, device=device)
        for row, start in enumerate(starts):
            doc_ids[row:, start:] += 1
        return doc_ids

    return several_documents
