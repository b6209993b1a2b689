"""The runs of a study: order, folders, and when one is finished."""

import shutil
from dataclasses import replace

import pytest

from electra.errors import UserError
from electra.studies.paper import find_study
from electra.studies.study import SCALES
from electra.studies.study_run import check_run, folder_name, is_finished, plan_runs
from electra.text.shards import Shards
from electra.train.run_config import save_config


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        ("ELECTRA 15 %", "electra-15"),
        ("width 1/4", "width-1-4"),
        ("ELECTRA 6.25 %", "electra-6.25"),
        ("All-Tokens MLM 5e-4 0", "all-tokens-mlm-5e-4-0"),
        ("model.init_std=0.1  0", "model.init-std-0.1-0"),
        ("Größe 大 0", "größe-大-0"),
    ],
)
def test_folder_names(arm, name):
    assert folder_name(arm) == name


def test_every_arm_of_a_seed_comes_before_the_next_seed(tmp_path):
    study = find_study("tying", SCALES["tiny"])
    arms = tuple(replace(arm, learning_rate="1e-3") for arm in study.arms[:2])
    runs = plan_runs(
        replace(study, arms=arms), tmp_path, tmp_path / "out", [0, 7], ["optim.clip=2"]
    )
    assert [run.key for run in runs] == [(arm.name, seed) for seed in (0, 7) for arm in arms]
    assert runs[3].folder == tmp_path / "out" / "runs" / "embeddings-1e-3-7"
    for run in runs:
        assert (run.config.optim.lr, run.config.optim.clip) == (1e-3, 2)
        assert run.config.train.seed == run.seed


def test_old_studies_keep_their_folder(tmp_path):
    (tmp_path / "cells").mkdir()
    runs = plan_runs(find_study("tying", SCALES["tiny"]), tmp_path, tmp_path, [0], [])
    assert runs[0].folder == tmp_path / "cells" / "none-0"


def test_a_run_is_finished_when_its_budget_is_spent(finished, tmp_path):
    assert is_finished(finished)
    assert not is_finished(tmp_path)
    run = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    assert not is_finished(run)


def test_a_folder_of_another_study_is_refused(tiny, data_folder, tmp_path):
    study = find_study("tying", SCALES["tiny"])
    (run, *_) = plan_runs(study, data_folder, tmp_path, [0], ["data.seq_length=32"])
    shards = Shards.open(data_folder)
    check_run(run, shards)  # nothing there yet
    run.folder.mkdir(parents=True)
    save_config(tiny, run.folder)
    with pytest.raises(UserError, match="belongs to another study"):
        check_run(run, shards)
