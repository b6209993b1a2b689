"""Unpacking stored rows."""

import torch

from electra.objectives.batch import unpack


def test_unpack():
    batch = unpack(torch.tensor([[2, 9, 3, 8, 3, 0, 0, 3, 5], [2, 9, 3, 0, 0, 0, 0, 3, 3]]))
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 0, 0], [0] * 7]  # padding is segment 0
    assert batch.attention_mask.sum(1).tolist() == [5, 3]


def test_documents_of_a_row_get_ids():
    rows = torch.tensor([[2, 9, 3, 2, 8, 3, 0, 6, 6], [2, 9, 8, 3, 0, 0, 0, 4, 4]])
    assert unpack(rows).doc_ids.dtype == torch.bool
    doc_ids = unpack(rows, document_start_id=2).doc_ids
    assert doc_ids[0, :6].tolist() == [1, 1, 1, 2, 2, 2]
    assert doc_ids[1, :4].tolist() == [1, 1, 1, 1]
    assert (doc_ids.diff(dim=1) >= 0).all()  # the kernels want them to ascend
    assert (doc_ids[1, 4:] > 2).all()
