"""Tests mirror the source: a test of train/loop.py is in tests/train/test_loop.py."""

from pathlib import Path

import electra

SOURCE, TESTS = Path(electra.__file__).parent, Path(__file__).parent
EXEMPT = {"__init__.py", "__main__.py"}
"""They have the name of their package, and the tests of its files use them."""


def test_each_source_file_has_a_test_file_of_its_name():
    files = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.name not in EXEMPT]
    assert len(files) > 100
    wanted = [path.with_name(f"test_{path.name}") for path in files]
    missing = sorted(str(path) for path in wanted if not (TESTS / path).is_file())
    assert not missing, "each source file has its tests in a file of its name"
