"""Helpers that objectives share."""

import torch

from electra.objectives.objective import sum_each


def test_sum_each_keeps_the_order():
    """Whatever is added up together."""
    flags, slots, other = torch.rand(3, 8) > 0.3, torch.rand(3, 2) > 0.5, torch.rand(3, 2)
    counted = flags, torch.tensor(2.5), slots, ~flags, other, flags, torch.tensor(4)
    wanted = torch.stack([x.float().sum() for x in counted])
    torch.testing.assert_close(sum_each(*counted), wanted)
