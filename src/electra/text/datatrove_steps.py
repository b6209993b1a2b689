"""The last steps of a datatrove pipeline: documents to shards, and the index of all shards."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from electra.errors import UserError, require
from electra.files import write_atomic
from electra.text.cluster import finish_tasks
from electra.text.layouts import Layout
from electra.text.prepare import as_user_error, check_options, one_core
from electra.text.readers import RecordCounts, clean, split_long
from electra.text.tasks import Plan, new_plan, number_chunks, run_task, task_error, with_tasks

PipelineStep: Any = require("datatrove.pipeline.base", "cluster").PipelineStep


class WriteShards(PipelineStep):  # type: ignore[misc]
    """Encode the documents of a task and write its shards, as `electra prepare` does.

    As the first step it reads `inputs`, otherwise it takes the documents of the steps before it.
    `WriteIndex` completes the folder when all tasks are done.
    """

    type = "ELECTRA"
    name = "shards"

    def __init__(
        self,
        out: str | Path,
        *,
        tokenizer: str | Path,
        length: int = 128,
        layout: Layout = "pairs",
        held_out: float = 0.01,
        seed: int = 1,
        inputs: Sequence[str | Path] = (),
        text_field: str = "text",
        tasks: int = 1,
    ) -> None:
        super().__init__()
        check_options(length, layout, None, held_out, seed, tasks)
        self.plan = new_plan(
            inputs,
            tokenizer=Path(tokenizer),
            out=Path(out).absolute(),  # a task may start in another folder
            length=length,
            layout=layout,
            held_out=held_out,
            seed=seed,
            text_field=text_field,
            tasks=tasks,
        )

    def split(self, tasks: int) -> Plan:
        """Return the plan for a number of tasks."""
        return replace(self.plan, request=with_tasks(self.plan.request, tasks))

    def run(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        """Write the shards of one task; the same task may run again at any time."""
        plan = self.split(world_size)
        counts = RecordCounts()
        chunks = (
            plan.chunks_of(rank, lambda count: None, counts)
            if data is None
            else number_chunks(texts_of(data), rank)
        )
        error = task_error(plan.folder, rank)
        try:
            with as_user_error(plan.folder), one_core(), chdir(plan.root if data is None else "."):
                for result in run_task(plan, rank, chunks, counts):
                    self.stat_update("documents", value=result.documents, unit="shard")
                    self.stat_update("tokens", value=result.tokens, unit="shard")
        except UserError as reason:
            if error.parent.is_dir():  # for the process that waits for the tasks
                write_atomic(error, str(reason).encode())
            raise


class WriteIndex(PipelineStep):  # type: ignore[misc]
    """Complete the folder of `WriteShards` with the index: one task, after all of its tasks."""

    type = "ELECTRA"
    name = "index"

    def __init__(self, shards: WriteShards, *, tasks: int) -> None:
        super().__init__()
        self.plan = shards.split(tasks)

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        """Write the index."""
        finish_tasks(self.plan)


def texts_of(documents: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of datatrove's documents: cleaned, long ones split, empty ones skipped."""
    for document in documents:
        yield from split_long(clean(document.text))
