"""The live view: a table in a terminal, plain lines in a log."""

import io

import pytest
from rich.console import Console

from electra.train import progress_view
from electra.train.progress_view import ProgressView, clock, format_metric, metrics_present

TRAIN = {
    "loss": 12.0,
    "mlm_loss": 4.321,
    "detection_loss": 0.234,
    "tokens_per_second": 12345.6,
    "peak_share": 0.42,
    "learning_rate": 1e-3,
    "replaced_rate": 0.11,
}
HELD_OUT = {"mlm_loss": 4.5, "recall": 0.25, "precision": 0.75, "auc": 0.875}


def view_of(terminal: bool) -> tuple[ProgressView, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=110, color_system=None)
    return ProgressView(console, "electra pretrain · [tiny] · run"), text


def test_a_terminal_sees_everything():
    view, text = view_of(terminal=True)
    with view:
        view.update(progress=0.0, seconds=0.0, status="step 0")  # nothing is known yet
        view.update(progress=0.25, seconds=60.0, status="step 100", train=TRAIN)
        view.print("warning: [odd] words", style="yellow")
        view.update(progress=0.5, seconds=120.0, status="step 200", held_out=HELD_OUT)
    picture = text.getvalue()
    for expected in (
        "generator loss",
        "4.321",
        "12,346 tokens/s",
        "42.0% of the hardware's peak",
        "rate 1.00e-03",
        "11.0%",
        "75.0%",
        "0.875",
        "50.0%  step 200  left 2:00",
        "[tiny]",
        "warning: [odd] words",
    ):
        assert expected in picture, expected


def test_a_log_gets_plain_lines(monkeypatch):
    view, text = view_of(terminal=False)
    now = [1000.0]
    monkeypatch.setattr(progress_view.time, "monotonic", lambda: now[0])
    with view:
        view.print("Starting")
        view.update(progress=0.1, seconds=10.0, status="step 10", train=TRAIN)
        view.update(progress=0.2, seconds=20.0, status="step 20", train=TRAIN)  # too soon
        now[0] += 11
        view.update(progress=0.3, seconds=30.0, status="step 30", train=TRAIN)
        view.update(progress=0.4, seconds=40.0, status="step 40", held_out=HELD_OUT)
    lines = text.getvalue().splitlines()
    assert [line.split("  ")[1] if "step" in line else line for line in lines] == [
        "Starting",
        "step 10",
        "step 30",
        "step 40",
    ]
    assert "\x1b" not in text.getvalue()
    assert "held-out recall 0.250  held-out auc 0.875" in lines[-1]
    assert "12,346 tokens/s" in lines[-1]
    assert lines[-1].endswith("left 1:00")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("recall", 0.1234, "12.3%"),
        ("auc", 0.1234, "0.123"),
        ("loss", None, "–"),
        ("auc", float("nan"), "–"),
    ],
)
def test_metrics_are_formatted_for_people(key, value, text):
    assert format_metric(key, value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_shares_are_shown_in_per_cent_and_losses_are_not():
    for key, _ in (*progress_view.METRICS, *progress_view.OTHER_METRICS):
        share = key.endswith(("accuracy", "above_floor", "precision", "recall", "rate"))
        assert format_metric(key, 0.25) == ("25.0%" if share else "0.250"), key


def test_one_network_has_one_loss():
    def keys(*known: str) -> list[str]:
        return [key for key, _ in metrics_present(dict.fromkeys(known, 1.0))]

    assert keys("loss", "model_loss", "model_accuracy") == ["model_loss", "model_accuracy"]
    assert keys("loss", "mlm_loss", "model_loss") == ["loss", "mlm_loss", "model_loss"]
    assert keys("loss", "mlm_loss", "detection_loss") == ["loss", "mlm_loss", "detection_loss"]
