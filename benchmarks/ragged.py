"""Short documents in long rows: one to a row with padding, against several, packed, to a row.

    python benchmarks/ragged.py text.txt --tokenizer tokenizer --recipe paper.small

The text is cut anew into documents of 50 to 350 tokens, 200 on the mean, and prepared twice. Both
are ordinary runs of the recipe at length 512; what counts is tokens of text per second, without
padding.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

from rich.console import Console

from electra.bench.pretrain import ours
from electra.config import override
from electra.recipes import recipe
from electra.text.prepare import prepare
from electra.text.shards import Shards

LAYOUTS = {
    "padded": ("pairs", "data.document_mask=false"),
    "packed": ("packed", "data.document_mask=true"),
}
LENGTH = 512
WORDS = (38, 269)
"""Fewest and most words of a document: at 1.3 tokens a word 50 and 350 tokens."""


def cut(text: Path, out: Path, seed: int = 0) -> None:
    """The same words as documents of another length."""
    draw = random.Random(seed)
    words = text.read_text(encoding="utf-8").split()
    at = 0
    with out.open("w", encoding="utf-8") as file:
        while at < len(words):
            count = draw.randint(*WORDS)
            file.write(" ".join(words[at : at + count]) + "\n\n")
            at += count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--recipe", default="paper.small")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("settings", nargs="*", help="key=value")
    args = parser.parse_intermixed_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        cut(args.text, text)
        for name, (layout, documents) in LAYOUTS.items():
            data = Path(folder) / name
            where = {"tokenizer": args.tokenizer, "out": data}
            prepare([text], **where, length=LENGTH, layout=layout, workers=2, held_out=0.01)
            shards = Shards.open(data)
            rows = shards.rows("train") + shards.rows("held_out")
            share = shards.tokens / (rows * LENGTH)
            changes = [
                f"data.folder={data}",
                f"data.seq_length={LENGTH}",
                documents,
                *args.settings,
            ]
            config = override(recipe(args.recipe), changes)
            speed = ours(config, args.steps, float("inf"), Console(stderr=True, quiet=True))
            slots = speed.tokens_per_second
            found[name] = {"slots": slots, "share": share, "tokens": slots * share}
            print(f"{name}: {slots * share:,.0f} tokens/s, {share:.0%} of the places hold text")
    ratio = found["packed"]["tokens"] / found["padded"]["tokens"]
    print(json.dumps({"recipe": args.recipe, "ratio": round(ratio, 2), **found}))


if __name__ == "__main__":
    main()
