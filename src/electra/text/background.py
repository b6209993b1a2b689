"""Work that goes on in threads while a run trains."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundWork(Generic[T]):
    """Calls a function for each of many items; the first error ends the work.

    The threads are daemons, so that a process can end before its work is done.
    """

    def __init__(
        self,
        work: Callable[[T], None],
        items: Iterable[T],
        threads: int = 1,
        during: AbstractContextManager[None] | None = None,
    ) -> None:
        """`during` is entered before the first item and left after the last one."""
        self.work = work
        self.items: Iterator[T] = iter(items)
        self.threads = threads
        self.during = during or nullcontext()
        self.lock = Lock()
        self.error: Exception | None = None
        self.main: Thread | None = None

    def start(self) -> None:
        """Start the work, unless it was started before."""
        with self.lock:
            if self.main is None:
                self.main = Thread(target=self._start_threads, daemon=True)
                self.main.start()

    def check(self) -> None:
        """Raise the error that has ended the work, if one has."""
        if self.error is not None:
            raise self.error

    def _start_threads(self) -> None:
        try:
            with self.during:
                threads = [Thread(target=self._run, daemon=True) for _ in range(self.threads)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        except Exception as error:
            self.error = error

    def _run(self) -> None:
        while self.error is None:
            try:
                with self.lock:
                    item = next(self.items)
            except StopIteration:
                return
            try:
                self.work(item)
            except Exception as error:
                self.error = error
