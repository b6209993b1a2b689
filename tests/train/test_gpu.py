"""On a CUDA device: bf16 products over fp32 weights, resume, and compiled code."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from electra.train import checkpoint, pretrain
from electra.train.pretrain import resume, start
from electra.train.record import read_metrics

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_cuda(tiny, with_train):
    return with_train(tiny, device="cuda", report_every=1, checkpoint_every=20, keep_last=9)


def losses(out, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(out) if line["kind"] == "train"]


def weights(out) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.checkpoints(out)[-1] / "model.safetensors")


def test_bf16_learns_and_the_weights_stay_fp32(on_cuda, with_train, tmp_path, console):
    assert start(with_train(on_cuda, budget="60steps"), tmp_path / "run", console) == 0
    assert "on cuda in bfloat16" in console.file.getvalue()
    found = losses(tmp_path / "run")
    assert sum(found[-5:]) < 0.9 * sum(found[:5])
    last = checkpoint.checkpoints(tmp_path / "run")[-1]
    for part in ("model", "optimizer"):
        tensors = load_file(last / f"{part}.safetensors")
        assert {t.dtype for t in tensors.values()} == {torch.float32}
        assert all(t.isfinite().all() for t in tensors.values())
    (line, *_) = [m for m in read_metrics(tmp_path / "run") if m["kind"] == "train"]
    assert 0 < line["peak_share"] < 1


def test_resume_goes_on_with_the_same_numbers(on_cuda, with_train, tmp_path, console):
    config = with_train(on_cuda, budget="40steps")
    start(config, tmp_path / "straight", console)
    start(config, tmp_path / "again", console)
    shutil.rmtree(checkpoint.checkpoints(tmp_path / "again")[-1])  # back to step 20
    assert resume(tmp_path / "again", console) == 0
    straight, again = (losses(tmp_path / n, "mlm_loss") for n in ("straight", "again"))
    assert len(straight) == len(again) == 40
    # Some sums on the device have no fixed order; the masks must be the same ones
    assert again[20:] == pytest.approx(straight[20:], rel=2e-2)
    assert again[20:30] != pytest.approx(straight[30:], rel=2e-2)


def test_a_checkpoint_of_the_device_loads_on_the_cpu(on_cuda, with_train, tmp_path, console):
    from electra.train.evaluate import restore_run

    start(with_train(on_cuda, budget="2steps"), tmp_path / "run", console)
    _, objective = restore_run(tmp_path / "run")
    saved = weights(tmp_path / "run")
    for name, p in objective.named_parameters():
        assert torch.equal(p.cpu(), saved[name]), name


def test_compiled_is_eager_within_the_noise_of_bf16(
    on_cuda, with_train, tmp_path, console, monkeypatch
):
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config, "fallback_random", True)
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e15)
    config = with_train(on_cuda, budget="6steps")
    config = replace(
        config,
        model=replace(config.model, dropout=0.0, attention_dropout=0.0),
        objective=replace(config.objective, temperature=1e-6),
    )
    start(config, tmp_path / "eager", console)
    start(with_train(config, compile=True), tmp_path / "compiled", console)
    for name in ("mlm_loss", "detection_loss"):
        eager, compiled = (losses(tmp_path / n, name) for n in ("eager", "compiled"))
        # A near tie between two tokens may fall either way in bf16: 2.7 % was seen at step 6.
        assert compiled == pytest.approx(eager, rel=5e-2), name


def test_training_waits_for_the_device_only_to_report(on_cuda, with_train, tmp_path, console):
    """A step on its own must not make the host wait."""
    from electra.train import loop

    real, steps = loop.step, []

    def watched(*arguments):
        steps.append(1)
        if len(steps) > 3:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return real(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "step", watched)
        assert start(with_train(on_cuda, budget="8steps"), tmp_path / "run", console) == 0
    assert len(steps) == 8
