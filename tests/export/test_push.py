"""Uploads to a stand-in of the Hub on loopback, and what comes back from there."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from electra.errors import UserError
from electra.export.push import push_folder

TOKEN = "hf_made_up"


class StandIn(BaseHTTPRequestHandler):
    """As much of the Hub as uploads and downloads of small files need."""

    def answer(self, status: int, content: bytes = b"{}", headers: dict | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        hub, body = self.server, self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, b'{"error": "Invalid username or password."}')
        if parts[:3] == ["api", "repos", "create"]:
            hub.created.append(json.loads(body))
            hub.revisions.setdefault("main", {})
            return self.answer(200, json.dumps({"url": f"{hub.url}/me/electra"}).encode())
        if parts[:2] == ["api", "validate-yaml"]:
            hub.validated.append(json.loads(body))
            return self.answer(200, b'{"errors": [], "warnings": []}')
        action, revision = parts[4], parts[-1]
        if action == "branch":
            hub.revisions[revision] = {}
        if action == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.answer(200, json.dumps({"files": files}).encode())
        if action == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    assert value["encoding"] == "base64"
                    hub.revisions[revision][value["path"]] = base64.b64decode(value["content"])
            found = {"commitUrl": f"{hub.url}/me/electra/commit/1", "commitOid": "1" * 40}
            return self.answer(200, json.dumps(found).encode())
        return self.answer(200)

    def do_GET(self) -> None:
        hub, parts = self.server, self.path.partition("?")[0].strip("/").split("/")
        if "tree" in parts:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "2" * 40}
                for name, content in hub.revisions["main"].items()
            ]
            return self.answer(200, json.dumps(tree).encode())
        if parts[0] == "api":
            files = [{"rfilename": name} for name in hub.revisions["main"]]
            found = {"id": "me/electra", "sha": "1" * 40, "siblings": files}
            return self.answer(200, json.dumps(found).encode())
        content = hub.revisions["main"].get("/".join(parts[4:]))
        if content is None:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        tag = hashlib.sha256(content).hexdigest()
        return self.answer(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": "1" * 40})

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.created, server.revisions, server.validated = [], {}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def command(hub, tmp_path):
    """Run python or a command with the stand-in as the Hub, in a process of its own."""

    def run(*arguments: object, token: str = TOKEN) -> subprocess.CompletedProcess:
        here = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "OMP_NUM_THREADS": "1",
            "no_proxy": "127.0.0.1",
        }
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | here,
            capture_output=True,
            text=True,
        )

    return run


def test_both_networks_and_the_checkpoints(finished, command, hub, tmp_path):
    done = command(
        *("-m", "electra", "export", finished, "--out", "out", "--push-to-hub", "me/electra"),
        *("--private", "--checkpoints"),
    )
    assert done.returncode == 0, done.stderr
    assert hub.created[0]["name"] == "electra"
    assert hub.created[0]["organization"] == "me"
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
    out = tmp_path / "out"
    written = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert {name.split("/")[0] for name in written} == {"README.md", "discriminator", "generator"}
    assert hub.revisions["main"] == written
    assert hub.revisions.keys() == {"main", "step-00000010", "step-00000020"}
    for name in ("step-00000010", "step-00000020"):
        for network in ("discriminator", "generator"):
            weights = finished / "checkpoints" / name / network / "model.safetensors"
            assert hub.revisions[name][f"{network}/model.safetensors"] == weights.read_bytes()
    assert hub.revisions["step-00000010"] != hub.revisions["main"]
    assert "me/electra: revision step-00000010" in done.stdout
    code = "import electra; print(len(electra.load('me/electra', device='cpu').fill('a [MASK]')))"
    loaded = command("-c", code)
    assert loaded.stdout == "1\n", loaded.stderr


def test_the_card_on_the_hub_and_on_each_revision(finished, command, hub, tmp_path):
    from huggingface_hub import ModelCard

    (tmp_path / "card.yaml").write_text(
        "{language: en, license: Apache-2.0, base_model: somebody/electra, watts: 650, minutes: 60,"
        "\n evaluations: [{title: BLiMP, scores: [{task: blimp, score: 0.739}]}]}"
    )
    done = command(
        *("-m", "electra", "export", finished, "--out", "out", "--push-to-hub", "me/electra"),
        *("--checkpoints", "--card", "card.yaml"),
    )
    assert done.returncode == 0, done.stderr
    assert {each["repoType"] for each in hub.validated} == {"model"}
    cards = {name: files["README.md"].decode() for name, files in hub.revisions.items()}
    data = {name: ModelCard(text).data for name, text in cards.items()}
    for name, found in data.items():
        assert (found.language, found.license) == ("en", "apache-2.0"), name
        assert (found.base_model, found.library_name) == ("somebody/electra", "transformers")
        assert "| energy | about 0.65 kWh" in cards[name]
    assert data["main"].eval_results[0].metric_value == 0.739
    assert data["step-00000010"].eval_results is None  # the score is of the last one
    assert "| steps | 20 |" in cards["main"]
    assert "| steps | 10 |" in cards["step-00000010"]
    assert "checkpoint `step-00000010` of the run" in cards["step-00000010"]
    place = '"me/electra", subfolder="generator"'
    assert f"ElectraForMaskedLM.from_pretrained({place})" in cards["main"]
    early = f'ElectraForMaskedLM.from_pretrained({place}, revision="step-00000010")'
    assert early in cards["step-00000010"]
    assert 'electra.load("me/electra")' in cards["main"]
    assert "electra.load" not in cards["step-00000010"]


def test_without_a_login_nothing_is_written(tuned, command, hub, tmp_path):
    done = command(
        *("-m", "electra", "export", tuned, "--out", "out", "--push-to-hub", "me/electra"),
        token="hf_wrong",
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: The Hub did not accept 'me/electra': ")
    assert done.stderr.count("\n") == 1
    assert "hf auth login" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_name_that_the_hub_cannot_have_is_refused(refused, tuned, tmp_path):
    said = refused("export", tuned, "--out", tmp_path / "out", "--push-to-hub", "me/bad..name")
    assert said.startswith("error: --push-to-hub me/bad..name: Cannot have -- or .. in repo_id")
    assert said.endswith("Give a name such as me/electra-da.\n")
    assert not (tmp_path / "out").exists()


def test_options_that_do_not_go_together(refused, tuned, finished, tmp_path):
    out = ("--out", tmp_path / "out")
    assert "for --push-to-hub" in refused("export", finished, *out, "--checkpoints")
    both = ("--push-to-hub", "me/electra", "--checkpoints")
    assert "has no checkpoints" in refused("export", tuned, *out, *both)
    assert "--format transformers" in refused("export", tuned, *out, *both, "--format", "onnx")


def test_a_failed_upload_says_how_to_repeat_it(tmp_path):
    class Client:
        def upload_folder(self, **_: object) -> None:
            raise ConnectionError("The Hub is away.\nMore lines")

    with pytest.raises(UserError) as caught:
        push_folder(Client(), "me/electra", tmp_path / "my model", print)
    assert str(caught.value) == (
        f"{tmp_path}/my model is written, but not on the Hub: The Hub is away. Upload it with: "
        f"hf upload me/electra '{tmp_path}/my model'."
    )
