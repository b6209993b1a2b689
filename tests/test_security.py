"""The rules of SECURITY.md: no code from data, and locked versions with hashes."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import electra

SOURCE = Path(electra.__file__).parent
ROOT = Path(__file__).parents[1]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "torch.load", "torch.save", "np.load"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"),
    *("shutil.unpack_archive", "runpy.run_path"),
}
FORBIDDEN_METHODS = {"extractall", "extract"}
FORBIDDEN_OPTIONS = {"allow_pickle", "trust_remote_code", "shell"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def violations(text: str) -> list[str]:
    """What a source does that could run data as code, or write where data says."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [module] if module else [alias.name for alias in node.names]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            method = called.rpartition(".")[2]
            options = {keyword.arg for keyword in node.keywords} & FORBIDDEN_OPTIONS
            if called in FORBIDDEN_CALLS or ("." in called and method in FORBIDDEN_METHODS):
                found.append(called)
            found += sorted(f"{called}({option}=)" for option in options)
    return found


def test_the_source_runs_no_data_as_code():
    found = {path: violations(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    assert {str(path): bad for path, bad in found.items() if bad} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from dill import loads",
        "eval(x)",
        "torch.load(path)",
        "yaml.load(x, Loader)",
        "np.load(path)",
        "archive.extractall(out)",
        "run(x, shell=True)",
        "load_dataset(x, trust_remote_code=True)",
    ],
)
def test_the_rules_can_fail(line):
    assert violations(line)


def pins(name: str) -> dict[str, str]:
    """The pinned versions of a file, by normalized name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {re.sub(r"[-_.]+", "-", key).lower(): value for key, value in PIN.findall(text)}


def test_the_lock_has_the_pinned_versions_of_the_core():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked, known = pins("requirements-lock.txt"), pins("constraints.txt")
    for dependency in project["dependencies"]:
        name = re.split(r"[<>=~! ]", dependency)[0].lower()
        assert locked[name] == known[name], name
    assert {n: locked[n] for n in locked.keys() & known.keys()}.items() <= known.items()


def test_the_lock_has_a_hash_for_each_version_and_names_no_host():
    text = (ROOT / "requirements-lock.txt").read_text(encoding="utf-8")
    entries = re.split(r"(?m)^(?=[a-z])", text)[1:]
    assert len(entries) == len(pins("requirements-lock.txt"))
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in text
    assert "file:" not in text
