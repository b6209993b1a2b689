"""Preparation on a cluster: a real one of Ray with two nodes, and Slurm's commands as scripts."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.text.cluster import parse_options, prepare_on_cluster

psutil = pytest.importorskip("psutil")
pytest.importorskip("datatrove")

PREPARE = shlex.split("prepare files --tasks 4 --length 32 --held-out 0.1 --tokenizer")
QUICK_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Ray notices a dead node within seconds."""


@pytest.fixture
def files(make_text, tmp_path) -> Path:
    """A folder of four files of different length."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(4):
        text = make_text(100 + 20 * number, seed=number)
        (folder / f"{number}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def command(tokenizer_folder, tmp_path):
    """`electra prepare` in a process of its own, in the folder of the test."""

    def command(out: str, *options: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "electra",
                *PREPARE,
                str(tokenizer_folder),
                "--out",
                out,
                *options,
            ],
            cwd=tmp_path,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return command


def finish(process: "subprocess.Popen[str]") -> str:
    """Wait for a command that must succeed and return its standard error."""
    try:
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return err


def without_logs(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith("logs/")}


# ------------------------------------------------------------------ Ray


@pytest.fixture
def ray_nodes(monkeypatch) -> Iterator[tuple[str, list[int]]]:
    """Two nodes of Ray with one core each, as processes on loopback: address and process ids."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # all addresses are loopback
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {
        "num_cpus": 1,
        "memory": 4 << 30,
        "object_store_memory": 80 << 20,
        "node_ip_address": "127.0.0.1",
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node | {"_system_config": QUICK_CHECKS})
    try:
        nodes = [cluster.head_node, cluster.add_node(**node)]
        yield cluster.address, [n.all_processes["raylet"][0].process.pid for n in nodes]
    finally:
        left = [p for n in cluster.list_all_nodes() for p in node_processes(n)]
        cluster.shutdown()
        kill(left)


def node_processes(node) -> list["psutil.Process"]:
    """All processes of a node: its raylet, the workers, and what they have started."""
    found = []
    for info in node.all_processes.get("raylet", []):
        with suppress(psutil.NoSuchProcess):
            found += family(info.process.pid)
    return found


def family(pid: int) -> list["psutil.Process"]:
    """A process and all that descend from it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def kill(processes: list["psutil.Process"]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for_task(pid: int) -> None:
    """Wait until a node works on a task: datatrove runs it in a child of Ray's worker."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(pid).children():
                name = "".join(process.cmdline())
                if "RankWorker" in name and process.children():
                    return
        time.sleep(0.02)
    raise AssertionError("the node did not start a task")


def test_killed_node_of_ray_gives_the_local_shards(ray_nodes, command, files, tmp_path, read_files):
    for path in files.iterdir():  # a task of seconds
        path.write_text("\n\n".join([path.read_text(encoding="utf-8")] * 40), encoding="utf-8")
    address, nodes = ray_nodes
    process = command("ray", "--executor", "ray", RAY_ADDRESS=address)
    try:
        wait_for_task(nodes[1])
        kill(family(nodes[1]))
        assert not (tmp_path / "ray" / "index.json").exists()
        warnings = finish(process)
    finally:
        process.kill()
    assert "RayActorError" in warnings  # a task was lost with its node
    finish(command("local"))
    assert without_logs(read_files(tmp_path / "ray")) == read_files(tmp_path / "local")


def test_address_without_a_cluster(files, tokenizer_folder, tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(UserError, match="No Ray cluster answers at RAY_ADDRESS=127"):
            prepare_on_cluster(
                [files], cluster="ray", tasks=4, tokenizer=tokenizer_folder, out=tmp_path / "out"
            )
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ Slurm

SBATCH = """#!{python}
# Runs the tasks of a job at once and one after another, where Slurm would queue them.
import os, re, subprocess, sys
script = open(sys.argv[-1]).read()
exported = dict(re.findall(r"(RUN_OFFSET)=(\\d+)", " ".join(sys.argv)))
count = int(re.search(r"--array=0-(\\d+)", script)[1]) + 1
with open("{calls}", "a") as calls:
    print(*sys.argv[1:-1], *re.findall(r"#SBATCH (.*)", script), file=calls)
for rank in range(count):
    environment = {{"SLURM_ARRAY_TASK_ID": str(rank), "SLURM_NODELIST": "here", **exported}}
    subprocess.run(["bash", sys.argv[-1]], env=os.environ | environment, cwd="/",
                   stdout=sys.stderr, stderr=subprocess.STDOUT)
print("Submitted batch job 7")
"""


@pytest.fixture
def slurm(tmp_path) -> tuple[dict[str, str], Path]:
    """Scripts in the place of Slurm's commands: the environment, and a file with the jobs."""
    calls = tmp_path / "calls.txt"
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {
        "sbatch": SBATCH.format(python=sys.executable, calls=calls),
        "srun": '#!/bin/sh\nwhile [ "$1" != launch_pickled_pipeline ]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/sh\necho here\n",
    }
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path}, calls


def test_jobs_of_slurm_give_the_local_shards(slurm, command, files, tmp_path, read_files):
    environment, calls = slurm
    options = ["--executor", "slurm", "--workers", "3"]
    options += ["--executor-option", "time=8:00:00", "--executor-option", "partition=cpu"]
    options += ["--executor-option", 'sbatch_args={"account": "words"}']
    options += ["--executor-option", "tasks_per_job=2"]
    finish(command("slurm", *options, **environment))
    finish(command("local"))
    assert without_logs(read_files(tmp_path / "slurm")) == read_files(tmp_path / "local")
    jobs = [line for line in calls.read_text().splitlines() if "RUN_OFFSET" in line]
    assert "--array=0-1%3" in jobs[0]  # two jobs of two tasks
    assert "--array=0-0" in jobs[1]  # the index
    assert "--dependency=afterok:7" in jobs[1]
    for job in jobs:
        assert "--time=8:00:00" in job
        assert "--partition=cpu" in job
        assert "--account=words" in job


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "1:00:00"}, "SlurmPipelineExecutor needs partition: give --executor-option"),
        ({"partion": "cpu"}, "has no option 'partion': did you mean 'partition'"),
    ],
)
def test_wrong_options_of_slurm(
    slurm, files, tokenizer_folder, tmp_path, monkeypatch, options, message
):
    monkeypatch.setenv("PATH", slurm[0]["PATH"])
    out = tmp_path / "out"
    with pytest.raises(UserError, match=message):
        prepare_on_cluster(
            [files], cluster="slurm", tasks=4, options=options, tokenizer=tokenizer_folder, out=out
        )
    assert not out.exists()


def test_slurm_is_not_there(files, tokenizer_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="'sbatch' is not there"):
        prepare_on_cluster(
            [files], cluster="slurm", tasks=4, tokenizer=tokenizer_folder, out=tmp_path / "out"
        )


# ------------------------------------------------------------------ options and errors


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("time=24:00:00", {"time": "24:00:00"}),
        ("cpus_per_task=2", {"cpus_per_task": 2}),
        ('sbatch_args={"account": "a=b"}', {"sbatch_args": {"account": "a=b"}}),
        ("requeue=false", {"requeue": False}),
    ],
)
def test_options_are_parsed(text, options):
    assert parse_options([text]) == options


@pytest.mark.parametrize("text", ["time", "=8", ""])
def test_option_without_a_value(text):
    with pytest.raises(UserError, match="write KEY=VALUE"):
        parse_options([text])


@pytest.mark.parametrize("library", ["datatrove", "ray"])
def test_missing_library_names_the_extra(library, files, tokenizer_folder, tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "electra.text.datatrove_steps", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"'{library}', .* pip install 'electra.cluster.'"):
        prepare_on_cluster(
            [files], cluster="ray", tasks=4, tokenizer=tokenizer_folder, out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_pipe_is_refused(piped, tokenizer_folder, tmp_path):
    with pytest.raises(UserError, match="is a pipe, which other machines cannot read"):
        prepare_on_cluster(
            [piped(b"text")], cluster="ray", tasks=1, tokenizer=tokenizer_folder, out=tmp_path / "o"
        )
