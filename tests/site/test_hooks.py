"""The documentation as a site: links work, all settings are there, nothing comes from outside."""

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from electra.cli import app
from electra.config import flatten
from electra.finetune.settings import FinetuneConfig
from electra.recipes import RECIPES
from electra.train.settings import PretrainConfig

pytest.importorskip("mkdocs", reason="MkDocs is not installed")

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "site/mkdocs.yml"


@pytest.fixture(scope="module")
def site(released, tmp_path_factory) -> Path:
    """The site, built with --strict: a link to a page or heading that is missing fails.

    Its folder of released models is one with a tiny model.
    """
    out = tmp_path_factory.mktemp("site")
    config = {
        "INHERIT": str(CONFIG),
        "docs_dir": str(ROOT / "docs"),
        "hooks": [str(ROOT / "site/hooks.py")],
        "extra": {"weights": str(released.parent)},
    }
    path = tmp_path_factory.mktemp("config") / "mkdocs.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--config-file", str(path), "--site-dir", str(out)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return out


def text_of(page: Path) -> str:
    """A page without its tags."""
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_setting_command_and_recipe_is_in_the_reference(site):
    settings = text_of(site / "reference/settings.html")
    for key, _ in (*flatten(PretrainConfig()), *flatten(FinetuneConfig())):
        assert key in settings or key == "name", key
    recipes = text_of(site / "reference/recipes.html")
    assert all(name in recipes for name in RECIPES)
    commands = text_of(site / "reference/commands.html")
    names = [c.name or c.callback.__name__ for c in app.registered_commands if not c.hidden]
    assert all(f"electra {name}" in commands for name in names)
    api = text_of(site / "reference/api.html")
    assert all(f"{name}" in api for name in ("electra.load", "encode", "detect", "classify"))


def test_every_page_of_the_docs_is_in_the_navigation(site):
    """One that is not would be found by the search alone."""
    navigation = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]
    listed = set(re.findall(r"[\w/-]+\.md", str(navigation)))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= listed


def test_each_released_model_has_a_page_made_of_its_card(site):
    page = text_of(site / "models/tiny-model-xx.html")
    assert "library_name" not in page  # the front matter
    assert "pip install . weights/tiny-model-xx\n" in page
    assert "the folder of this card" not in page
    assert "SHA-256" in page
    assert " MB" in page
    index = (site / "models/index.html").read_text(encoding="utf-8")
    assert 'href="tiny-model-xx.html"' in index
    first = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="models/index.html"' in first  # the navigation


def test_without_a_released_model_the_site_has_no_page_for_models(tmp_path):
    hooks = runpy.run_path(str(ROOT / "site/hooks.py"))
    config = SimpleNamespace(extra={"weights": str(tmp_path)}, nav=["index.md"])
    assert hooks["model_cards"](config) == {}
    assert hooks["on_config"](config).nav == ["index.md"]


def test_a_link_to_a_model_card_leads_to_its_page():
    hooks = runpy.run_path(str(ROOT / "site/hooks.py"))
    file = SimpleNamespace(src_uri="trained-model.md")
    config = SimpleNamespace(extra={})
    link = hooks["on_page_markdown"]
    for name in hooks["model_cards"](config):
        text = f"[card](../weights/{name}/README.md#scores)"
        shown = link(text, SimpleNamespace(file=file), config, None)
        assert shown == f"[card](models/{name}.md#scores)"


class Loaded(HTMLParser):
    """What a browser loads for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.found.append(given.get("href") or "")


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found
        assert not [url for url in parser.found if re.match(r"(https?:)?//", url)], page
