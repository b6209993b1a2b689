"""Import models of others: checkpoints of google-research/electra, transformers and Hub models.

Every source becomes `OUT/discriminator` and `OUT/generator`, as a checkpoint of ours has them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from electra.errors import UserError
from electra.files import new_folder
from electra.hub.electric import is_electric, mark_electric
from electra.hub.extend_vocabulary import extend_network_
from electra.hub.folders import (
    check_size,
    export,
    load_discriminator,
    load_generator,
    load_tokenizer_and_vocab,
    named_tensors,
    network_folders,
)
from electra.hub.tensor_bundle import TensorBundle, open_bundle
from electra.model_paths import find_model
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Encoder, EncoderConfig
from electra.run_dir import check_new_dir
from electra.text.extend_vocabulary import ExtendedTokenizer
from electra.text.tokenizer import (
    from_vocab_file,
    read_json,
    save_tokenizer,
    special_names,
    vocabulary,
)

SLOTS = ("/adam_m", "/adam_v")
"""Suffixes of Adam's moments; they are skipped."""
STEP = "global_step"
Network = Generator | Discriminator


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What a TensorFlow checkpoint does not say about its tokenizer."""

    vocab: Path | None = None
    """The vocabulary; None takes `vocab.txt` beside the checkpoint."""
    cased: bool = False
    keep_accents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedNetwork:
    """A network of a source, with its tokenizer."""

    network: Network
    tokenizer: Tokenizer
    special_names: dict[str, str]
    electric: bool = False


def import_model(
    sources: Sequence[str],
    out: Path,
    *,
    options: TokenizerOptions | None = None,
    heads: int = 0,
    extend: Callable[[Tokenizer], ExtendedTokenizer] | None = None,
) -> dict[str, Network]:
    """Import one or two models into a new folder; returns the networks by name.

    `extend` returns a tokenizer with more pieces, for which the networks get rows.
    `heads` are the discriminator's attention heads in a TensorFlow checkpoint; 0 means one per 64
    of the hidden size, which is what google-research/electra always uses for the generator.
    """
    check_new_dir(out)
    found: dict[str, ImportedNetwork] = {}
    for source in sources:
        prefix = find_checkpoint(source)
        if prefix is None:
            if heads or options not in (None, TokenizerOptions()):
                raise UserError(
                    f"{source} is not a TensorFlow checkpoint: leave out --vocab, --cased, "
                    "--keep-accents and --heads, which its own files decide."
                )
            networks = dict(load_folders(source))
        else:
            networks = dict(_load_checkpoint(prefix, options or TokenizerOptions(), heads))
        for name in found.keys() & networks.keys():
            raise UserError(f"Both sources have a {name}: give one source for each network.")
        found |= networks
    first, *others = (imported.tokenizer.get_vocab() for imported in found.values())
    if any(other != first for other in others):
        raise UserError(
            f"The vocabularies of {' and '.join(found)} differ: import networks that were trained "
            "together."
        )
    if extend is not None:
        extended = extend(next(iter(found.values())).tokenizer)
        for name, imported in found.items():
            extend_network_(imported.network, extended.first, [*extended.pieces.values()])
            found[name] = replace(imported, tokenizer=extended.tokenizer)
    with new_folder(out) as staging:
        write_networks(found, staging)
    return {name: imported.network for name, imported in found.items()}


def find_checkpoint(source: str) -> Path | None:
    """Return the prefix of a TensorFlow checkpoint's files; None if the source is something else.

    A source is the prefix, one of the checkpoint's files, or a folder with one checkpoint.
    """
    path = Path(source).expanduser()
    prefix = Path(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", str(path)))
    if Path(f"{prefix}.index").is_file():
        return prefix
    if prefix != path or list(path.parent.glob(f"{path.name}.data-*-of-*")):
        raise UserError(f"{prefix}.index is missing: copy all files of the checkpoint here.")
    if not path.is_dir():
        return None
    latest = path / "checkpoint"
    if latest.is_file():
        text = latest.read_text(encoding="utf-8", errors="replace")
        # The path may be that of the machine that trained it: only the name counts.
        named = re.search(r'^model_checkpoint_path: "(?:.*/)?([^/"\n]{1,60})"', text, re.M)
        if named and (path / f"{named[1]}.index").is_file():
            return path / named[1]
    prefixes = sorted(file.with_suffix("") for file in path.glob("*.index"))
    if len(prefixes) > 1:
        raise UserError(f"{path} holds several checkpoints: give one, such as {prefixes[-1]}.")
    if latest.is_file() and not prefixes:
        raise UserError(f"{path} has no .index file: copy all files of the checkpoint there.")
    return prefixes[0] if prefixes else None


def load_folders(source: str) -> Iterator[tuple[str, ImportedNetwork]]:
    """Load the networks of a run, a checkpoint of ours, a transformers folder or a Hub model."""
    for name, path in network_folders(find_model(source)).items():
        load = load_discriminator if name == "discriminator" else load_generator
        network: Network = load(path)
        tokenizer, _ = load_tokenizer_and_vocab(path)
        yield (
            name,
            ImportedNetwork(
                network=network,
                tokenizer=tokenizer,
                special_names=special_names(path),
                electric=is_electric(path),
            ),
        )


def _load_checkpoint(
    prefix: Path, options: TokenizerOptions, heads: int
) -> Iterator[tuple[str, ImportedNetwork]]:
    """Load the networks of a TensorFlow checkpoint, and its tokenizer."""
    file = options.vocab or prefix.parent / "vocab.txt"
    if not file.is_file():
        raise UserError(f"There is no vocabulary {file}: name the checkpoint's with --vocab.")
    settings = read_json(file.parent / "tokenizer_config.json")
    settings |= {"do_lower_case": False} if options.cased else {}
    settings |= {"strip_accents": False} if options.keep_accents else {}
    tokenizer = from_vocab_file(file, settings)
    size = vocabulary(tokenizer).size
    for name, network in load_tensorflow(prefix, heads).items():
        rows = network.encoder.config.vocab_size
        if size > rows:
            raise UserError(
                f"{file} has {size:,} tokens and the checkpoint {rows:,}: name the vocabulary that "
                "it was trained with by --vocab."
            )
        yield name, ImportedNetwork(network=network, tokenizer=tokenizer, special_names={})


def load_tensorflow(prefix: Path, heads: int = 0) -> dict[str, Network]:
    """Load the networks of a checkpoint of google-research/electra.

    Every tensor must be used, or be the step or one of Adam's moments of a tensor that is used.
    """
    bundle = open_bundle(prefix)
    names = bundle.entries.keys()
    networks: dict[str, Network] = {}
    used: set[str] = set()
    has_discriminator = any(name.startswith("discriminator_predictions/") for name in names)
    if has_discriminator:
        config = _sizes(bundle, "electra", "electra", heads)
        networks["discriminator"] = Discriminator(Encoder(config))
        used |= _copy(bundle, networks["discriminator"], "electra", "electra")
    if any(name.startswith("generator_predictions/") for name in names):
        # Without its own tensors the generator is the other network: tied weights, or BERT.
        own = any(name.startswith("generator/") for name in names)
        scope = "generator" if own else "electra"
        untied = f"{scope}/embeddings/word_embeddings" in names
        embeddings = scope if untied else "electra"
        config = _sizes(bundle, scope, embeddings, 0 if own else heads)
        name = "generator" if own or has_discriminator else "mlm"
        networks[name] = Generator(Encoder(config))
        used |= _copy(bundle, networks[name], scope, embeddings)
    if not networks:
        raise UserError(
            f"{prefix} is no pre-trained ELECTRA: it has neither discriminator_predictions/ nor "
            "generator_predictions/."
        )
    slots = {f"{name}{slot}" for name in used for slot in SLOTS}
    unknown = sorted(names - used - slots - {STEP})
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(
            f"{prefix} holds tensors that no ELECTRA network has ({unknown[0]}{more}): import a "
            "pre-trained checkpoint, not a fine-tuned one or one of another architecture."
        )
    return networks


def _sizes(bundle: TensorBundle, scope: str, embeddings: str, heads: int) -> EncoderConfig:
    """Infer the sizes of a network from the shapes of its tensors."""

    def shape(name: str) -> tuple[int, int]:
        found = bundle.entries[name].shape if name in bundle.entries else None
        if found is None:
            raise _missing(bundle, name)
        if len(found) != 2:
            raise UserError(f"{bundle.prefix}: {name} is not a matrix but has the shape {found}.")
        return found[0], found[1]

    vocab_size, embedding = shape(f"{embeddings}/embeddings/word_embeddings")
    layers = {
        int(match[1])
        for name in bundle.entries
        if (match := re.match(rf"{scope}/encoder/layer_(\d{{1,4}})/", name))
    }
    config = EncoderConfig(
        layers=max(layers, default=0) + 1,
        hidden=shape(f"{scope}/encoder/layer_0/attention/self/query/kernel")[0],
        heads=heads,
        feed_forward=shape(f"{scope}/encoder/layer_0/intermediate/dense/kernel")[1],
        embedding=embedding,
        max_positions=shape(f"{embeddings}/embeddings/position_embeddings")[0],
        vocab_size=vocab_size,
        vocab_multiple=1,
    )
    check_size(config, bundle.stored_bytes(), f"{bundle.prefix}.index", "its data files have")
    return config


def _copy(bundle: TensorBundle, network: Network, scope: str, embeddings: str) -> set[str]:
    """Copy a network's tensors from a checkpoint; returns their names there."""
    used = set()
    with torch.no_grad():
        for ours, parameter in named_tensors(network):
            name = tensorflow_name(ours, scope, embeddings)
            if name not in bundle.entries:
                raise _missing(bundle, name)
            # TensorFlow multiplies by the kernel from the right.
            target = parameter.T if name.endswith("/kernel") else parameter
            found = bundle.entries[name].shape
            if found != target.shape:
                raise UserError(
                    f"{bundle.prefix}: {name} has the shape {found} where the other tensors imply "
                    f"{tuple(target.shape)}."
                )
            target.copy_(torch.from_numpy(bundle.read(name).copy()))
            used.add(name)
    return used


def tensorflow_name(name: str, scope: str, embeddings: str) -> str:
    """Return google-research/electra's name of a tensor, from that of transformers.

    `scope` is the name of the encoder there, `embeddings` that of the encoder with the embeddings.
    """
    if name == "generator_lm_head.bias":
        return "generator_predictions/output_bias"
    if name.startswith("electra."):
        owner = embeddings if name.startswith("electra.embeddings.") else scope
        name = owner + name.removeprefix("electra")
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name)
    name = name.replace("dense_prediction.", "dense_1.")
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    name = name.replace("LayerNorm.bias", "LayerNorm.beta")
    name = re.sub(r"_embeddings\.weight$", "_embeddings", name)
    return re.sub(r"\.weight$", ".kernel", name).replace(".", "/")


def _missing(bundle: TensorBundle, name: str) -> UserError:
    return UserError(f"{bundle.prefix} has no {name}: it is not a complete ELECTRA checkpoint.")


def write_networks(
    networks: Mapping[str, ImportedNetwork], folder: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write each network with its tokenizer to a folder of its name."""
    for name, imported in networks.items():
        config = imported.network.encoder.config
        pad_id = vocabulary(imported.tokenizer, imported.special_names).pad
        with new_folder(folder / name) as staging:
            export(imported.network, staging, pad_id, dtype)
            if imported.electric:
                mark_electric(staging)
            save_tokenizer(
                imported.tokenizer,
                staging,
                max_length=config.max_positions,
                names=imported.special_names,
            )
