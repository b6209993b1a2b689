"""Wikitext to plain text: every kind of markup, broken markup, and time that stays in bounds."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.text import wikitext
from electra.text.wikitext import (
    WikiPage,
    is_disambiguation,
    is_redirect,
    parse_page,
    remove_references,
)

pytest.importorskip("mwparserfromhell")
REMOVED = ("media", "file", "image", "category", "tập tin", "カテゴリ")


def plain(markup: str) -> str:
    return parse_page(WikiPage(markup.encode(), REMOVED))


ARTICLE = """{{Short description|A lamp}}
{{Infobox lamp
| name = The lamp
| maker = {{nowrap|[[Ada]] & co}}
}}
[[File:Lamp.jpg|thumb|left|A ''lamp'' on a [[table (furniture)|table]]]]
The '''old lamp''' ({{IPA|læmp}}; born 1901) stands in [[London]]'s [[harbour|''new'' harbour]].<ref name="a">Smith, {{cite book|title=Lamps}}</ref>
<!-- nobody reads
this -->
It burns oil<ref name="a" /> &amp; has {{convert|3|m}} of chain , 5&nbsp;hooks.<br />A second line.

== History ==
=== Early ''days'' ===
{| class="wikitable"
! Year !! Owner
|-
| 1901 || {{flag|UK}} [[Ada]]
|}
In 1901 H<sub>2</sub>O was <math>x^2 < y</math>free, see [https://example.org/a the page] and [https://example.org/b].
* First [[item]]
** Second item
# Numbered
; Term
: Meaning
<gallery>
File:A.jpg|one
File:B.jpg|two
</gallery>
<blockquote>Light is best.</blockquote>
<div class="x">Kept <span style="a">words</span></div>
<nowiki>''not italics''</nowiki> here
<syntaxhighlight lang="python">print(1)</syntaxhighlight>
__NOTOC__
{{Reflist}}
<references />
[[Category:Lamps|Lamp]]
[[Thể loại:Đèn]]
[[Tập tin:Đèn.png|nhỏ|phải|Một cây đèn]]
[[Bild:Lampe.svg|miniatur]]
[[カテゴリ:灯]]
[[de:Lampe]] [[zh-yue:燈]] [[:fr:Lampe|the French lamp]] [[:Category:Lamps]]
"""  # noqa: E501


def test_every_kind_of_markup():
    text = plain(ARTICLE.replace("[[Thể loại:Đèn]]\n", ""))
    assert text.split("\n") == [
        "The old lamp (born 1901) stands in London's new harbour.",
        "It burns oil & has of chain, 5 hooks.",
        "A second line.",
        "In 1901 H2O was free, see the page and.",
        "First item",
        "Second item",
        "Numbered",
        "Term",
        "Meaning",
        "Light is best.",
        "Kept words",
        "not italics here",
        "the French lamp Category:Lamps",
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("{{a|{{b|[[c]]}}|{{{d|e}}}}}x", "x"),
        ("a{{b}}c", "ac"),
        ("[[Star Trek: The Next Generation]]", "Star Trek: The Next Generation"),
        ("[[a|b|c]]", "b|c"),
        ("[[dog]]s and [[cat|]]x", "dogs and x"),
        ("[[Wikipedia:Lamps|lamps]]", "lamps"),
        ("[[FILE: a.PNG|x]] [[ file:b.ogg]]y", "y"),
        ("'''''a''''' l'''eau'' d'Or", "a leau d'Or"),
        ("Tokyo ({{lang|ja|東京}}) and 東京（{{読み}}）は", "Tokyo and 東京は"),
        ("-{zh-hans:里; zh-hant:裡;}-面 -{A|zh-cn:甲; zh-tw:乙}- -{丙}-", "里面 甲 丙"),
        ("{| open\n| cell || cell\n|-\n! head\ntext", "text"),
        ("[[File:a.jpg|thumb|x", "File:a.jpg|thumb|x"),
        ("a <ref>b", "a b"),
        ("a</ref> b</div> c < d > e", "a b c < d > e"),
        ("a<!-- b", "a"),
        ("<ref>a<!-- </ref> -->b</ref>c", "c"),
        ("<nowiki><ref></nowiki>a<ref>b</ref>", "a"),
        ("<REF name=x>a</REF>b<ref>c</ref >d", "bd"),
        ("a{{b", "ab"),
        ("a]]b", "ab"),
        ("&#65;&eacute;&unknown;", "Aé&unknown;"),
        ("http://example.org/x", "http://example.org/x"),
        ("", ""),
        ("* * *", ""),
        ("a\r\nb\u2028c", "a\nb c"),
        ("__日本語__x", "x"),
    ],
)
def test_details(markup, text):
    assert plain(markup) == text


@pytest.mark.parametrize(
    "markup",
    [
        "Mercury may be:\n* [[a]]\n{{disambiguation}}",
        "{{Disambig|geo}} x",
        "{{ Begriffsklärung }}x",
        "x{{định hướng}}",
        "x\n{{Aimai}}",
        "{{消歧义}}x",
        "x __DISAMBIG__",
    ],
)
def test_pages_that_list_meanings_are_dropped(markup):
    assert plain(markup) == ""


def test_pages_that_only_mention_meanings_are_kept():
    assert plain("x {{disambiguation needed}} y {{dablink|z}}") == "x y"
    assert is_disambiguation("Mercury (disambiguation)")
    assert is_disambiguation("水星 (曖昧さ回避)")
    assert not is_disambiguation("Mercury (planet)")
    assert not is_disambiguation("Disambiguation")


def test_redirects():
    for text in ("#REDIRECT [[a]]", "#redirect:[[a]]", " #đổi [[a]]", "#転送 [[a]]"):
        assert is_redirect(text)
    assert not is_redirect("# one [[a]]")
    assert not is_redirect("a [[b]]")


PIECES = [
    *("[[", "]]", "{{", "}}", "{{{", "}}}", "{|", "|}", "|-", "|", "!", "=", "==", "\n", "'''"),
    *("''", "<ref>", "</ref>", "<ref/>", "<!--", "-->", "<nowiki>", "</nowiki>", "<br>", "<div"),
    *("</div>", "<table>", "<math>", "[http://a ", "]", "&amp;", "&#x", ";", "-{", "}-", "*", "#"),
    *(":", "File:", "a", "é", "語", " ", "\0", "\ud7ff", "(", ")", "__A__", "#REDIRECT"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60))
def test_any_markup_gives_lines_of_text(markup):
    text = plain(markup)
    assert "[[" not in text
    assert "{{" not in text
    assert all(line == line.strip() and line for line in text.split("\n")) or not text
    text.encode("utf-8", "surrogatepass")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_removing_references_only_removes(markup):
    found = remove_references(markup)
    rest = iter(markup)
    assert all(c in rest for c in found)  # a subsequence
    if not any(mark in markup for mark in ("<ref", "</ref", "<!--")):
        assert found == markup


@pytest.mark.parametrize(
    "piece", ["[[", "{{", "{|", "<div>", "<ref>", "<!--", "[http://a ", "-{", "("]
)
def test_repeated_markup_takes_bounded_time(piece):
    """Unbalanced markup makes naive parsers exponential."""
    start = time.process_time()
    plain(piece * (10_000 // len(piece)))
    assert time.process_time() - start < 5


def test_very_long_pages_are_parsed_in_parts(monkeypatch):
    sections = [f"== {i} ==\n[[a|Section]] {i} {{{{b|\n== c ==}}}} is here.\n" for i in range(50)]
    whole = plain("".join(sections))
    assert whole.split("\n")[7] == "Section 7 is here."
    monkeypatch.setattr(wikitext, "MAX_PARSED_CHARS", 100)
    parts = list(wikitext.split_markup("".join(sections)))
    assert "".join(parts) == "".join(sections)
    assert max(map(len, parts)) <= 100
    monkeypatch.setattr(wikitext, "MAX_PARSED_CHARS", 300)
    assert list(wikitext.split_markup("x" * 700)) == ["x" * 300, "x" * 300, "x" * 100]
    assert plain("== a ==\n" + "[[b]] c.\n" * 25 + "== d ==\ne {{f}} g\n" * 30) == "\n".join(
        ["b c."] * 25 + ["e g"] * 30
    )
