"""The server: loopback, no files, no telemetry; free ports and folders of runs."""

import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.play.server import find_port, find_runs_folder, is_local, is_needed, serve


@pytest.fixture(scope="module")
def address(finished):
    pytest.importorskip("gradio")
    page, address = serve([str(finished)], device="cpu", wait=False)
    yield address
    page.close()


def status(url: str, data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_what_the_page_needs_is_served(address):
    secret = Path(__file__).resolve()
    assert address.startswith("http://127.0.0.1:")
    assert status(address) == 200
    assert status(f"{address}config") == 200
    for route in ("gradio_api/file=", "file=", "gradio_api/file/", "static/../", "file%3D"):
        assert status(f"{address}{route}{secret}") == 404, route
    for route in ("upload", "component_server", "process_recording", "run/predict", "vibe-edit/"):
        assert status(f"{address}gradio_api/{route}", b"{}") == 404, route
    for route in ("info", "openapi.json", "run-history/records", "monitoring", "proxy=http://x"):
        assert status(f"{address}gradio_api/{route}") == 404, route


def test_nothing_is_loaded_from_elsewhere(address):
    """No font, style or script of another host; links that one may click are allowed."""
    import re

    for route in ("", "theme.css"):
        text = urllib.request.urlopen(address + route, timeout=10).read().decode()
        assert "fonts.googleapis" not in text
        loaded = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)"', text)
        assert not [url for url in loaded if not url.startswith(address)]
        assert not re.findall(r"url\(['\"]?https?:", text)


def test_telemetry_is_off(address):
    from gradio import analytics

    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert not analytics.analytics_enabled()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] in ("1", "True")


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/", True),
        ("/config", True),
        ("/config/", True),
        ("/assets/a/b.js", True),
        ("/gradio_api/queue/join", True),
        ("/gradio_api/heartbeat/abc", True),
        ("/gradio_api/queue/other", False),
        ("/assets/../file=/etc/passwd", False),
        ("/gradio_api/upload", False),
        ("/configuration", False),
        ("//upload", False),
    ],
)
def test_routes(path, needed):
    assert is_needed(path) is needed


def test_another_host_is_warned_of(finished):
    pytest.importorskip("gradio")
    with pytest.warns(UserWarning, match=r"Anyone who can reach 0\.0\.0\.0 can use the page"):
        page, _ = serve([str(finished)], host="0.0.0.0", device="cpu", wait=False)
    page.close()


def test_ports():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1 port {port} cannot be used"):
            find_port("127.0.0.1", port)
    assert find_port("127.0.0.1", port) == port
    with pytest.raises(UserError, match="is not an address"):
        find_port("no such host", None)
    with pytest.raises(UserError, match="cannot be used"):
        find_port("203.0.113.1", None)  # nobody's


def test_the_folder_of_runs(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_runs_folder([], None) is None
    assert find_runs_folder([str(finished)], None) == finished.parent.resolve()
    (tmp_path / "runs").mkdir()
    assert find_runs_folder(["google/electra"], None) == Path("runs")
    assert find_runs_folder([str(finished)], tmp_path) == tmp_path
    with pytest.raises(UserError, match="no folder 'nowhere'"):
        find_runs_folder([], Path("nowhere"))


def test_pages_of_other_sites_are_refused(address):
    """Neither by a request from another page nor by a name that was made to point here."""

    def answer(**headers: str) -> int:
        try:
            request = urllib.request.Request(f"{address}config", headers=headers)
            return int(urllib.request.urlopen(request, timeout=10).status)
        except urllib.error.HTTPError as error:
            return error.code

    port = address.rstrip("/").rpartition(":")[2]
    assert answer(Host=f"localhost:{port}", Origin=f"http://localhost:{port}") == 200
    assert answer(Host="example.org") == 403
    assert answer(Origin="http://example.org") == 403
    assert answer(Origin="null") == 403


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:7860", True),
        ("localhost", True),
        ("[::1]:7860", True),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host, local):
    assert is_local([(b"host", host.encode())]) is local
