"""A text as HTML: spelling of tokens by kind of tokenizer, suspicion as colour."""

import re

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from electra.hub.corruption import CorruptedToken
from electra.hub.heat_map import JudgedToken, heat_map, spell
from electra.hub.heat_map import judged as judge
from electra.text.tokenizer import load_tokenizer


def judged(text: str, suspicion: float = 0.25, **known) -> JudgedToken:
    known = {"begins_word": True, **known}
    return JudgedToken(token=text, text=text, suspicion=suspicion, **known)


def test_a_heat_map():
    tokens = [
        judged("cat", 0.9, original="Ġdog", original_text="dog"),
        judged("s", begins_word=False),
        judged("."),
    ]
    page = heat_map(tokens, chosen=1)
    assert re.findall(r'data-index="(\d)" class="([^"]*)" style="--p:([\d.]+)"', page) == [
        ("0", "token replaced", "0.900"),
        ("1", "token joined chosen", "0.250"),
        ("2", "token joined", "0.250"),
    ]
    assert "<b>cat</b><small>90%</small><s>dog</s>" in page
    assert 'title="90% suspicious, replaces “dog”"' in page
    assert "<button" not in heat_map(tokens, clicks=False)
    assert heat_map([]) == ""


def test_spelling_of_wordpiece(tokenizer_folder):
    pieces = ["xy", "##z", "##", "the"]
    assert spell(load_tokenizer(tokenizer_folder), pieces) == [
        ("xy", True),
        ("z", False),
        ("##", False),
        ("the", True),
    ]


def test_what_was_replaced_is_spelled_like_the_text(tokenizer_folder):
    tokens = [
        CorruptedToken(token="the", original="the", masked=True),
        CorruptedToken(token="the", original="##z", masked=True),
        CorruptedToken(token="##z", original="the", masked=True),
        CorruptedToken(token="xy", original="", masked=False),
    ]
    found = judge(load_tokenizer(tokenizer_folder), tokens, [0.1, 0.2, 0.3, 0.4])
    assert [(t.original, t.original_text, t.original_begins_word) for t in found[:3]] == [
        (None, "", False),
        ("##z", "z", False),
        ("the", "the", True),
    ]
    assert (found[3].original, found[3].original_text) == ("", "")


def test_spelling_of_byte_level_tokens():
    tokenizer = Tokenizer(models.BPE(vocab={"Ġthe": 0, "Ġf": 1, "ish": 2, "Ã©": 3}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    shown = spell(tokenizer, ["Ġthe", "Ġf", "ish", "Ã©"])
    assert shown == [("the", True), ("f", True), ("ish", False), ("é", False)]
