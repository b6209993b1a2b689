"""Configuration: there and back through YAML, and every way to get it wrong."""

import re
from dataclasses import dataclass, fields

import pytest

from electra.config import field_helps, flatten, from_dict, from_yaml, override, to_yaml
from electra.errors import UserError
from electra.recipes import RECIPES, recipe
from electra.train.settings import PretrainConfig


@pytest.mark.parametrize("name", RECIPES)
def test_there_and_back(name):
    config = recipe(name)
    assert config.name == name
    assert from_yaml(PretrainConfig, to_yaml(config), "x") == config


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb 'c' \"d\" 😀", "\n", "# ö: [x]", "word " * 3000, "\u2028"]
)
def test_a_text_of_any_kind_there_and_back(text):
    config = override(recipe("toy"), [f"data.folder={text}"])
    assert from_yaml(PretrainConfig, to_yaml(config), "x") == config


def test_every_setting_has_a_help():
    def kinds(config):
        yield type(config)
        for value in (getattr(config, name) for name in config.__slots__):
            if hasattr(value, "__dataclass_fields__"):
                yield from kinds(value)

    for kind in kinds(recipe("toy")):
        assert field_helps(kind).keys() == {f.name for f in fields(kind)}, kind


def test_overrides():
    config = override(
        recipe("toy"),
        [
            "model.layers=3",
            "optim.lr=1e-3",
            "train.compile=true",
            "optim.betas=0.9,0.98",
            "generator.tie=none",
            "data.batch_size=1e2",
            "train.seed=4611686018427387905",
            "model.layers=4",
        ],
    )
    assert (config.model.layers, config.optim.lr, config.train.compile) == (4, 1e-3, True)
    assert (config.optim.betas, config.generator.tie) == ((0.9, 0.98), "none")
    assert config.data.batch_size == 100
    assert config.train.seed == 4611686018427387905  # which no float is


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("optim.learning_rate=1", "'optim.learning_rate': did you mean 'optim.lr'?"),
        ("learning_rate=1", "'learning_rate': did you mean 'optim.lr'?"),
        ("max_steps=1", "did you mean 'train.budget'?"),
        ("num_hidden_layers=1", "did you mean 'model.layers'?"),
        ("optim.lrr=1", "did you mean 'optim.lr'?"),
        ("lr=1", "did you mean 'optim.lr'?"),
        ("model=3", "no setting 'model'"),
        ("foo=1", "'foo': the sections are data, generator, init_from, model, objective, optim, "),
        ("foo=1", "; 'electra recipes NAME' lists all settings."),
        (
            "optim.zzzzzzzzzzzzzzzzzz=1",
            "'optim.zzzzzzzzzzzzzzzzzz': there are: optim.betas, optim.clip, optim.clip_by, ",
        ),
        ("optim.lr=fast", "'optim.lr' takes a number, not 'fast'"),
        ("optim.lr=nan", "'optim.lr' takes a number, not 'nan'"),
        ("model.layers=2.5", "takes a whole number"),
        ("model.hidden=0", "model.hidden must be at least 1"),
        ("model.max_positions=0", "model.max_positions must be at least 1"),
        ("model.heads=-2", "model.heads must be at least 0"),
        ("model.feed_forward=-1", "model.feed_forward must be at least 0"),
        ("model.vocab_size=-1", "model.vocab_size must be at least 0"),
        ("model.init_std=0", "model.init_std must be above 0"),
        ("data.seq_length=-5", "data.seq_length must be at least 1"),
        ("optim.lr=-1", "optim.lr must be at least 0"),
        ("optim.weight_decay=inf", "'optim.weight_decay' takes a number, not 'inf'"),
        ("optim.decay_power=-1", "optim.decay_power must be at least 0"),
        ("optim.eps=0", "optim.clip and optim.eps must be above 0"),
        ("optim.betas=[0.9,1]", "optim.betas are two numbers, at least 0 and below 1"),
        ("train.seed=-1", "train.seed must be a whole number from 0"),
        ("train.seed=1e30", "train.seed must be a whole number from 0"),
        ("train.compile=maybe", "true or false"),
        ("generator.tie=some", "one of none, embeddings, all"),
        ("optim.betas=0.9", "takes 2 values"),
        ("optim.betas=0.9,0.98,0.99", "takes 2 values, not 3"),
        ("optim.lr", "write it as key=value"),
        ("train.budget=later", "is not a budget"),
        ("train.grad_accumulation=7", "does not divide into 7"),
        ("objective.mask_rate=1.5", "must be between 0 and 1"),
        ("train.keep_last=0", "must be at least 1"),
    ],
)
def test_wrong_settings_are_named(setting, sentence):
    with pytest.raises(UserError) as error:
        override(recipe("toy"), [setting])
    assert sentence in str(error.value)


def test_a_name_of_another_library_in_a_file_names_ours():
    with pytest.raises(UserError, match=r"did you mean 'optim\.lr'\?"):
        from_dict(PretrainConfig, {"optim": {"learning_rate": 1e-3}})


def test_every_alias_names_a_setting():
    known = dict(flatten(PretrainConfig()))
    last_parts = {key.rpartition(".")[2] for key in known}
    for alias, key in PretrainConfig.ALIASES.items():
        assert key in known
        assert alias not in last_parts


def test_a_batch_that_does_not_divide_suggests_ones_that_do():
    with pytest.raises(UserError, match=r"train.grad_accumulation to .*8"):
        override(recipe("paper.small"), ["train.grad_accumulation=9"])


def test_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match=r"did you mean 'paper.small'"):
        recipe("paper.smal")
    with pytest.raises(UserError, match="No such file"):
        recipe("missing.yaml")


def test_unknown_keys_of_a_file_are_refused(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(to_yaml(recipe("toy")).replace("mask_rate", "mask_rat"))
    with pytest.raises(UserError, match=r"did you mean 'objective.mask_rate'"):
        recipe(str(file))
    file.write_text("a: [")
    with pytest.raises(UserError, match="not valid YAML"):
        recipe(str(file))
    file.write_bytes(b"name: \xff")
    with pytest.raises(UserError, match="not valid YAML"):
        recipe(str(file))
    file.write_text("data:\n  batch: true\n")
    with pytest.raises(UserError, match=r"'data.batch_size' takes a whole number, not 'True'"):
        recipe(str(file))
    for betas in ("3", "", "{a: 1, b: 2}"):
        file.write_text(f"optim:\n  betas: {betas}\n")
        with pytest.raises(UserError, match=r"'optim.betas' takes 2 values"):
            recipe(str(file))


def test_flatten_names_everything():
    assert dict(flatten(recipe("paper.large")))["objective.mask_rate"] == 0.25


PAPER = {  # table 6 of the paper
    "paper.small": (12, 256, 128, 4, 0.15, 5e-4, 128, 128, "1000000steps", 1 / 4),
    "paper.base": (12, 768, 768, 12, 0.15, 2e-4, 256, 512, "766000steps", 1 / 3),
    "paper.large": (24, 1024, 1024, 16, 0.25, 2e-4, 2048, 512, "400000steps", 1 / 4),
}


@pytest.mark.parametrize("name", PAPER)
def test_hyperparameters_of_the_paper(name):
    c = recipe(name)
    m, o = c.model, c.optim
    assert PAPER[name] == (
        m.layers,
        m.hidden,
        m.embedding,
        m.head_count,
        c.objective.mask_rate,
        o.lr,
        c.data.batch_size,
        c.data.seq_length,
        c.train.budget,
        c.generator.width,
    )
    assert o.warmup == 10_000
    assert (o.eps, o.betas, o.weight_decay, o.clip) == (1e-6, (0.9, 0.999), 0.01, 1.0)
    assert (m.dropout, m.attention_dropout, m.init_std) == (0.1, 0.1, 0.02)
    assert (c.objective.generator_weight, c.objective.discriminator_weight) == (1.0, 50.0)
    assert m.feed_forward_width == 4 * m.hidden
    assert c.generator.tie == "embeddings"


# ------------------------------------------------------------------ renamed settings


def test_an_old_key_is_read_with_a_warning_that_names_the_new_one():
    with pytest.warns(FutureWarning, match=r"'train\.track' is now 'train\.logger'"):
        config = override(recipe("toy"), ["train.track=wandb"])
    assert config.train.logger == "wandb"


@pytest.mark.parametrize(
    ("old", "key", "value"),
    [
        ("model.start=neighbours", "model.init", "local"),
        ("model.init=neighbours", "model.init", "local"),
        ("train.kernels=false", "train.fused_kernels", "off"),
        ("train.kernels=true", "train.fused_kernels", "auto"),
        ("data.batch=32", "data.batch_size", 32),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_values_are_read_too(old, key, value):
    assert dict(flatten(override(recipe("toy"), [old])))[key] == value


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_renamed_setting_exists_under_its_new_name_alone():
    known = dict(flatten(recipe("toy")))
    for old, new in PretrainConfig.RENAMED_KEYS.items():
        assert new in known
        assert old not in known


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_configuration_with_old_names_reads_as_the_same_one():
    config = recipe("paper.small")
    text = to_yaml(config)
    back = {new: old for old, new in PretrainConfig.RENAMED_KEYS.items()}
    for new, old in back.items():
        text = re.sub(
            rf"^(  ){new.partition('.')[2]}:", rf"\g<1>{old.partition('.')[2]}:", text, flags=re.M
        )
    text = text.replace("kernels: auto", "kernels: true")
    assert back["objective.mask_token_prob"].partition(".")[2] + ": 0.85" in text
    assert from_yaml(PretrainConfig, text, "old.yaml") == config


def test_both_names_of_a_setting_are_refused():
    with pytest.raises(UserError, match="are the same setting"), pytest.warns(FutureWarning):
        from_dict(PretrainConfig, {"train": {"track": "wandb", "logger": "none"}})


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str = ""
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Lists:
    sources: tuple[Source, ...] = ()
    steps: tuple[int, ...] = ()


def test_lists_of_any_length_hold_groups_or_values():
    found = from_dict(Lists, {"sources": [{"name": "a"}, {"rows": "1e3"}], "steps": [1, "2"]})
    assert found == Lists(sources=(Source(name="a"), Source(rows=1000)), steps=(1, 2))
    assert from_dict(Lists, {"sources": []}) == Lists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 3}, "'steps' is a list, not '3'"),
        ({"steps": [1, "x"]}, "'steps' takes a whole number, not 'x'"),
        ({"sources": ["a"]}, "'sources' is a list of groups of settings, not of 'a'"),
        ({"sources": [{}, {"rosw": 1}]}, r"'sources\.2\.rosw': did you mean 'sources\.2\.rows'"),
    ],
)
def test_mistakes_in_lists_are_named(values, message):
    with pytest.raises(UserError, match=message):
        from_dict(Lists, values)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\n",
        "train: &t {seed: *t}\n",
        "train: {seed: 0x" + "f" * 5000 + "}\n",
        "train: {seed: " + "9" * 5000 + "}\n",
        "name: 2020-99-99\n",
        "name: " + "[" * 5000,
        "name: !!python/object/apply:os.system [true]\n",
        b"name: \xff\n",
    ],
    ids=["alias", "recursive", "hexadecimal", "digits", "date", "nested", "object", "bytes"],
)
def test_hostile_yaml_is_refused(text):
    with pytest.raises(UserError, match=r"config\.yaml is not valid YAML"):
        from_yaml(PretrainConfig, text, "config.yaml")
