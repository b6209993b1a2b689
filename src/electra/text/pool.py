"""A pool of worker processes that work on chunks.

Unlike `multiprocessing.Pool` it keeps few chunks in memory and notices when a worker is killed.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from electra.errors import UserError

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def run_worker(pipe: Connection) -> None:
    """Receive the work to do, then do it on the chunks that follow until the pipe closes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process, one core
    # If the main process is killed, the pipe can fail in several ways: exit silently.
    with suppress(EOFError, OSError):
        work = pipe.recv()()
        while True:
            chunk = pipe.recv()
            result: Any
            try:
                result = work(chunk)
            except (OSError, MemoryError) as error:
                result = error
            pipe.send(result)


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Ignore Ctrl-C. Processes started inside inherit this and never see it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers, and only it gets the signal
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class WorkerPool(Generic[Chunk, Result]):
    """Worker processes, each with the function that `build` returns there; leaving ends them."""

    def __init__(self, build: Callable[[], Callable[[Chunk], Result]], workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.build = build
        self.free: list[Connection] = []
        self.busy: list[Connection] = []
        self.processes: list[Any] = []
        with ignore_sigint():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=run_worker, args=(there,), daemon=True)
                process.start()
                there.close()
                self.free.append(here)
                self.processes.append(process)

    def __enter__(self) -> "WorkerPool[Chunk, Result]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (*self.free, *self.busy):
            pipe.close()
        for process in self.processes:
            if error is not None:
                process.terminate()
            process.join()

    def map(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield results as they become ready; at most one chunk waits for a free worker."""
        # Sent here and not as an argument of the process: a child that is still reading its
        # arguments prints a traceback if this process is killed. Small arguments are read at once.
        for pipe in self.free:
            send(pipe, self.build)
        for chunk in chunks:
            if not self.free:
                yield from self.collect()
            pipe = self.free.pop()
            send(pipe, chunk)
            self.busy.append(pipe)
        while self.busy:
            yield from self.collect()

    def collect(self) -> Iterator[Result]:
        """Wait for at least one worker and yield the results of all that are ready."""
        for pipe in wait(self.busy):
            assert isinstance(pipe, Connection)
            try:
                result = pipe.recv()
            except (EOFError, OSError):
                raise worker_died() from None
            self.busy.remove(pipe)
            self.free.append(pipe)
            if isinstance(result, BaseException):
                raise result
            yield result


def send(pipe: Connection, message: Any) -> None:
    """Send a message to a worker."""
    try:
        pipe.send(message)
    except OSError:
        raise worker_died() from None


def worker_died() -> UserError:
    """Return the error for a worker that was killed."""
    return UserError(
        "A worker process ended unexpectedly, most often because memory ran out: run the same "
        "command again with fewer --workers; it resumes where it stopped."
    )
