"""Shards in an object store or on a server, by fsspec, with a bounded cache on the local disk.

The order of the rows is uniform over the whole corpus, so no shard is needed sooner than another,
and a shard that is fetched for one row would be removed before its next. Therefore a run keeps a
fixed part of the shards, as many as the cache may hold, and reads single rows of all others. While
the kept ones are downloaded, their rows are read singly too, so that a run starts at once.
"""

import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from electra.errors import UserError, require
from electra.files import TEMPORARY, file_sha256, is_disk_full, locked, write_atomic
from electra.text.background import BackgroundWork
from electra.text.shards import INDEX, TOKENIZER, Shard, Shards, digest, parse_index

T = TypeVar("T")
Range = tuple[str, int, int]
"""A file, the first byte and the end."""

DELAYS = (1, 2, 4, 8, 16)
"""Seconds between the attempts to read something."""
DOWNLOADS = 4
"""Shards that are downloaded at the same time."""
PARALLEL_READS = 64
"""Reads at the same time from a store whose library is not asynchronous."""
WAIT = 5.0
"""Seconds until a cache that another run fills is asked for again."""
LASTING = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors that another attempt does not mend."""
OPTIONS = {"s3": {"config_kwargs": {"max_pool_connections": 100}}}  # 10 by default
"""Options of a file system, by protocol."""
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


def is_url(location: str) -> bool:
    """Whether this is an address for fsspec, such as s3://bucket/shards."""
    return "://" in location


def default_cache() -> Path:
    """The folder of the cache if none is set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "electra" / "shards"


def open_remote(url: str, cache: Path, cache_bytes: int) -> Shards:
    """Open shards at an address; the index and the tokenizer are copied to the cache."""
    store = Store(url)
    content = store.read(INDEX)
    index = parse_index(content, f"{store.url}/{INDEX}", store.url)
    folder = cache / digest(index)[:32]  # equal data shares a folder, whatever its address
    try:
        (folder / TOKENIZER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The cache '{cache}' cannot be written ({error.strerror}): name another folder with "
            "data.cache_dir."
        ) from None
    write_atomic(folder / INDEX, content)
    for name in TOKENIZER_FILES:
        write_atomic(folder / TOKENIZER / name, store.read(f"{TOKENIZER}/{name}"))
    shards = Shards.from_index(folder, index)
    store.check_sizes({shard.file: shard.rows * shards.row_bytes for shard in shards.shards})
    remote = RemoteFiles(store, shards, cache, cache_bytes)
    kept = [shard for shard in shards.shards if shard.file in remote.kept]
    fill = BackgroundWork(remote.keep, kept, DOWNLOADS, during=remote.filling())
    return replace(shards, remote=remote, background=fill)


def read_remote_index(url: str) -> dict[str, Any] | None:
    """Return the index at an address; None if there is none."""
    store = Store(url)
    try:
        content = store.read(INDEX)
    except MissingError:
        return None
    return parse_index(content, f"{store.url}/{INDEX}", store.url)


class MissingError(UserError):
    """There is no such file."""


class PartError(Exception):
    """A part of a file cannot be read: the file, and the error."""


class Store:
    """A folder of some file system of fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        core = require("fsspec.core", "remote")
        try:
            protocol = self.url.partition("://")[0]
            self.files, self.root = core.url_to_fs(self.url, **OPTIONS.get(protocol, {}))
        except (ImportError, ValueError) as error:
            # fsspec names the library, as in "Install s3fs to access S3"
            raise UserError(f"'{url}' cannot be opened: {error}.") from None
        self.pool = None if self.files.async_impl else ThreadPoolExecutor(PARALLEL_READS)

    def read(self, file: str) -> bytes:
        """Return the content of a small file."""
        return self.retry(file, lambda: bytes(self.files.cat_file(f"{self.root}/{file}")))

    def download(self, file: str, path: Path) -> None:
        """Copy a file to the local disk."""
        self.files.get_file(f"{self.root}/{file}", str(path))

    def read_parts(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """Read parts of files in parallel; what cannot be read is an error in the list."""
        paths = [f"{self.root}/{file}" for file, _, _ in ranges]
        begins, ends = [begin for _, begin, _ in ranges], [end for *_, end in ranges]
        if self.pool is None:
            found: list[bytes | Exception] = self.files.cat_ranges(
                paths, begins, ends, on_error="return"
            )
            return found

        def read(path: str, begin: int, end: int) -> bytes | Exception:
            try:
                return bytes(self.files.cat_file(path, begin, end))
            except Exception as error:
                return error

        return list(self.pool.map(read, paths, begins, ends))

    def check_sizes(self, expected: dict[str, int]) -> None:
        """Refuse missing files and files of the wrong size, as far as the store lists them."""
        if self.root.startswith(("http:", "https:")):
            return  # a web server lists no sizes, and asking for each file would take minutes
        entries = self.retry("", lambda: self.files.ls(self.root, detail=True))
        sizes = {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries}
        for file, size in expected.items():
            if file not in sizes:
                raise UserError(f"The shard '{self.url}/{file}' is missing: upload it again.")
            if sizes[file] != size:
                raise UserError(
                    f"The shard '{self.url}/{file}' has {sizes[file]} bytes, not {size}: upload it "
                    "again."
                )

    def retry(self, file: str, action: Callable[[], T]) -> T:
        """Return the result of an action on a file; a failure is tried again for half a minute."""
        for delay in (*DELAYS, None):
            try:
                return action()
            except UserError:
                raise
            except Exception as error:  # each library has errors of its own
                if is_disk_full(error):
                    raise
                file, cause = error.args if isinstance(error, PartError) else (file, error)
                if delay is None or isinstance(cause, LASTING):
                    raise self.explain(file, cause) from None
                time.sleep(delay * random.uniform(0.5, 1))
        raise AssertionError("the last attempt returns or raises")

    def explain(self, file: str, error: Exception) -> UserError:
        """Return the error for a file that cannot be read."""
        where = f"{self.url}/{file}"
        if isinstance(error, PermissionError):
            return UserError(
                f"'{where}' may not be read ({reason_of(error)}): check your credentials for this "
                "store."
            )
        if isinstance(error, LASTING):
            return MissingError(
                f"There is no '{where}': check the address, and whether `electra prepare` has "
                "finished and everything is uploaded."
            )
        return UserError(
            f"'{where}' cannot be read ({reason_of(error)}): check the network; a run can be "
            "continued with --resume."
        )


def reason_of(error: Exception) -> str:
    """Say what an error is in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class RemoteFiles:
    """The shards of a store, some of which are kept in a cache on the local disk."""

    def __init__(self, store: Store, shards: Shards, cache: Path, cache_bytes: int) -> None:
        self.store = store
        self.url = store.url
        self.folder = shards.folder
        self.row_bytes = shards.row_bytes
        self.cache = cache
        self.cache_bytes = cache_bytes
        self.lock = Lock()
        self.used = 0
        """Bytes of all shards in the cache, those of other corpora too."""
        self.removable: list[Path] = []
        """Shards in the cache that this run does not keep, those used last first."""
        self.full = False
        kept, total = set(), 0
        for shard in shards.shards:
            if (total := total + shard.rows * self.row_bytes) > cache_bytes:
                break
            kept.add(shard.file)
        self.kept = frozenset(kept)
        """The shards that are downloaded."""

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read parts of shards in parallel; those that fail are tried again."""
        found: dict[Range, bytes] = {}

        def read_missing() -> None:
            missing = [part for part in ranges if part not in found]
            failed: PartError | None = None
            for part, data in zip(missing, self.store.read_parts(missing), strict=True):
                file, begin, end = part
                if isinstance(data, Exception):
                    failed = PartError(file, data)
                elif len(data) != end - begin:
                    short = ValueError(f"{len(data)} bytes came instead of {end - begin}")
                    failed = PartError(file, short)
                else:
                    found[part] = data
            if failed is not None:
                raise failed

        self.store.retry(ranges[0][0], read_missing)
        return [found[part] for part in ranges]

    def keep(self, shard: Shard) -> None:
        """Verify a shard in the cache; if it is not there, or damaged, download it."""
        path, size = self.folder / shard.file, shard.rows * self.row_bytes
        if path.is_file():
            if path.stat().st_size == size and file_sha256(path) == shard.sha256:
                os.utime(path)  # what was used last is removed last
                return
            with self.lock:
                self.used -= path.stat().st_size
            path.unlink()
        if self.full or not self.free_space(size):
            return
        temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")

        def download() -> None:
            self.folder.mkdir(parents=True, exist_ok=True)  # somebody may have emptied the cache
            self.store.download(shard.file, temporary)
            if file_sha256(temporary) != shard.sha256:
                raise ValueError("its hash is not that of the index")

        try:
            self.store.retry(shard.file, download)
            temporary.replace(path)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.full = True
            warnings.warn(
                f"The disk of the cache '{self.cache}' is full: the other shards are read from "
                f"{self.url} row by row.",
                stacklevel=2,
            )
        finally:
            temporary.unlink(missing_ok=True)

    def free_space(self, size: int) -> bool:
        """Remove what was not used for longest until `size` bytes fit; whether they do."""
        with self.lock:
            while self.used + size > self.cache_bytes:
                if not self.removable:
                    return False
                oldest = self.removable.pop()
                with suppress(FileNotFoundError):
                    self.used -= oldest.stat().st_size
                    oldest.unlink()
            self.used += size
            return True

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Wait until no other run fills the cache, and keep others from doing it."""
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(self.cache, "in use"))
                    break
                except UserError:
                    time.sleep(WAIT)
            for path in self.cache.glob(f"*/*.bin.*{TEMPORARY}"):  # left by a run that was killed
                with suppress(OSError):
                    path.unlink()
            cached = {path: path.stat() for path in self.cache.glob("*/*.bin")}
            self.used = sum(state.st_size for state in cached.values())
            others = [p for p in cached if p.parent != self.folder or p.name not in self.kept]
            self.removable = sorted(others, key=lambda p: -cached[p].st_mtime_ns)
            yield
