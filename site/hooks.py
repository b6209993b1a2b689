"""What the site has beside the files of docs/: pages of the repository and of the released models,
and a generated reference.

MkDocs calls the functions whose names begin with `on_`.
"""

import dataclasses
import json
import posixpath
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from electra.cli import app
from electra.config import field_helps, flatten
from electra.finetune.settings import FinetuneConfig
from electra.recipes import RECIPES
from electra.train.settings import PretrainConfig

ROOT = Path(__file__).parents[1]
REPOSITORY_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/log.md": "log.md",
    "benchmarks/queue.md": "queue.md",
    "src/electra/kernels/README.md": "kernel-pieces.md",
}
"""Pages outside docs/, by their place in the repository, and where the site has them."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
API = """# Python API

[Use it in Python](../python.md) has examples.

::: electra.load

::: electra.api.Model
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the released models into the navigation, after the pages that come first."""
    if cards := model_cards(config):
        pages: list[Any] = ["models/index.md", *({name: model_uri(name)} for name in cards)]
        config.nav.insert(2, {"Models": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    contents = {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/recipes.md": recipes_page(),
        "reference/api.md": API,
        "site.css": (ROOT / "site/site.css").read_text(encoding="utf-8"),
    }
    for source, target in REPOSITORY_PAGES.items():
        contents[target] = (ROOT / source).read_text(encoding="utf-8")
    if cards := model_cards(config):
        contents["models/index.md"] = models_page(cards)
        contents |= {model_uri(name): model_page(card) for name, card in cards.items()}
    for uri, content in contents.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between files of the repository to pages of the site."""
    cards = {f"weights/{name}/README.md": model_uri(name) for name in model_cards(config)}
    pages = REPOSITORY_PAGES | cards | {"docs/README.md": "index.md"}
    uri = page.file.src_uri
    source = next((file for file, target in pages.items() if target == uri), f"docs/{uri}")
    return LINK.sub(lambda match: site_link(match, source, uri, pages), markdown)


def site_link(match: re.Match[str], source: str, uri: str, pages: dict[str, str]) -> str:
    """A link of the file `source` as the page `uri` needs it; `pages` are those outside docs/.

    A file that the site does not have, such as source code, becomes plain text.
    """
    image, text, link = match.groups()
    path, mark, anchor = link.partition("#")
    if ":" in link or not path:
        return match[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = pages.get(target, target.removeprefix("docs/"))
    if target not in pages and not target.startswith("docs/"):
        return match[0] if not (ROOT / target).exists() else text
    return f"{image}[{text}]({posixpath.relpath(page, posixpath.dirname(uri))}{mark}{anchor})"


def model_cards(config: MkDocsConfig) -> dict[str, Path]:
    """The model card of each package in `weights/`, by the name of the model."""
    folder = Path(config.extra.get("weights", ROOT / "weights"))
    packages = sorted(path.parent for path in folder.glob("*/pyproject.toml"))
    return {package.name: package / "README.md" for package in packages}


def model_uri(name: str) -> str:
    return f"models/{name}.md"


def models_page(cards: dict[str, Path]) -> str:
    """The released models, with what they are and how large."""
    parts = ["# Models", "[Start with a trained model](../trained-model.md): install and use one."]
    for name, card in cards.items():
        facts, body = read_model_card(card)
        parts += [f"## [{name}]({name}.md)", body.split("\n\n")[1], facts_table(card, facts)]
    parts.append("[Publish a model](../release.md) says how they are made.")
    return "\n\n".join(parts) + "\n"


def model_page(card: Path) -> str:
    """A model card, with the facts of its front matter and the command for a clone."""
    facts, body = read_model_card(card)
    title, summary, rest = body.split("\n\n", 2)
    install = re.sub(r"pip install \./\S+.*", f"pip install . weights/{card.parent.name}", rest)
    return f"{title}\n\n{summary}\n\n{facts_table(card, facts)}\n\n{install}\n"


def read_model_card(card: Path) -> tuple[dict[str, Any], str]:
    """The front matter of a model card, and its text."""
    _, front_matter, body = card.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front_matter), body.strip()


def facts_table(card: Path, facts: dict[str, Any]) -> str:
    """Language, licence and size of a model."""
    languages = facts.get("language", "")
    size = sum(path.stat().st_size for path in card.parent.rglob("*.safetensors"))
    row = [
        ", ".join([languages] if isinstance(languages, str) else languages),
        facts.get("license", ""),
        f"{size / 1e6:.1f} MB",
    ]
    return table(["language", "licence", "weights"], [row])


def commands_page() -> str:
    """Every command with its help, arguments and options."""
    parts = ["# Commands", "`electra COMMAND --help` prints the same."]
    for name, command in commands(typer.main.get_command(app), "electra"):
        parts += [f"## `{name}`", command.help or ""]
        rows = [
            [f"`{label(p)}`", one_line(getattr(p, "help", None)), default(p)]
            for p in command.params
            if p.name != "help"
        ]
        if rows:
            parts.append(table(["argument or option", "meaning", "default"], rows))
    return "\n\n".join(parts) + "\n"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each command that does something, with its full name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, sub in command.commands.items():
        if not sub.hidden:
            yield from commands(sub, f"{name} {part}")


def label(parameter: Any) -> str:
    """An option's names, or an argument's."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return ", ".join(parameter.opts)


def default(parameter: Any) -> str:
    """A parameter's default, if it says something."""
    value = parameter.default
    if parameter.required:
        return "required"
    plain = (
        isinstance(value, str | int | float | Path) and not isinstance(value, bool) and value != ""
    )
    return f"`{value}`" if plain else ""


def settings_page() -> str:
    """Every setting with its default and meaning."""
    parts = [
        "# Settings",
        "Set them with `KEY=VALUE`, as in `electra pretrain toy ... optim.lr=1e-3`. "
        "[Recipes](recipes.md) shows their values in each recipe.",
    ]
    for field in dataclasses.fields(PretrainConfig):
        kind = typing.get_type_hints(PretrainConfig)[field.name]
        if dataclasses.is_dataclass(kind):
            parts += [f"## `{field.name}`", settings_table(kind, f"{field.name}.")]
    parts += [
        "## Fine-tuning",
        "Of `electra finetune` and `electra glue`.",
        settings_table(FinetuneConfig, ""),
    ]
    return "\n\n".join(parts) + "\n"


def settings_table(kind: Any, prefix: str) -> str:
    helps, defaults = field_helps(kind), dict(flatten(kind()))
    rows = [
        [f"`{prefix}{name}`", one_line(helps.get(name)), value_text(defaults[name])]
        for name in defaults
    ]
    return table(["setting", "meaning", "default"], rows)


def recipes_page() -> str:
    """The settings in which recipes differ, and a sentence about each recipe."""
    built = {name: dict(flatten(recipe.build())) for name, recipe in RECIPES.items()}
    settings = [key for key in built["toy"] if key != "name"]
    differ = [k for k in settings if len({str(values[k]) for values in built.values()}) > 1]
    same = [k for k in settings if k not in differ]
    parts = ["# Recipes", "`electra recipes NAME` prints a recipe as YAML."]
    parts.append("\n".join(f"- `{name}`: {recipe.summary}" for name, recipe in RECIPES.items()))
    parts += ["## Where they differ", recipe_table(differ, built)]
    first = {"all recipes": next(iter(built.values()))}
    parts += ["## The same in all", recipe_table(same, first)]
    return "\n\n".join(parts) + "\n"


def recipe_table(keys: list[str], built: dict[str, dict[str, Any]]) -> str:
    rows = [[f"`{key}`", *(value_text(values[key]) for values in built.values())] for key in keys]
    return table(["setting", *(f"`{name}`" if "." in name else name for name in built)], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def value_text(value: Any) -> str:
    if value == "":
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
