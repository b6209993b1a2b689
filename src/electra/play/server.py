"""Serve the page on this machine: no files, no telemetry, nothing from elsewhere."""

import errno
import os
import socket
import warnings
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from electra.errors import UserError, require
from electra.play.models import open_models
from electra.play.page import CSS, HEAD, build_page

PORT = 7860
PORTS = 20
"""Ports that are tried, from the first one on."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO_FONTS = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
ROUTES = (
    *("", "config", "theme.css", "favicon.ico", "robots.txt", "manifest.json", "app_id"),
    *("assets/", "static/", "svelte/", "startup-events", "heartbeat/"),
    *("queue/join", "queue/data", "queue/status", "cancel", "reset"),
)
"""The routes of Gradio that the page needs; a folder ends with a slash. The others upload, read
and fetch files, or keep a history."""
Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


class OnlyThePage:
    """Middleware that answers 404 for every route that the page does not need.

    With `loopback` it answers 403 to pages of other sites: their requests carry a foreign `Origin`,
    or, if their name was made to point to this machine, a foreign `Host`.
    """

    def __init__(self, app: Asgi, *, loopback: bool) -> None:
        self.app = app
        self.loopback = loopback

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":  # the server's own start and end
            await self.app(scope, receive, send)
        elif self.loopback and not is_local(scope["headers"]):
            await refuse(send, 403, b"forbidden")
        elif scope["type"] != "http" or not is_needed(scope["path"]):
            await refuse(send, 404, b"not found")
        else:
            await self.app(scope, receive, send)


async def refuse(send: Any, status: int, body: bytes) -> None:
    """Answer a request with an error."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def is_local(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether a request names this machine as its host, and as the page that sent it."""
    found = {name.lower(): value.decode("latin-1") for name, value in headers}
    host = urlsplit(f"//{found.get(b'host', '')}").hostname
    origin = urlsplit(found.get(b"origin", "http://localhost")).hostname
    return host in LOOPBACK and origin in LOOPBACK


def is_needed(path: str) -> bool:
    """Return whether the page needs a path of the server."""
    rest = path.removeprefix("/").removeprefix("gradio_api/")
    folder, slash, _ = rest.partition("/")
    return ".." not in path and (rest.rstrip("/") in ROUTES or folder + slash in ROUTES[1:])


def find_runs_folder(models: Sequence[str], runs: Path | None) -> Path | None:
    """Return the folder of the Runs tab: the given one, the one of the first run, or `runs`."""
    if runs is not None:
        if not runs.is_dir():
            raise UserError(f"There is no folder '{runs}': give --runs a folder with runs in it.")
        return runs
    for model in models:
        if (Path(model) / "metrics.jsonl").is_file():
            return Path(model).resolve().parent
    return Path("runs") if Path("runs").is_dir() else None


def find_port(host: str, port: int | None) -> int:
    """Return the port if it is free; without one, the first free one."""
    for candidate in [port] if port is not None else range(PORT, PORT + PORTS):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except socket.gaierror:
                raise UserError(f"'{host}' is not an address: use 127.0.0.1 or 0.0.0.0.") from None
            except OSError as error:
                if port is not None or error.errno != errno.EADDRINUSE:
                    raise UserError(
                        f"{host} port {candidate} cannot be used ({error.strerror}): choose "
                        "another --port or --host."
                    ) from None
                continue
            return candidate
    raise UserError(f"The ports {PORT} to {PORT + PORTS - 1} are in use: choose a --port.")


def serve(
    models: Sequence[str],
    *,
    host: str = LOOPBACK[0],
    port: int | None = None,
    runs: Path | None = None,
    device: str | None = None,
    open_browser: bool = False,
    wait: bool = True,
) -> tuple[Any, str]:
    """Start the server; returns the page and its address, at once only without `wait`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    gr = require("gradio", "play")
    port = find_port(host, port)
    folder = find_runs_folder(models, runs)
    page = build_page(open_models(models, device), folder)
    if host not in LOOPBACK:
        warnings.warn(
            f"Anyone who can reach {host} can use the page: there is no password.", stacklevel=2
        )
    from starlette.middleware import Middleware

    theme = gr.themes.Default(primary_hue="blue", font=FONTS, font_mono=MONO_FONTS)
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        inbrowser=open_browser,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        max_file_size=1,
        enable_monitoring=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        theme=theme,
        css=CSS,
        head=HEAD,
        app_kwargs={
            "middleware": [Middleware(OnlyThePage, loopback=host in LOOPBACK)],
            "docs_url": None,
            "redoc_url": None,
        },
    )
    print(f"Open {address} in a browser; Ctrl-C stops.", flush=True)
    if wait:
        page.block_thread()
    return page, address
