"""Task kinds by name; a new one is a `TaskKind` in a file of its own and a line in `KINDS`."""

from electra.finetune.kinds.base import TaskKind
from electra.finetune.kinds.choice import Choice
from electra.finetune.kinds.classify import Classify
from electra.finetune.kinds.qa import QuestionAnswering
from electra.finetune.kinds.regress import Regress
from electra.finetune.kinds.tag import Tag
from electra.hub.heads import TaskCard

KINDS: dict[str, type[TaskKind]] = {
    "classify": Classify,
    "regress": Regress,
    "choice": Choice,
    "tag": Tag,
    "qa": QuestionAnswering,
}


def make_kind(card: TaskCard) -> TaskKind:
    """The kind of a task, with the settings of its card."""
    return KINDS[card.kind](card)
