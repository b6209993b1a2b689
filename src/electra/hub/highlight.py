"""Colour the tokens of a text by how likely they were replaced."""

from collections.abc import Iterable

from rich.text import Text


def highlight(tokens: Iterable[tuple[str, float]]) -> Text:
    """Return the text with a red background for replaced tokens; above 50 % also in brackets."""
    text = Text()
    for token, replaced in tokens:
        continues_word = token.startswith("##")
        if text and not continues_word:
            text.append(" ")
        word = token.removeprefix("##") if continues_word else token
        red = round(min(max(replaced, 0.0), 1.0) * 5)
        style = f"on color({52 + 36 * (red - 1)})" if red else ""
        text.append(f"[{word}]" if replaced > 0.5 else word, style=style)
    return text
