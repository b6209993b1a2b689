"""Adam for stacked seeds; tests/finetune/test_stack.py compares whole networks with PaperAdam."""

import torch
from torch import nn

from electra.optim.stacked import StackedAdam


def test_each_seed_is_clipped_by_its_own_norm():
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2, 2, 2))]
    optimizer = StackedAdam([[p] for p in parameters], clip=1.0)
    for p in parameters:
        p.grad = torch.randn(p.shape)
        p.grad[0] *= 100  # the first seed is far above the limit, the second below it
        p.grad[1] *= 0.01
    before = [p.grad.clone() for p in parameters]
    optimizer.clip_gradients()
    norms = [torch.cat([p.grad[seed].flatten() for p in parameters]).norm() for seed in (0, 1)]
    torch.testing.assert_close(norms[0], torch.tensor(1.0))
    for p, was in zip(parameters, before, strict=True):
        assert torch.equal(p.grad[1], was[1])
        torch.testing.assert_close(p.grad[0] / p.grad[0].norm(), was[0] / was[0].norm())


def test_vectors_do_not_decay():
    weight, bias = nn.Parameter(torch.ones(2, 3, 3)), nn.Parameter(torch.ones(2, 3))
    optimizer = StackedAdam([[weight, bias]], weight_decay=0.1)
    weight.grad, bias.grad = torch.zeros(2, 3, 3), torch.zeros(2, 3)
    optimizer.step(torch.tensor([0.5]))
    torch.testing.assert_close(weight.detach(), torch.full((2, 3, 3), 1 - 0.5 * 0.1))
    assert torch.equal(bias.detach(), torch.ones(2, 3))


def test_stacked_adam_with_bias_correction_is_adamw():
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(2, 3, 4))
    single = nn.Parameter(parameter.detach()[1].clone())
    ours = StackedAdam([[parameter]], weight_decay=0.1, clip=1e9, bias_correction=True)
    theirs = torch.optim.AdamW([single], lr=0.01, eps=1e-6, weight_decay=0.1)
    for _ in range(5):
        parameter.grad = torch.randn(2, 3, 4)
        single.grad = parameter.grad[1].clone()
        ours.step(torch.tensor([0.01]))
        theirs.step()
    torch.testing.assert_close(parameter[1], single)


def test_stacked_adam_forget():
    parameter = nn.Parameter(torch.ones(2, 3))
    optimizer = StackedAdam([[parameter]])
    for _ in range(2):
        parameter.grad = torch.ones(2, 3)
        optimizer.step(torch.zeros(1))
    assert torch.equal(parameter.detach(), torch.ones(2, 3))  # rate 0 changes nothing
    assert optimizer.means[0][0].abs().sum() > 0
    optimizer.reset()
    assert optimizer.means[0][0].abs().sum() == optimizer.squares[0][0].abs().sum() == 0
