"""The model card of a package or an exported folder: Markdown with what the Hub reads.

A fact that neither the run nor the details give is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from electra.hub.heads import TaskCard
from electra.models.electra import Discriminator, Generator
from electra.models.heads import TaskModel
from electra.release.details import CardDetails, ScoreTable, TextSource
from electra.release.run_facts import RunFacts

Network = Generator | Discriminator | TaskModel

HUB_METRICS = {
    "matthews": "matthews_correlation",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
GLUE_NAMES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}
RECIPE_ROWS = {
    "recipe": "name",
    "objective": "objective.kind",
    "sequence length": "data.seq_length",
    "batch size": "data.batch_size",
    "peak learning rate": "optim.lr",
    "warm-up": "optim.warmup",
    "dropout": "model.dropout",
    "seed": "train.seed",
}
VALIDATION_ROWS = {
    "generator loss": "mlm_loss",
    "generator accuracy": "generator_accuracy",
    "detection loss": "detection_loss",
    "detection AUC": "auc",
}
TASK_TAGS = {
    "tag": "token-classification",
    "qa": "question-answering",
    "choice": "multiple-choice",
}
TASK_CLASSES = {
    "tag": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
    "choice": "AutoModelForMultipleChoice",
}
ENCODER_ONLY = "It is an encoder: fine-tune it for a task; it does not generate text."
EMBEDDINGS = (
    "The model is not trained for sentence similarity. The folder of the discriminator loads in "
    "sentence-transformers, which then averages the token states; use these vectors as features or "
    "as the start of a training with sentence-transformers, not for similarity search as they are."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the readers of a card get the model."""

    model: str = ""
    """What commands and `electra.load` take; empty if they do not take it."""
    install: str = ""
    """A command before all others."""
    imports: str = ""
    """A line before the Python with transformers."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """By network, the arguments of `from_pretrained`."""
    code: str = ""
    """Python for another library, in place of that with transformers."""
    library: str = "transformers"
    note: str = ""
    """A sentence about the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What is known about a model without the details."""

    name: str
    access: Access
    networks: Mapping[str, Network]
    electric: bool = False
    task: TaskCard | None = None
    """Of a fine-tuned model."""
    sha256: Mapping[str, str]
    """By path."""
    run: RunFacts | None
    evaluations: list[ScoreTable]

    @property
    def encoder(self) -> str:
        """The network to fine-tune."""
        return "discriminator" if "discriminator" in self.networks else next(iter(self.networks))


def model_card(facts: CardFacts, details: CardDetails) -> str:
    """The whole card."""
    parts = [
        f"---\n{front_matter(facts, details)}---",
        f"# {facts.name}",
        details.summary.strip(),
        task_section(facts.task) if facts.task else "",
        networks_section(facts),
        use_section(facts),
        finetune_section(facts, details),
        ""
        if facts.task
        else f"## Sentence embeddings\n\n{details.embeddings.strip() or EMBEDDINGS}",
        scores_section(facts),
        data_section(details),
        training_section(facts, details),
        limitations_section(facts, details),
        files_section(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_matter(facts: CardFacts, details: CardDetails) -> str:
    """The YAML that the Hub reads."""
    languages = [code.strip() for code in details.language.split(",") if code.strip()]
    kind = pipeline_tag(facts) if facts.task else "other"
    results = list(model_index(facts.evaluations, kind))
    values: dict[str, Any] = {
        "library_name": facts.access.library,
        "pipeline_tag": pipeline_tag(facts),
        "language": languages[0] if len(languages) == 1 else languages,
        "license": details.license.lower(),
        "base_model": details.base_model or (facts.run.base_model if facts.run else ""),
        "datasets": list(details.datasets),
        "tags": ["electra"]
        if facts.task
        else ["electra", "replaced-token-detection", "text-encoder"],
        "model-index": [{"name": facts.name, "results": results}] if results else [],
    }
    known = {key: value for key, value in values.items() if value}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def pipeline_tag(facts: CardFacts) -> str:
    """What the Hub's page files the model under."""
    if facts.task:
        return TASK_TAGS.get(facts.task.kind, "text-classification")
    return "feature-extraction"


def task_section(task: TaskCard) -> str:
    """What a fine-tuned model predicts."""
    labels = f", labels: {', '.join(task.labels[:20])}" if task.labels else ""
    more = ", …" if task.labels[20:] else ""
    return f"Fine-tuned on the task {task.name} (`{task.kind}`{labels}{more})."


def model_index(tables: list[ScoreTable], kind: str) -> Iterator[dict[str, Any]]:
    """One result for each task of each table: the median over the seeds.

    `kind` is the Hub's name of the kind of tasks that are not GLUE's.
    """
    for table in tables:
        for row in table.rows:
            task, metric = row["task"], row["metric"]
            dataset: dict[str, str] = {"type": task, "name": task}
            if task in GLUE_NAMES:
                dataset = {"type": "nyu-mll/glue", "name": f"GLUE {GLUE_NAMES[task]}"}
                dataset |= {"config": task, "split": "validation"}
            name = f"{metric}, {table.title}" if table.title else metric
            name += f", median of {row['seeds']} seeds" if row["seeds"] > 1 else ""
            yield {
                "task": {"type": "text-classification" if task in GLUE_NAMES else kind},
                "dataset": dataset,
                "metrics": [
                    {
                        "type": HUB_METRICS.get(metric, metric),
                        "value": round(row["median"], 4),
                        "name": name,
                    }
                ],
            }


def networks_section(facts: CardFacts) -> str:
    """The sizes of the networks."""
    lines = [
        "| network | parameters | layers | hidden | heads | vocabulary | positions |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, network in facts.networks.items():
        config = network.encoder.config
        millions = sum(p.numel() for p in network.parameters()) / 1e6
        lines.append(
            f"| {name} | {millions:.1f} M | {config.layers} | {config.hidden} | "
            f"{config.head_count} | {config.vocab_size:,} | {config.max_positions} |"
        )
    about = (
        "An [ELECTRA](https://openreview.net/forum?id=r1xMH1BtvB) (Clark et al., ICLR 2020) of the "
        f"usual architecture. {facts.access.note}"
    )
    return "\n".join([about.strip(), "", *lines])


def use_section(facts: CardFacts) -> str:
    """Commands and code that use the model as it is."""
    access, parts = facts.access, ["## Use"]
    if access.model:
        commands, calls = use_examples(facts)
        commands = [access.install, *commands] if access.install else commands
        parts.append("With the package `electra`, on the command line and in Python:")
        parts.append("\n".join(["```bash", *commands, "```"]))
        parts.append("\n".join(["```python", "import electra", "", *calls, "```"]))
    if access.code:
        parts.append(f"```python\n{access.code.strip()}\n```")
    elif access.folders:
        parts.append("With `transformers` alone:")
        parts.append(transformers_code(facts))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def use_examples(facts: CardFacts) -> tuple[list[str], list[str]]:
    """Commands, and lines of Python."""
    name, load = facts.access.model, f'model = electra.load("{facts.access.model}")'
    if facts.task:
        kind = {"classify": "classify", "tag": "tag"}.get(facts.task.kind)
        call = [f'model.{kind}(["one text", "another"])'] if kind and not facts.task.pairs else []
        return [f"electra predict {name} new-texts.csv"], [load, *call]
    commands, calls = [], [load, 'vectors = model.encode(["one text", "another"])']
    if "discriminator" in facts.networks and not facts.electric:
        commands.append(f'electra detect {name} "The old captain painted the kitchen river."')
        calls.append('model.detect("The old captain painted the kitchen river.")')
    if facts.networks.keys() & {"generator", "mlm"}:
        commands.append(f'electra fill {name} "The captain painted the [MASK]."')
    return commands, calls


def transformers_code(facts: CardFacts) -> str:
    """Python that loads the networks with transformers."""
    access = facts.access
    classes = {key: hub_class(facts, key) for key in access.folders}
    imported = ", ".join(["AutoTokenizer", *sorted(set(classes.values()))])
    lines = [f"from transformers import {imported}", ""]
    lines += [access.imports, ""] if access.imports else []
    lines.append(f"tokenizer = AutoTokenizer.from_pretrained({access.folders[facts.encoder]})")
    lines += [
        f"{key} = {kind}.from_pretrained({access.folders[key]})" for key, kind in classes.items()
    ]
    return "\n".join(["```python", *lines, "```"])


def hub_class(facts: CardFacts, key: str) -> str:
    """The class of transformers that loads a network."""
    if facts.task:
        return TASK_CLASSES.get(facts.task.kind, "AutoModelForSequenceClassification")
    is_mlm = isinstance(facts.networks[key], Generator)
    return "ElectraForMaskedLM" if is_mlm else "ElectraForPreTraining"


def finetune_section(facts: CardFacts, details: CardDetails) -> str:
    """How to fine-tune it here and with transformers."""
    access = facts.access
    if facts.task or access.code:
        return ""
    parts = ["## Fine-tune"]
    if access.model:
        parts.append(
            f"```bash\nelectra finetune {access.model} classify --data reviews.csv --out tuned\n"
            f"electra glue {access.model} --data glue --out scores --seeds 5\n```"
        )
    folder = access.folders[facts.encoder]
    lines = ["from transformers import AutoTokenizer, ElectraForSequenceClassification", ""]
    lines += [access.imports, ""] if access.imports else []
    lines += [
        f"tokenizer = AutoTokenizer.from_pretrained({folder})",
        f"model = ElectraForSequenceClassification.from_pretrained({folder}, num_labels=2)",
    ]
    parts += ["With `transformers`:", "\n".join(["```python", *lines, "```"])]
    parts += [details.finetuning.strip()] if details.finetuning.strip() else []
    return "\n\n".join(parts)


def scores_section(facts: CardFacts) -> str:
    """A table for each evaluation, all scores in per cent."""
    parts = []
    for table in facts.evaluations:
        head = [f"### {table.title}"] if table.title else []
        note = [table.note.strip()] if table.note.strip() else []
        parts.append("\n\n".join([*head, *note, "\n".join(score_lines(table))]))
    return "\n\n".join(["## Scores", *parts]) if parts else ""


def score_lines(table: ScoreTable) -> list[str]:
    """The lines of one evaluation; without the columns on seeds if each task has a single one."""
    several = any(row["seeds"] > 1 or row["failed"] for row in table.rows)
    heads = ["median", "mean ± sd", "lowest to highest", "seeds"] if several else ["score"]
    lines = [table_row(["task", "metric", *heads]), table_row(["---"] * 2 + ["---:"] * len(heads))]
    for row in table.rows:
        median, mean, deviation, lowest, highest = (
            f"{100 * row[key]:.1f}" for key in ("median", "mean", "deviation", "lowest", "highest")
        )
        spread = [f"{mean} ± {deviation}", f"{lowest} to {highest}"]
        failed = f", {len(row['failed'])} failed" if row["failed"] else ""
        seeds = [*(spread if row["seeds"] > 1 else ["", ""]), f"{row['seeds']}{failed}"]
        name = GLUE_NAMES.get(row["task"], row["task"])
        lines.append(table_row([name, row["metric"], median, *(seeds if several else [])]))
    medians = [100 * row["median"] for row in table.rows]
    if len(medians) > 1 and table.is_suite:
        empty = [""] * (len(heads) - 1)
        lines.append(table_row(["mean", "", f"{sum(medians) / len(medians):.1f}", *empty]))
    return lines


def table_row(cells: list[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def data_section(details: CardDetails) -> str:
    """The training text and its licences."""
    parts = ["## Training data"]
    if details.data:
        lines = ["| source | amount | licence |", "| --- | ---: | --- |"]
        lines += [
            f"| {link(source)} | {source.amount} | {source.license} |" for source in details.data
        ]
        parts.append("\n".join(lines))
    if details.data_note.strip():
        parts.append(details.data_note.strip())
    return "\n\n".join(parts) if len(parts) > 1 else ""


def link(source: TextSource) -> str:
    """The name of a source, with its address where known."""
    return f"[{source.name}]({source.url})" if source.url else source.name


def training_section(facts: CardFacts, details: CardDetails) -> str:
    """Recipe, command, hardware, time and energy."""
    run = facts.run
    rows: dict[str, str] = {}
    if run:
        rows |= {
            label: f"{value:g}" if isinstance(value := run.settings[key], float) else str(value)
            for label, key in RECIPE_ROWS.items()
            if run.settings.get(key) not in (None, "")
        }
        rows |= {"steps": f"{run.steps:,}", "tokens seen": f"{run.tokens:,}"}
        rows |= {"FLOPs": f"{run.flops:.2e}", "started from": run.base_model}
    minutes = details.minutes or (run.minutes if run else 0.0)
    rows["hardware"] = details.hardware
    rows["minutes"] = f"{minutes:.1f}" if minutes else ""
    if minutes and details.watts:
        note = f" ({details.watts_note.strip()})" if details.watts_note.strip() else ""
        rows["energy"] = (
            f"about {minutes / 60 * details.watts / 1000:.2g} kWh, estimated as "
            f"{minutes:.1f} minutes × {details.watts:.0f} W{note}"
        )
    rows["commit"] = details.commit
    if run:
        rows |= {
            f"validation: {label}": f"{run.validation[key]:.3f}"
            for label, key in VALIDATION_ROWS.items()
            if key in run.validation
        }
    lines = [f"| {label} | {value} |" for label, value in rows.items() if value]
    parts = ["## Training"]
    if lines:
        parts.append("\n".join(["| | |", "| --- | --- |", *lines]))
    command = details.command.strip()
    if command:
        parts.append(f"The command:\n\n```bash\n{command}\n```")
    elif run and run.command:
        parts.append(f"A command with the settings of the run:\n\n```bash\n{run.command}\n```")
    return "\n\n".join(parts) if len(parts) > 1 else ""


def limitations_section(facts: CardFacts, details: CardDetails) -> str:
    """What every such model cannot do, and what is known of this one."""
    positions = facts.networks[facts.encoder].encoder.config.max_positions
    lines = [
        f"At most {positions} tokens of a text are read at once.",
        *([] if facts.task else [ENCODER_ONLY]),
        "It may reproduce biases and errors of its training text.",
        *details.limitations,
    ]
    if facts.run and (length := facts.run.longest) < positions:
        lines.insert(1, f"It was trained on rows of {length} tokens; longer texts were never seen.")
    return "## Limitations\n\n" + "\n".join(f"- {line.strip()}" for line in lines)


def files_section(facts: CardFacts) -> str:
    """The hashes of the weights."""
    lines = [
        f"| `{path}` | `{digest}` |"
        for path, digest in facts.sha256.items()
        if path.endswith((".safetensors", ".onnx"))
    ]
    return "\n".join(["## Files", "", "| file | SHA-256 |", "| --- | --- |", *lines])
