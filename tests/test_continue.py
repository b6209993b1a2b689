"""The commands of docs/continue.md run, and the page says what the program says."""

import re
from pathlib import Path

from electra.hub.folders import read_config
from electra.train import checkpoint
from electra.train.init_from import GENERATOR_FIRST, LR_DIVISOR, WARMUP
from electra.train.metrics_log import read_metrics
from electra.train.run_config import read_run_config

PAGE = (Path(__file__).parents[1] / "docs" / "continue.md").read_text(encoding="utf-8")


def test_the_example(bash, tmp_path):
    scripts = re.findall(r"<!-- tested(?:: score)? -->\n```bash\n(.*?)```", PAGE, re.S)
    assert len(scripts) == 2
    said = bash("".join(scripts))
    (printed,) = re.findall(r"```\n(new pieces: .*?)```", PAGE, re.S)
    assert printed in said
    assert "Starting from" in said
    config = read_run_config(tmp_path / "runs" / "domain")
    assert config.init_from.model == str(tmp_path / "models" / "domain")
    assert config.init_from.sha256
    assert config.init_from.generator_sha256
    sizes = [
        read_config(folder / "discriminator").vocab_size
        for folder in (
            checkpoint.checkpoints(tmp_path / "runs" / "general")[-1],
            tmp_path / "models" / "domain",
            checkpoint.checkpoints(tmp_path / "runs" / "domain")[-1],
        )
    ]
    assert sizes[0] < sizes[1] == sizes[2]
    first = next(m for m in read_metrics(tmp_path / "runs" / "domain") if m["kind"] == "held_out")
    assert first["step"] == 0
    lines = [m for m in read_metrics(tmp_path / "runs" / "scored") if m["kind"] == "score"]
    assert [(m["step"], m["task"], m["seeds"]) for m in lines] == [
        (10, "notes", 2),
        (20, "notes", 2),
    ]
    assert re.search(r"best on notes: step-000000[12]0, accuracy [01]\.\d{4} \(median of 2\)", said)
    printed = re.findall(r"^(Step 10: .*)$", PAGE, re.M)
    pattern = re.sub(r"\d+(\\\.|:)\d+", r"[\\d.:]+", re.escape(*printed))
    assert re.search(pattern, said), pattern


def test_the_page_names_the_defaults():
    assert LR_DIVISOR == 5
    assert "a fifth of the recipe's: 1e-4 for `paper.small`, 4e-5 for `paper.base`" in PAGE
    assert f"| warm-up | {WARMUP:.0%}".replace("%", " %") in PAGE
    assert f"for {GENERATOR_FIRST:.0%} of the run" in PAGE
