"""Prepare text on a cluster, with the executors of datatrove on Ray or Slurm."""

import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from electra.errors import UserError, nearest, require
from electra.text.layouts import Layout
from electra.text.prepare import (
    Summary,
    as_user_error,
    check_options,
    complete,
    finished_summary,
)
from electra.text.shard_writer import (
    TASKS,
    ShardWriter,
    create_folder,
    open_shard_writer,
    source_entries,
)
from electra.text.tasks import Plan, task_error, task_journal

if TYPE_CHECKING:
    from electra.text.datatrove_steps import WriteShards

Cluster = Literal["ray", "slurm"]
Launch = Callable[[], Summary | None]
LOGS = "logs"
"""The folder of datatrove's logs, statistics and marks of completed tasks."""


def prepare_on_cluster(
    inputs: Sequence[str | Path],
    *,
    cluster: Cluster,
    tasks: int,
    options: dict[str, Any] | None = None,
    workers: int | None = None,
    tokenizer: Path,
    out: Path,
    length: int = 128,
    layout: Layout = "pairs",
    held_out: float = 0.01,
    seed: int = 1,
    text_field: str = "text",
) -> Summary | None:
    """Prepare the inputs in tasks on a cluster; Slurm works on after this returns None.

    The folder is the one that `prepare` writes with as many tasks. `options` go to datatrove's
    executor.
    """
    from electra.text.datatrove_steps import WriteShards

    check_options(length, layout, workers, held_out, seed, tasks)
    shards = WriteShards(
        out,
        tokenizer=tokenizer,
        length=length,
        layout=layout,
        held_out=held_out,
        seed=seed,
        inputs=inputs,
        text_field=text_field,
        tasks=tasks,
    )
    plan = shards.plan
    if pipe := next((source.name for source in plan.sources if source.pipe), None):
        raise UserError(
            f"'{pipe}' is a pipe, which other machines cannot read: write it to a file."
        )
    launcher = {"ray": ray_launcher, "slurm": slurm_launcher}[cluster]
    launch = launcher(shards, {"workers": workers or -1} | (options or {}))
    with as_user_error(plan.folder):
        create_folder(plan.folder)
        writer = ShardWriter(plan.folder, plan.request, plan.sources)
        if writer.finished:
            return finished_summary(writer)
        (plan.folder / TASKS).mkdir(exist_ok=True)
        forget_unfinished(plan, writer)
    return launch()


def forget_unfinished(plan: Plan, writer: ShardWriter) -> None:
    """Remove datatrove's mark of completion where a task has to run again, and old errors."""
    for rank in unfinished_tasks(plan, writer):
        (plan.folder / LOGS / "shards" / "completions" / f"{rank:05}").unlink(missing_ok=True)
        task_error(plan.folder, rank).unlink(missing_ok=True)
    shutil.rmtree(plan.folder / LOGS / "index", ignore_errors=True)


def unfinished_tasks(plan: Plan, writer: ShardWriter) -> list[int]:
    """Return the tasks that have not ended, or that have read other versions of their inputs."""
    ended = {journal.path: journal.end for journal in writer.tasks if journal.end is not None}
    return [
        rank
        for rank in range(plan.tasks)
        if ended.get(task_journal(plan.folder, rank), {}).get("sources")
        != source_entries(plan.sources_of(rank))
    ]


def finish_tasks(plan: Plan) -> Summary:
    """Write the index from the journals of all tasks."""
    with (
        as_user_error(plan.folder),
        chdir(plan.root),
        open_shard_writer(plan.folder, plan.request, plan.sources) as writer,
    ):
        if writer.finished:
            return finished_summary(writer)
        if unfinished := unfinished_tasks(plan, writer):
            raise tasks_failed(plan, unfinished)
        writer.save_tokenizer(plan.job.tokenizer, plan.names)
        ends: list[dict[str, Any]] = []
        for journal in writer.tasks:
            ends.append(journal.end or {})
            for result in journal.results.values():
                writer.add_finished(result)
        complete(plan, writer)
        return replace(
            finished_summary(writer),
            already=False,
            records=sum(end["records"] for end in ends),
            empty_records=sum(end["empty_records"] for end in ends),
        )


def tasks_failed(plan: Plan, ranks: list[int]) -> UserError:
    """Return the error of the first failed task, or the list of those that have not ended."""
    for path in (task_error(plan.folder, rank) for rank in ranks):
        if path.exists():
            return UserError(path.read_text(encoding="utf-8"))
    some = ", ".join(map(str, ranks[:5])) + (" and others" if len(ranks) > 5 else "")
    return UserError(
        f"{len(ranks)} of {plan.tasks} tasks have not finished ({some}): run the same command "
        f"again, finished tasks are kept; the logs of the tasks are in '{plan.folder / LOGS}'."
    )


def new_executor(kind: str, **options: Any) -> Any:
    """Return an executor of datatrove; an option that it does not know is an error."""
    build = getattr(require("datatrove.executor", "cluster"), kind)
    known = inspect.signature(build).parameters
    if unknown := next((key for key in options if key not in known), None):
        raise UserError(
            f"datatrove's {kind} has no option '{unknown}': {nearest(unknown, list(known))}"
        )
    missing = [k for k, p in known.items() if p.default is p.empty and k not in options]
    if missing:
        raise UserError(
            f"datatrove's {kind} needs {' and '.join(missing)}: give "
            + " ".join(f"--executor-option {name}=…" for name in missing)
        )
    return build(**options)


def ray_launcher(shards: "WriteShards", options: dict[str, Any]) -> Launch:
    """Return a function that runs the tasks on Ray and waits for them."""
    ray: Any = require("ray", "cluster")
    check_ray_address(os.environ.get("RAY_ADDRESS", ""))
    plan = shards.plan
    start = time.monotonic()
    log_warnings()
    executor = new_executor(
        "RayPipelineExecutor",
        **options,
        pipeline=[shards],
        tasks=plan.tasks,
        logging_dir=str(plan.folder / LOGS / "shards"),
    )

    def launch() -> Summary:
        connected = ray.is_initialized()
        if not connected:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(log_to_driver=False, logging_level="ERROR")
        try:
            executor.run()
        finally:
            if not connected:
                ray.shutdown()
        return replace(finish_tasks(plan), seconds=time.monotonic() - start)

    return launch


def check_ray_address(address: str) -> None:
    """Refuse an address at which nothing answers; Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(
                f"No Ray cluster answers at RAY_ADDRESS={address} ({error.strerror or error}): "
                "check the address, and that the cluster runs."
            ) from None


def slurm_launcher(shards: "WriteShards", options: dict[str, Any]) -> Launch:
    """Return a function that submits the tasks, and the index after them, to Slurm."""
    from electra.text.datatrove_steps import WriteIndex

    if shutil.which("sbatch") is None:
        raise UserError("Slurm's command 'sbatch' is not there: run this on a login node of it.")
    tasks, logs = shards.plan.tasks, shards.plan.folder / LOGS
    log_warnings()
    encode = new_executor(
        "SlurmPipelineExecutor",
        **{"job_name": "electra-shards"} | options,
        pipeline=[shards],
        tasks=tasks,
        logging_dir=str(logs / "shards"),
    )
    index = new_executor(
        "SlurmPipelineExecutor",
        **options | {"job_name": "electra-index", "workers": -1, "tasks_per_job": 1},
        pipeline=[WriteIndex(shards, tasks=tasks)],
        tasks=1,
        logging_dir=str(logs / "index"),
        depends=encode,
    )

    def launch() -> None:
        try:
            index.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(f"Slurm did not take the job ({error}): check the options.") from None

    return launch


def log_warnings() -> None:
    """Keep datatrove from reporting every step on the terminal; its files have all of it."""
    logger: Any = require("datatrove.utils.logging", "cluster").logger
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}", filter=is_news)


def is_news(record: Any) -> bool:
    """Whether a warning of datatrove says more than that the folder must be shared."""
    return not record["message"].startswith("Logging directory points to a local filesystem")


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` for datatrove's executors: JSON where it is JSON, otherwise text."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(
                f"--executor-option is '{text}': write KEY=VALUE, such as time=8:00:00."
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options
