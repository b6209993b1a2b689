"""Serve a folder over HTTP with byte ranges and an artificial latency, like an object store.

    python benchmarks/range_server.py FOLDER --latency 0.03

prints its address and serves until it is ended.
"""

import argparse
import re
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class RangeHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of a folder, whole or in part."""

    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True

    def __init__(self, *args: object, folder: Path, latency: float) -> None:
        self.folder, self.latency = folder, latency
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send a file or a part of it."""
        time.sleep(self.latency)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            return self.answer(404, b"")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin = int(asked[1]) if asked else 0
        end = int(asked[2]) + 1 if asked and asked[2] else path.stat().st_size
        with path.open("rb") as file:
            file.seek(begin)
            self.answer(206 if asked else 200, file.read(end - begin))

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes) -> None:
        """Send a response."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class RangeServer(ThreadingHTTPServer):
    """Serves a folder at a free port of this machine."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, latency: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), partial(RangeHandler, folder=folder, latency=latency))

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up."""

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_port}"


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds per request")
    args = parser.parse_args()
    server = RangeServer(args.folder, args.latency)
    print(server.url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
