"""The `config.yaml` of a run: damaged, edited or of an earlier version, and what may change."""

import re
import shutil
import warnings
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.train.pretrain import resume, start
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig


def edit(out: Path, old: str, new: str) -> None:
    file = out / "config.yaml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_an_edited_setting_is_refused(copied, console):
    edit(copied, "lr: 0.002", "lr: 0.1")
    with pytest.raises(UserError, match=r"has optim\.lr=0\.1, but .*trained with optim\.lr=0\.002"):
        resume(copied, console)


def test_a_configuration_that_was_cut_off_is_refused(copied, console, bash):
    """Defaults would take the place of what is missing: a budget of a million steps."""
    file = copied / "config.yaml"
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole[: whole.index("\ntrain:")], encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.budget=1000000steps.*20steps") as refusal:
        resume(copied, console)
    bash(restoring(refusal))  # the advice works
    assert resume(copied, console) == 0
    shutil.rmtree(copied / "checkpoints")
    file.write_text(whole[: whole.index("\ntrain:")], encoding="utf-8")
    with pytest.raises(UserError, match="is damaged: it has no 'train'"):
        resume(copied, console)


def restoring(refusal: pytest.ExceptionInfo[UserError]) -> str:
    """The command that an error suggests."""
    return re.search(r"Restore it with '(cp .*)'\.", str(refusal.value))[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no settings"),
        (b"model:\n  layers: [1,", "is not valid YAML"),
        (b"model:\n  laye", "config.yaml"),
        (None, "is missing beside the checkpoints"),
    ],
    ids=["empty", "not YAML", "cut off in a name", "missing"],
)
def test_a_damaged_configuration_can_be_restored(content, message, copied, console, bash):
    file = copied / "config.yaml"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match=message) as refusal:
        resume(copied, console)
    assert "holds no run" not in str(refusal.value)
    bash(restoring(refusal))
    assert resume(copied, console) == 0


def test_a_missing_configuration_is_no_new_run(copied, electra, tiny, console):
    """Neither `--resume` nor a new run takes checkpoints without a `config.yaml` for nothing."""
    (copied / "config.yaml").unlink()
    code, _, problems = electra("pretrain", "--resume", "--out", copied)
    assert (code, problems.count("\n")) == (2, 1)
    assert "is missing beside the checkpoints" in problems
    with pytest.raises(UserError, match="already holds a run: add --resume"):
        start(tiny, copied, console)


def test_an_earlier_version_without_init_from_and_checkpoint_is_resumed(copied, console):
    shutil.rmtree(copied / "checkpoints")
    file = copied / "config.yaml"
    whole = file.read_text(encoding="utf-8")
    before = whole[: whole.rindex("# The trained model that")]
    assert before.rstrip().splitlines()[-1] == "  logger: none"
    for text in (before.replace("  logger:", "  track:"), before):
        file.write_text(text, encoding="utf-8")
        assert resume(copied, console) == 0
        shutil.rmtree(copied / "checkpoints")
    file.write_text(before[: before.index("  keep_best:")], encoding="utf-8")  # cut off in `train`
    with pytest.raises(UserError, match="is damaged: it has no 'init_from'"):
        resume(copied, console)


def test_settings_that_do_not_change_the_result_may_change(copied, console):
    changes = ["train.grad_accumulation=2", "train.report_every=7", "train.keep_best=false"]
    assert resume(copied, console, changes=changes) == 0
    found = read_run_config(copied).train
    assert (found.grad_accumulation, found.report_every, found.keep_best) == (2, 7, False)
    assert resume(copied, console) == 0  # the saved configuration is accepted later
    with pytest.raises(UserError, match=r"started with train\.precision=auto, not bf16"):
        resume(copied, console, changes=["train.precision=bf16"])
    assert read_run_config(copied).train == found


def test_the_recipe_does_not_undo_what_was_changed(copied, tiny, console):
    """A job that always gives the same line goes on with what an earlier resume changed."""
    assert resume(copied, console, changes=["train.keep_last=2"]) == 0
    assert resume(copied, console, base=tiny) == 0
    assert read_run_config(copied).train.keep_last == 2


def test_a_run_with_old_names_is_resumed_with_one_warning(copied, console):
    """As an earlier version wrote them, in the run and in its checkpoints."""
    back = {new: old for old, new in PretrainConfig.RENAMED_KEYS.items()}
    for file in copied.rglob("config.yaml"):
        text = file.read_text(encoding="utf-8")
        for new, old in back.items():
            new, old = new.partition(".")[2], old.partition(".")[2]
            text = re.sub(rf"^  {new}:", f"  {old}:", text, flags=re.M)
        text = text.replace("kernels: auto", "kernels: true")
        assert "  length: 32" in text
        file.write_text(text, encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert resume(copied, console) == 0
    (warning,) = [w for w in caught if w.category is FutureWarning]
    assert "'model.positions' is now 'model.max_positions'" in str(warning.message)
    assert len(str(warning.message)) < 200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_run_config(copied)  # saved with today's names
