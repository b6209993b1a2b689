"""Short documents in long rows: one document per row with padding, or several packed into a row.

    python benchmarks/ragged.py text.txt --tokenizer tokenizer --recipe paper.small

The text is split into documents of 50 to 350 tokens, 200 on average, and prepared in both layouts.
Both are ordinary runs of the recipe at length 512; the result is tokens of text per second, without
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
from electra.text.layouts import Layout
from electra.text.prepare import prepare
from electra.text.shards import Shards

LAYOUTS: dict[str, tuple[Layout, str]] = {
    "padded": ("pairs", "data.document_mask=false"),
    "packed": ("packed", "data.document_mask=true"),
}
LENGTH = 512
WORDS = (38, 269)
"""Fewest and most words of a document: at 1.3 tokens a word 50 and 350 tokens."""


def split_documents(text: Path, out: Path, seed: int = 0) -> None:
    """Write the words of a text as documents of random length."""
    rng = random.Random(seed)
    words = text.read_text(encoding="utf-8").split()
    at = 0
    with out.open("w", encoding="utf-8") as file:
        while at < len(words):
            count = rng.randint(*WORDS)
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
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        split_documents(args.text, text)
        for name, (layout, document_mask) in LAYOUTS.items():
            data = Path(folder) / name
            prepare(
                [text],
                tokenizer=args.tokenizer,
                out=data,
                length=LENGTH,
                layout=layout,
                workers=2,
                held_out=0.01,
            )
            shards = Shards.open(data)
            rows = shards.rows("train") + shards.rows("held_out")
            share = shards.tokens / (rows * LENGTH)
            changes = [
                f"data.folder={data}",
                f"data.seq_length={LENGTH}",
                document_mask,
                *args.settings,
            ]
            config = override(recipe(args.recipe), changes)
            speed = ours(config, args.steps, float("inf"), Console(stderr=True, quiet=True))
            positions = speed.tokens_per_second
            tokens = positions * share
            results[name] = {"positions": positions, "share": share, "tokens": tokens}
            print(f"{name}: {tokens:,.0f} tokens/s, {share:.0%} of the positions hold text")
    ratio = results["packed"]["tokens"] / results["padded"]["tokens"]
    print(json.dumps({"recipe": args.recipe, "ratio": round(ratio, 2), **results}))


if __name__ == "__main__":
    main()
