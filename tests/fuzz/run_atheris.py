"""Fuzz one target, guided by coverage: `python -m tests.fuzz.run_atheris NAME SECONDS FOLDER`.

FOLDER keeps the corpus of each target between runs, and the input of a crash.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["electra"]):
    from tests.fuzz.seeds import all_seeds
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Run libFuzzer on one target; a crash ends the process with a code other than 0."""
    if sys.argv[1] == "--list":
        print(*TARGETS)
        return
    name, seconds, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    corpus, crashes = out / name, out / "crashes"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(all_seeds()[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="electra-fuzz-") as temporary:
        target.prepare(Path(temporary))
        limits = [
            f"-max_total_time={seconds}",
            "-timeout=20",
            "-rss_limit_mb=6000",
            "-max_len=20000",
        ]
        options = [*limits, f"-artifact_prefix={crashes}/{name}-", "-print_final_stats=1"]
        atheris.Setup(
            [sys.argv[0], *options, str(corpus)],
            lambda data: target.check(Path(temporary), data),
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
