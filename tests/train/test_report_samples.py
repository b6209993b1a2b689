"""Sample sentences of a report."""

import shutil
from pathlib import Path

from electra.train.report_samples import MAX_TOKENS, SENTENCES, render_samples, sample_judged


def test_held_out_texts_are_corrupted_and_judged(finished):
    texts = sample_judged(finished)
    assert len(texts) == SENTENCES
    assert len({" ".join(t.original or t.token for t in tokens) for tokens in texts}) > 1
    for tokens in texts:
        assert 0 < len(tokens) <= MAX_TOKENS + 5
        assert any(token.masked for token in tokens)
        assert all(len(token.proposals) == 3 for token in tokens if token.masked)
    assert sample_judged(finished) == texts  # the same each time


def test_a_sentence_says_why_there_are_none(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "<b>run"))
    shutil.rmtree(run / "checkpoints")
    shown = render_samples(run)
    assert shown.startswith("<p class='note'>No sample sentences: ")
    assert "<b>" not in shown
