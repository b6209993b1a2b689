"""The model card of a package: Markdown with the front matter that the Hugging Face Hub reads.

A fact that neither the run nor the details give is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from electra.models.electra import Discriminator, Generator
from electra.release.details import CardDetails, ScoreTable, TextSource

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
EMBEDDINGS = (
    "The model is not trained for sentence similarity. The folder of the discriminator loads in "
    "sentence-transformers, which then averages the token states; use these vectors as features or "
    "as the start of a training with sentence-transformers, not for similarity search as they are."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a checkpoint knows about its run."""

    settings: Mapping[str, Any]
    """By `group.key`."""
    command: str
    steps: int
    tokens: int
    minutes: float
    validation: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What is known about a package without the details."""

    name: str
    module: str
    version: str
    networks: Mapping[str, Generator | Discriminator]
    electric: bool
    sha256: Mapping[str, str]
    """By path in the package."""
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
        networks_section(facts),
        use_section(facts),
        finetune_section(facts, details),
        f"## Sentence embeddings\n\n{details.embeddings.strip() or EMBEDDINGS}",
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
    results = list(model_index(facts.evaluations))
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "language": languages[0] if len(languages) == 1 else languages,
        "license": details.license.lower(),
        "datasets": list(details.datasets),
        "tags": ["electra", "replaced-token-detection", "text-encoder"],
        "model-index": [{"name": facts.name, "results": results}] if results else [],
    }
    known = {key: value for key, value in values.items() if value}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def model_index(tables: list[ScoreTable]) -> Iterator[dict[str, Any]]:
    """One result for each task of each table: the median over the seeds."""
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
                "task": {"type": "text-classification" if task in GLUE_NAMES else "other"},
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
        f"usual architecture, version {facts.version}. The weights are stored in fp16; `electra` "
        "and `transformers` load them in fp32."
    )
    return "\n".join([about, "", *lines])


def use_section(facts: CardFacts) -> str:
    """Commands and code that use the model as it is."""
    name, module = facts.name, facts.module
    commands = [f"pip install ./{name}    # the folder of this card"]
    calls = [f'model = electra.load("{name}")', 'vectors = model.encode(["one text", "another"])']
    if "discriminator" in facts.networks and not facts.electric:
        commands.append(f'electra detect {name} "The old captain painted the kitchen river."')
        calls.append('model.detect("The old captain painted the kitchen river.")')
    if facts.networks.keys() & {"generator", "mlm"}:
        commands.append(f'electra fill {name} "The captain painted the [MASK]."')
    classes = {
        key: "ElectraForMaskedLM" if isinstance(network, Generator) else "ElectraForPreTraining"
        for key, network in facts.networks.items()
    }
    imported = ["AutoTokenizer", *sorted(set(classes.values()))]
    return (
        "## Use\n\nWith the package `electra`, on the command line and in Python:\n\n```bash\n"
        + "\n".join(commands)
        + "\n```\n\n```python\nimport electra\n\n"
        + "\n".join(calls)
        + "\n```\n\nWith `transformers` alone, from the same package or from a copy of its "
        f"folders:\n\n```python\nfrom transformers import {', '.join(imported)}\n\n"
        f"from {module} import PATH\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained(PATH / "{facts.encoder}")\n'
        + "\n".join(
            f'{key} = {kind}.from_pretrained(PATH / "{key}")' for key, kind in classes.items()
        )
        + "\n```"
    )


def finetune_section(facts: CardFacts, details: CardDetails) -> str:
    """How to fine-tune it here and with transformers."""
    text = (
        f"## Fine-tune\n\n```bash\nelectra finetune {facts.name} classify --data reviews.csv "
        f"--out tuned\nelectra glue {facts.name} --data glue --out scores --seeds 5\n```\n\n"
        "With `transformers`:\n\n```python\n"
        "from transformers import AutoTokenizer, ElectraForSequenceClassification\n\n"
        f"from {facts.module} import PATH\n\n"
        f'folder = PATH / "{facts.encoder}"\n'
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "model = ElectraForSequenceClassification.from_pretrained(folder, num_labels=2)\n```"
    )
    return text + (f"\n\n{details.finetuning.strip()}" if details.finetuning.strip() else "")


def scores_section(facts: CardFacts) -> str:
    """A table for each evaluation, all scores in per cent."""
    parts = []
    for table in facts.evaluations:
        lines = [
            "| task | metric | median | mean ± sd | lowest to highest | seeds |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
        ]
        for row in table.rows:
            score = {
                key: 100 * row[key] for key in ("median", "mean", "deviation", "lowest", "highest")
            }
            several = row["seeds"] > 1
            spread = f"{score['mean']:.1f} ± {score['deviation']:.1f}" if several else ""
            ends = f"{score['lowest']:.1f} to {score['highest']:.1f}" if several else ""
            failed = f", {len(row['failed'])} failed" if row["failed"] else ""
            name = GLUE_NAMES.get(row["task"], row["task"])
            lines.append(
                f"| {name} | {row['metric']} | {score['median']:.1f} | {spread} | {ends} | "
                f"{row['seeds']}{failed} |"
            )
        medians = [100 * row["median"] for row in table.rows]
        if len(medians) > 1:
            lines.append(f"| mean | | {sum(medians) / len(medians):.1f} | | | |")
        head = [f"### {table.title}"] if table.title else []
        note = [table.note.strip()] if table.note.strip() else []
        parts.append("\n\n".join([*head, *note, "\n".join(lines)]))
    return "\n\n".join(["## Scores", *parts]) if parts else ""


def data_section(details: CardDetails) -> str:
    """The training text and its licences."""
    parts = ["## Training data"]
    if details.data:
        lines = ["| source | amount | licence |", "| --- | --- | --- |"]
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
            label: str(run.settings[key])
            for label, key in RECIPE_ROWS.items()
            if run.settings.get(key) not in (None, "")
        }
        rows |= {"steps": f"{run.steps:,}", "tokens seen": f"{run.tokens:,}"}
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
        "It is an encoder: fine-tune it for a task; it does not generate text.",
        "It may reproduce biases and errors of its training text.",
        *details.limitations,
    ]
    if facts.run and (length := facts.run.settings["data.seq_length"]) < positions:
        lines.insert(1, f"It was trained on rows of {length} tokens; longer texts were never seen.")
    return "## Limitations\n\n" + "\n".join(f"- {line.strip()}" for line in lines)


def files_section(facts: CardFacts) -> str:
    """The hashes of the weights."""
    lines = [
        f"| `{facts.module}/{path}` | `{digest}` |"
        for path, digest in facts.sha256.items()
        if path.endswith(".safetensors")
    ]
    return "\n".join(["## Files", "", "| file | SHA-256 |", "| --- | --- |", *lines])
