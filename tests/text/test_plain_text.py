"""Chunks of plain text: order, and articles among other documents."""

import random

import pytest

from electra.text.plain_text import in_order, parse_documents, read_texts


@pytest.mark.parametrize("seed", range(5))
def test_results_come_in_the_order_of_their_numbers(seed):
    results = [(number, [str(number)]) for number in range(20)]
    random.Random(seed).shuffle(results)
    assert [text for (text,) in in_order(results)] == [str(number) for number in range(20)]


def test_a_result_is_not_held_back():
    """What is complete is yielded before the rest is read."""

    def results():
        yield 0, ["a"]
        raise AssertionError("read too early")

    assert next(in_order(results())) == ["a"]


def test_plain_documents_stay_as_they_are():
    assert parse_documents(["one", "two\nlines"]) == ["one", "two\nlines"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_all_documents_of_all_files_in_order(size, tmp_path):
    for name in "ab":
        documents = (f"{name} {n} text" for n in range(30))
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    files = [tmp_path / "b.txt", tmp_path / "a.txt"]
    chunks = list(read_texts(files, size=size))
    assert (len(chunks) > 2) == (size == 10)
    wanted = [f"{name} {n} text" for name in "ba" for n in range(30)]
    assert [document for chunk in chunks for document in chunk] == wanted
