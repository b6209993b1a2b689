"""Worker processes of our own: few chunks in flight, and a dead worker is noticed."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from electra.errors import UserError
from electra.text.encode import Chunk, ChunkResult, Job, encode_chunk, open_encoder


def work(pipe: Connection) -> None:
    """Receive a job, then encode the chunks that come through the pipe until it closes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process, one core
    # The pipe fails in several ways when the main process is killed: leave silently.
    with suppress(EOFError, OSError):
        job = pipe.recv()
        tokenise = open_encoder(job)
        while True:
            number, documents = pipe.recv()
            result: ChunkResult | Exception
            try:
                result = encode_chunk(job, tokenise, number, documents)
            except (OSError, MemoryError) as error:
                result = error
            pipe.send(result)


@contextmanager
def deaf() -> Iterator[None]:
    """Ignore Ctrl-C for a moment: processes that are started now ignore it for good."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signals, and only it hears them
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Pool:
    """Processes that encode chunks; used as a context, which ends them."""

    def __init__(self, job: Job, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.job = job
        self.free: list[Connection] = []
        self.busy: list[Connection] = []
        self.processes: list[Any] = []
        with deaf():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=work, args=(there,), daemon=True)
                process.start()
                there.close()
                self.free.append(here)
                self.processes.append(process)

    def __enter__(self) -> "Pool":
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

    def map(self, chunks: Iterator[Chunk]) -> Iterator[ChunkResult]:
        """The outcome of each chunk, as they become ready; at most one chunk waits to be sent."""
        # The job is sent here because a process that gets it as an argument prints a traceback if
        # this process is killed before the child has read all of it.
        for pipe in self.free:
            send(pipe, self.job)
        for chunk in chunks:
            if not self.free:
                yield from self.ready()
            self.give(chunk)
        while self.busy:
            yield from self.ready()

    def give(self, chunk: Chunk) -> None:
        """Hand a chunk to a free worker."""
        pipe = self.free.pop()
        send(pipe, chunk)
        self.busy.append(pipe)

    def ready(self) -> Iterator[ChunkResult]:
        """Wait for at least one worker and take the outcomes of all that are ready."""
        for pipe in wait(self.busy):
            assert isinstance(pipe, Connection)
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                raise died() from None
            self.busy.remove(pipe)
            self.free.append(pipe)
            if isinstance(answer, BaseException):
                raise answer
            yield answer


def send(pipe: Connection, what: Job | Chunk) -> None:
    """Send something to a worker."""
    try:
        pipe.send(what)
    except OSError:
        raise died() from None


def died() -> UserError:
    """The error for a worker that was killed."""
    return UserError(
        "A worker process ended unexpectedly, most often because memory ran out: run the same "
        "command again with fewer --workers; it goes on where it stopped."
    )
