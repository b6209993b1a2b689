"""Read the articles of a dump of Wikipedia or another MediaWiki, in constant memory."""

import re
from collections.abc import Iterator
from xml.parsers import expat

from electra.errors import UserError, require
from electra.text.archives import printable
from electra.text.sources import InputFile, damaged
from electra.text.wikitext import WikiPage, is_disambiguation, is_redirect

DUMP = re.compile(r"\ufeff?\s*<(?:\?xml|!DOCTYPE|!--|mediawiki[\s>])")
INDEX = re.compile(r"-multistream-index\d*\.txt")

MAX_TOKEN_BYTES = 16_000_000  # a longer tag or comment is an error
MAX_PAGE_CHARS = 64_000_000  # MediaWiki allows 2 MB
MAX_DEPTH = 50  # of elements; a dump has 6
ARTICLES = "0"  # the number of the articles' namespace
REMOVED_NAMESPACES = {"-2", "6", "14"}  # media, files, categories
CANONICAL_NAMES = ("media", "file", "image", "category")

PAGE = ("mediawiki", "page")
FIELDS = {
    ("mediawiki", "siteinfo", "namespaces", "namespace"): "namespace",
    (*PAGE, "title"): "title",
    (*PAGE, "ns"): "ns",
    (*PAGE, "revision", "model"): "model",
    (*PAGE, "revision", "text"): "text",
}


def is_dump(start: str) -> bool:
    """Whether a file that starts like this is a dump."""
    return DUMP.match(start) is not None and "<mediawiki" in start


def refuse_index(name: str) -> None:
    """Refuse the list of pages that is distributed beside a multistream dump."""
    if INDEX.search(name):
        raise UserError(
            f"'{name}' is the index of a Wikipedia dump, not text: "
            "leave it out, the dump is read without it."
        )


def read_dump(file: InputFile) -> Iterator[WikiPage]:
    """Yield the articles of a dump; redirects and other namespaces are skipped."""
    require("mwparserfromhell", "wiki")  # the workers need it
    reader = DumpReader(file)
    try:
        for block in file.blocks():
            reader.feed(block)
            yield from reader.take_pages()
        reader.feed(b"")
    except expat.ExpatError as error:
        raise damaged(file.name, file.location, error) from None
    if not reader.found:
        raise UserError(
            f"'{file.name}' is a dump without articles: "
            "take the one whose name contains pages-articles."
        )


class DumpReader:
    """Collects the articles from the events of the XML parser."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.found = False
        self.pages: list[WikiPage] = []
        self.path: list[str] = []
        self.fields: dict[str, list[str]] = {}
        self.data: list[str] | None = None  # of the field that is being read
        self.size = 0
        self.redirect = False
        self.key = ""
        self.removed: tuple[str, ...] = CANONICAL_NAMES
        self.waiting = 0  # bytes since the last event
        file.location = " before its first page"
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        # Entities, which could expand without limit or name other files, need a declaration here.
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype

    def feed(self, block: bytes) -> None:
        """Parse the next bytes, none at the end."""
        self.waiting += len(block)
        self.parser.Parse(block, not block)
        if self.waiting > MAX_TOKEN_BYTES:
            raise self.not_a_dump("a tag or comment of more than 16 MB")

    def take_pages(self) -> list[WikiPage]:
        """Return the articles that were completed."""
        pages, self.pages = self.pages, []
        return pages

    def refuse_doctype(self, *declaration: object) -> None:
        """Refuse a document type."""
        raise self.not_a_dump("a document type declaration")

    def not_a_dump(self, what: str) -> UserError:
        """Return the error for XML that MediaWiki does not write."""
        return UserError(
            f"'{self.file.name}' has {what}{self.file.location}, which no dump of MediaWiki has: "
            "fetch it again from dumps.wikimedia.org."
        )

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self.waiting = 0
        self.path.append(name)
        if len(self.path) > MAX_DEPTH:
            raise self.not_a_dump(f"more than {MAX_DEPTH} nested elements")
        path = tuple(self.path)
        if path == PAGE:
            self.fields, self.redirect, self.size = {}, False, 0
        elif path == (*PAGE, "redirect"):
            self.redirect = True
        elif path in FIELDS:
            self.key = attributes.get("key", "")
            # Of several revisions the last one stays.
            self.data = self.fields[FIELDS[path]] = []
            self.size = 0

    def characters(self, data: str) -> None:
        """Collect the text of a field."""
        self.waiting = 0
        if self.data is not None:
            self.data.append(data)
            self.size += len(data)
            if self.size > MAX_PAGE_CHARS:
                raise self.not_a_dump("a page of more than 64 MB")

    def end(self, name: str) -> None:
        """End an element."""
        self.waiting = 0
        path = tuple(self.path)
        if path == (*PAGE, "title"):
            self.file.location = f" in the page '{printable(self.field('title'))}'"
        elif path == PAGE:
            self.end_page()
        elif FIELDS.get(path) == "namespace" and self.key in REMOVED_NAMESPACES:
            self.removed = (*self.removed, self.field("namespace").lower())
        self.data = None
        self.path.pop()

    def end_page(self) -> None:
        """Keep a page if it is an article."""
        title, text = self.field("title"), self.field("text")
        self.file.location = f" after the page '{printable(title)}'"
        if self.field("ns") in ("", ARTICLES) and self.field("model") in ("", "wikitext"):
            self.found = True
            if not (self.redirect or is_redirect(text) or is_disambiguation(title)):
                self.pages.append(WikiPage(text.encode(), self.removed))
        self.fields = {}

    def field(self, name: str) -> str:
        """Return the text of a field without white space around it."""
        return "".join(self.fields.get(name, ())).strip()
