"""Tag schemes and span F1, compared with seqeval."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.tasks.tag_schemes import (
    find_scheme,
    find_spans,
    find_violations,
    score_spans,
    to_bioes,
    to_scheme,
)

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU")
KINDS = ("PER", "LOC", "art-work")
ANY = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in KINDS)]


def sentences(tags: list[str]):
    return st.lists(st.lists(st.sampled_from(tags), max_size=9), min_size=1, max_size=6)


def pairs(tags: list[str]):
    """Gold and predicted tags of some sentences."""
    both = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), max_size=9)
    return st.lists(both, min_size=1, max_size=6).map(
        lambda rows: tuple([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    )


@settings(deadline=None)  # the first call imports seqeval
@given(sentences(ANY))
def test_spans_match_seqeval(rows):
    labels = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for tags in rows:
        theirs = {(kind, start, end + 1) for kind, start, end in labels.get_entities(tags)}
        assert find_spans(tags) == theirs


@settings(deadline=None)
@given(sentences(["O", "B", "I", "E", "S"]))
def test_untyped_spans_match_seqeval(rows):
    labels = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for tags in rows:
        theirs = {(kind, start, end + 1) for kind, start, end in labels.get_entities(tags)}
        assert find_spans(tags) == theirs


@settings(deadline=None)
@given(pairs(ANY))
def test_scores_match_seqeval(both):
    metrics = pytest.importorskip("seqeval.metrics")
    gold, predicted = both
    ours = score_spans(gold, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("precision", "recall", "f1"):
            assert ours[name] == pytest.approx(getattr(metrics, f"{name}_score")(gold, predicted))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(rows=sentences(ANY))
def test_conversion_preserves_spans(scheme, rows):
    for tags in rows:
        encoded = to_scheme(tags, scheme)
        assert find_spans(encoded) == find_spans(tags)
        assert not list(find_violations(encoded, scheme))
        assert to_scheme(to_bioes(encoded), scheme) == encoded


@pytest.mark.parametrize("scheme", SCHEMES)
@given(rows=sentences(ANY))
def test_detected_scheme_has_no_violations(scheme, rows):
    """Some tags fit several schemes; the detected one must have no violations."""
    encoded = [to_scheme(tags, scheme) for tags in rows]
    found = find_scheme(encoded)
    if not any(find_spans(tags) for tags in encoded):
        assert found is None
        return
    assert not [violation for tags in encoded for violation in find_violations(tags, found)]
    assert [find_spans(to_bioes(tags)) for tags in encoded] == [find_spans(tags) for tags in rows]


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        (["B-X I-X O B-X", "O B-Y"], "IOB2"),
        (["I-X I-X O I-X", "O I-Y B-Y"], "IOB1"),
        (["I-X I-X O I-X"], "IOB1"),
        (["B-X E-X O S-X"], "BIOES"),
        (["B-X L-X O U-X"], "BILOU"),
        (["S-X O"], "BIOES"),
        (["NOUN VERB X O"], None),
        (["O O"], None),
        (["B-X I-X NOUN"], None),
        (["B- O"], None),
        (["E-X L-X O"], None),  # ends of spans that never start
        (["B-X O", "O I-X"], "IOB2"),  # one violation in each
    ],
)
def test_find_scheme(rows, scheme):
    assert find_scheme(row.split() for row in rows) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme", "words"),
    [
        ("O I-X I-X", "IOB2", [1]),
        ("B-X I-Y I-Y", "IOB2", [1]),
        ("I-X B-X", "IOB1", []),
        ("O B-X I-Y B-X", "IOB1", [1, 3]),
        ("B-X E-X S-X", "BIOES", []),
        ("B-X O", "BIOES", [1]),
        ("O E-X", "BIOES", [1]),
        ("B-X I-Y E-Y", "BIOES", [1]),
        ("O B-X", "BIOES", [1]),
        ("S-X I-X E-X", "BIOES", [1]),
        ("B-X S-Y", "BIOES", [1]),
        ("B-X E-X", "BILOU", [1]),
        ("B-X L-X U-X", "BILOU", []),
        ("B-X NOUN S-X BI-X", "IOB2", [1, 2, 3]),
    ],
)
def test_find_violations(tags, scheme, words):
    assert [word for word, _ in find_violations(tags.split(), scheme)] == words


def test_one_mistake_does_not_change_the_detected_scheme():
    rows = [["B-X", "I-X", "O"]] * 9
    assert find_scheme([*rows, ["O", "I-X"]]) == "IOB2"
    rows = [["I-X", "I-X", "O"]] * 9
    assert find_scheme([*rows, ["O", "B-X"]]) == "IOB1"


def test_score_spans():
    gold = [["B-X", "I-X", "O", "B-Y"], ["B-X", "O"]]
    predicted = [["B-X", "I-X", "B-Y", "O"], ["B-X", "I-X"]]
    assert score_spans(gold, predicted) == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}
    )
    assert score_spans([["O"]], [["O"]])["f1"] == 0
