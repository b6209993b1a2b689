"""Work in the background: everything once, the first error is kept, and nothing starts twice."""

import threading
from contextlib import contextmanager

import pytest

from electra.text.background import BackgroundWork


def test_every_item_once_whatever_the_threads():
    for threads in (1, 5):
        done = []
        work = BackgroundWork(done.append, range(100), threads)
        work.start()
        work.start()
        work.main.join(10)
        work.check()
        assert sorted(done) == list(range(100))


def test_the_first_error_ends_the_work():
    done = []

    def fail_at_three(number):
        if number == 3:
            raise ValueError("three")
        done.append(number)

    work = BackgroundWork(fail_at_three, range(100))
    work.check()
    work.start()
    work.main.join(10)
    assert done == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        work.check()


def test_an_error_of_the_context_is_kept():
    @contextmanager
    def during():
        raise OSError("no lock")
        yield

    work = BackgroundWork(print, [1], during=during())
    work.start()
    work.main.join(10)
    with pytest.raises(OSError, match="no lock"):
        work.check()


def test_it_happens_within_the_context():
    events, main = [], threading.get_ident()

    @contextmanager
    def during():
        assert threading.get_ident() != main  # may wait without holding up the run
        events.append("begin")
        yield
        events.append("end")

    work = BackgroundWork(events.append, [1, 2], during=during())
    work.start()
    work.main.join(10)
    assert events == ["begin", 1, 2, "end"]
