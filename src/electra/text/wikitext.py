"""Turn the markup of Wikipedia's articles into plain text, a paragraph per line."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from electra.errors import require

MAX_PARSED_CHARS = 200_000  # markup that is parsed at once

# Elements that are removed with their content; of all others the content is kept.
REMOVED = re.compile(
    "categorytree|ce|chem|gallery|graph|hiero|imagemap|includeonly|indicator|inputbox|mapframe|"
    "maplink|math|pre|ref|references|score|section|source|style|syntaxhighlight|table|"
    "templatedata|templatestyles|timeline"
)
LINE_BREAK = re.compile("blockquote|br|center|d[dlt]|div|hr|li|[ou]l|p|poem")

# Names of the template, or the word after the title, of pages that only list meanings of a name.
DISAMBIGUATION_NAMES = (
    "dab|disambig|disambiguation|disambiguation page|geodis|hndis|begriffsklärung|homonymie|"
    "desambiguación|desambiguació|desambiguação|disambigua|dp|dezambiguizare|ujednoznacznienie|"
    "неоднозначность|многозначность|багатозначність|пояснение|förgrening|förgreningssida|peker|"
    "flertydig|täsmennyssivu|rozcestník|egyért|anlam ayrımı|định hướng|trang định hướng|aimai|"
    "曖昧さ回避|消歧义|消歧義|消歧义页|동음이의|توضيح|ابهام‌زدایی|פירושונים|αποσαφήνιση|argipen"
)
DISAMBIGUATION_TEMPLATE = re.compile(
    rf"\{{\{{\s*(?:{DISAMBIGUATION_NAMES})\s*(?:\||\}}\}})|__DISAMBIG__", re.IGNORECASE
)
DISAMBIGUATION_TITLE = re.compile(rf"[(（](?:{DISAMBIGUATION_NAMES})[)）]$", re.IGNORECASE)
REDIRECT = re.compile(r"\s*#\w+\s?:?\s*\[\[")

REFERENCE = re.compile(
    r"<!--.*?(?:-->|\Z)|<nowiki>.*?(?:</nowiki>|\Z)|<ref\b[^<>]*?/>|<ref\b[^<>]*>|</ref\s*>",
    re.IGNORECASE | re.DOTALL,
)

# Links that stand for no text: files by their ending, the same article in another language.
FILE_NAME = re.compile(
    r"\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[gav]|opus|webm|mp[34]|mpe?g|wav|flac|midi?|pdf|"
    r"djvu|stl)\s*$",
    re.IGNORECASE,
)
LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*|simple")

# What the parser leaves as text: unbalanced markup, magic words, variants of Chinese.
CLEANINGS = [
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"__[^\W\d_a-z]+__"), ""),
    (re.compile(r"-\{(?:[^{}|:]*\|)?(?:zh[\w-]*:)?([^{};]*)[^{}]*\}-"), r"\1"),
    (re.compile(r"</?(?:ref|div|span|small|big|center|su[bp]|[biusp]|br|nowiki|noinclude|"
                r"onlyinclude|includeonly|blockquote|gallery|math|table|t[rdh]|font|poem|code|"
                r"section|references)\b[^<>\n]*>", re.IGNORECASE), ""),
    (re.compile(r"\[\[|\]\]|\{\{|\}\}"), ""),
    (re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\ufeff]"), ""),
    (re.compile(r"[^\S\n]+"), " "),
    # Brackets that a removed template leaves without content, and separators without neighbours.
    (re.compile(r" ?[(（][\s,;:、，；]*[)）]"), ""),
    (re.compile(r"([(（])[\s,;、，；]+"), r"\1"),
    (re.compile(r" (?=[,)）、。，]|\.(?:\s|$))"), ""),
]  # fmt: skip
LETTER = re.compile(r"\w")


class WikiPage(NamedTuple):
    """An article as the dump has it; the workers parse it."""

    text: bytes
    """Wikitext in UTF-8."""
    removed: tuple[str, ...]
    """The namespaces, in lower case, whose links stand for no text: files and categories."""


def is_redirect(text: str) -> bool:
    """Whether the text of a page only refers to another page."""
    return REDIRECT.match(text) is not None


def is_disambiguation(title: str) -> bool:
    """Whether the title says that the page only lists meanings of a name."""
    return DISAMBIGUATION_TITLE.search(title) is not None


def parse_page(page: WikiPage) -> str:
    """Return the text of an article, or none if it only lists the meanings of a name."""
    parser: Any = require("mwparserfromhell", "wiki")
    markup = page.text.decode()
    if DISAMBIGUATION_TEMPLATE.search(markup):
        return ""
    text = "".join(
        render(parser.parse(part, skip_style_tags=True), page.removed)
        for part in split_markup(remove_references(markup))  # references are half of the work
    )
    for pattern, replacement in CLEANINGS:
        text = pattern.sub(replacement, text)
    lines = map(str.strip, text.split("\n"))
    return "\n".join(line for line in map(strip_mark, lines) if LETTER.search(line))


def remove_references(markup: str) -> str:
    """Remove comments and references in one pass; a reference that is never closed stays."""
    parts: list[str] = []
    done = 0
    opened = -1  # where the reference starts that is not closed yet
    for match in REFERENCE.finditer(markup):
        element = match[0].lower()
        if element.startswith("<ref") and not element.endswith("/>"):
            opened = match.start() if opened < 0 else opened
        elif element.startswith("</ref") and opened >= 0:
            parts.append(markup[done:opened])
            done, opened = match.end(), -1
        elif element.startswith(("<!--", "<ref")) and opened < 0:
            parts.append(markup[done : match.start()])
            done = match.end()
    return "".join([*parts, markup[done:]])


def split_markup(markup: str) -> Iterator[str]:
    """Split a very long page at headings: the parser's time can grow with the square of length."""
    start = 0
    while len(markup) - start > MAX_PARSED_CHARS:
        end = start + MAX_PARSED_CHARS
        cuts = (markup.rfind(mark, start + 1, end) for mark in ("\n==", "\n"))
        cut = next((cut for cut in cuts if cut > 0), end)
        yield markup[start:cut]
        start = cut
    yield markup[start:]


def strip_mark(line: str) -> str:
    """Remove the marks of a list; a line that is left of a broken table has no text."""
    if line.startswith(("|", "{|", "! ", "!!")):
        return ""
    return line.lstrip("*#:; ")


def render(code: Any, removed: tuple[str, ...]) -> str:
    """Return the text of parsed markup."""
    return "".join(render_node(node, removed) for node in code.nodes)


def render_node(node: Any, removed: tuple[str, ...]) -> str:
    """Return the text of a node; templates, headings and comments have none."""
    match type(node).__name__:
        case "Text":
            return str(node.value)
        case "HTMLEntity":
            return str(node.normalize())
        case "Wikilink":
            return link_text(node, removed)
        case "ExternalLink" if node.title is not None:
            return render(node.title, removed)
        case "ExternalLink" if not node.brackets:
            return str(node.url)
        case "Tag":
            name = str(node.tag).strip().lower()
            if REMOVED.fullmatch(name):
                return ""
            text = render(node.contents, removed) if node.contents is not None else ""
            breaks = LINE_BREAK.fullmatch(name) and not node.wiki_markup
            return f"\n{text}\n" if breaks else text
    return ""


def link_text(link: Any, removed: tuple[str, ...]) -> str:
    """Return the text that a link shows; files, categories and other languages show none."""
    target = str(link.title).strip()
    prefix, colon, _ = target.partition(":")
    name = prefix.strip().replace("_", " ")
    if colon and name and (
        name.lower() in removed or LANGUAGE.fullmatch(name) or FILE_NAME.search(target)
    ):  # fmt: skip
        return ""
    if link.text is not None:
        return render(link.text, removed)
    return render(link.title, removed).strip().removeprefix(":")
