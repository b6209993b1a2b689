"""The tables of old, foreign and changeable settings name settings that exist."""

from dataclasses import replace

import pytest

from electra.config import flatten, override
from electra.errors import UserError
from electra.train.settings import MAY_CHANGE_ON_RESUME, PretrainConfig

KNOWN = {key for key, _ in flatten(PretrainConfig())}


@pytest.mark.parametrize(
    "keys",
    [
        PretrainConfig.RENAMED_KEYS.values(),
        PretrainConfig.RENAMED_VALUES,
        PretrainConfig.ALIASES.values(),
        MAY_CHANGE_ON_RESUME,
    ],
    ids=["renamed", "values", "aliases", "resume"],
)
def test_every_table_names_settings_that_exist(keys):
    assert set(keys) <= KNOWN


def test_an_old_name_is_not_a_new_one():
    assert not PretrainConfig.RENAMED_KEYS.keys() & KNOWN
    assert not PretrainConfig.ALIASES.keys() & KNOWN


def test_what_defines_the_result_may_not_change():
    fixed = ("optim.lr", "data.batch_size", "objective.mask_rate", "train.seed", "train.budget")
    assert not MAY_CHANGE_ON_RESUME & {*fixed, "train.precision", "model.layers"}


@pytest.mark.parametrize(("alias", "ours"), PretrainConfig.ALIASES.items())
def test_a_name_of_another_library_is_answered_with_ours(alias, ours):
    with pytest.raises(UserError, match=f"did you mean '{ours}'"):
        override(PretrainConfig(), [f"{alias}=1"])


def test_a_batch_that_does_not_divide_names_numbers_that_do(tiny):
    with pytest.raises(UserError, match=r"8 rows .* 3 micro-batches.* 1, 2, 4 ") as refused:
        replace(tiny, train=replace(tiny.train, grad_accumulation=3))
    assert "data.batch_size" in str(refused.value)


def test_muon_and_sharded_weights_exclude_each_other(tiny):
    with pytest.raises(UserError, match=r"muon needs whole matrices.*data_parallel=ddp"):
        override(tiny, ["optim.kind=muon", "train.data_parallel=fsdp"])


def test_document_masks_and_electric_exclude_each_other(tiny):
    with pytest.raises(UserError, match=r"leave out data\.document_mask"):
        override(tiny, ["objective.kind=electric", "data.document_mask=true"])
