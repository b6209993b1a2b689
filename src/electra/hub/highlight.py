"""A sentence with the discriminator's verdict in colour."""

from collections.abc import Iterable

from rich.text import Text


def highlight(tokens: Iterable[tuple[str, float]]) -> Text:
    """Each token on a ground from plain (original) to red (replaced), an alarm in brackets."""
    text = Text()
    for token, replaced in tokens:
        glued = token.startswith("##")
        if text and not glued:
            text.append(" ")
        word = token.removeprefix("##") if glued else token
        red = round(min(max(replaced, 0.0), 1.0) * 5)
        style = f"on color({52 + 36 * (red - 1)})" if red else ""
        text.append(f"[{word}]" if replaced > 0.5 else word, style=style)
    return text
