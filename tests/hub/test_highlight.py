"""Colours of detected tokens."""

from electra.hub.highlight import highlight


def test_replaced_tokens_are_red_and_in_brackets():
    text = highlight([("the", 0.0), ("far", 0.2), ("##mer", 0.51), ("swims", 1.0), (".", 0.05)])
    assert text.plain == "the far[mer] [swims] ."
    styles = {text.plain[s.start : s.end]: str(s.style) for s in text.spans}
    assert styles["far"] == "on color(52)"
    assert styles["[swims]"] == "on color(196)"
    assert "the" not in styles
    assert "." not in styles


def test_probabilities_beyond_the_range_are_clipped():
    assert highlight([("a", -0.1), ("b", 1.1)]).plain == "a [b]"
