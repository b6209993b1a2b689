"""Hugging Face folders: a network as `config.json` + `model.safetensors`, for transformers.

Written and read with safetensors alone; transformers is not needed for either.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.errors import UserError
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Encoder, EncoderConfig
from electra.text.tokenizer import Vocabulary, load_tokenizer, special_names, vocabulary

EMBEDDINGS = {
    "token.weight": "word_embeddings.weight",
    "position.weight": "position_embeddings.weight",
    "segment.weight": "token_type_embeddings.weight",
    "norm.weight": "LayerNorm.weight",
    "norm.bias": "LayerNorm.bias",
}
LAYER = {
    "out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up_proj": "intermediate.dense",
    "down_proj": "output.dense",
    "output_norm": "output.LayerNorm",
}
DISCRIMINATOR_HEAD = {
    "dense": "discriminator_predictions.dense",
    "score": "discriminator_predictions.dense_prediction",
}
GENERATOR_HEAD = {"dense": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm"}
PARTS = ("weight", "bias")
BODY = "electra."
"""What the names of the encoder's tensors begin with in each class that has a head."""
TOKEN_TABLE = f"{BODY}embeddings.{EMBEDDINGS['token.weight']}"
N = TypeVar("N", Generator, Discriminator)


def export(network: Generator | Discriminator, folder: Path, pad_id: int) -> None:
    """Write one network; padded rows of the vocabulary stay behind."""
    kind = "ElectraForMaskedLM" if isinstance(network, Generator) else "ElectraForPreTraining"
    config = network.encoder.config
    write_model(
        folder,
        _named_tensors(network),
        transformers_config(config, kind, pad_id),
        config.vocab_size,
    )


def write_model(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], config: dict[str, Any], vocab_size: int
) -> None:
    """Write `model.safetensors` and `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for theirs, ours in tensors:
        tensor = ours.detach()
        if theirs.endswith(("word_embeddings.weight", "generator_lm_head.bias")):
            tensor = tensor[:vocab_size]
        weights[theirs] = tensor.cpu().clone()  # in memory of its own, which parts of ours share
    save_tensors(folder / "model.safetensors", weights)
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors in a file that others may read as they may any new file of ours."""
    path.touch()
    mode = path.stat().st_mode
    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(here, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors takes a private temporary file, and its mode stays


def transformers_config(config: EncoderConfig, kind: str, pad_id: int) -> dict[str, Any]:
    """The `ElectraConfig` of a network that transformers' class `kind` loads."""
    return {
        "architectures": [kind],
        "model_type": "electra",
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.head_count,
        "intermediate_size": config.feed_forward_width,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": 2,
        "initializer_range": config.init_std,
        "layer_norm_eps": 1e-12,
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def load_discriminator(folder: Path) -> Discriminator:
    """A discriminator from a folder of the ecosystem, ours or another's."""
    return _fill(Discriminator(Encoder(read_config(folder))), folder)


def load_encoder(folder: Path) -> Encoder:
    """The encoder alone, whatever head is on it."""
    encoder = Encoder(read_config(folder))
    weights = read_weights(folder)
    body = {name: tensor for name, tensor in weights.items() if name.startswith(BODY)}
    copy_weights(folder, body, dict(named_encoder(encoder)), "an ELECTRA")
    return encoder.eval()


def load_generator(folder: Path) -> Generator:
    """A generator from a folder of the ecosystem, ours or another's."""
    return _fill(Generator(Encoder(read_config(folder))), folder)


def load_tokenizer_and_vocab(folder: Path) -> tuple[Tokenizer, Vocabulary]:
    """The tokenizer of a model; one with tokens that the model does not know is refused."""
    tokenizer = load_tokenizer(folder)
    vocab, rows = vocabulary(tokenizer, special_names(folder)), read_config(folder).vocab_size
    if vocab.size > rows:
        raise UserError(
            f"The tokenizer of {folder} has {vocab.size:,} tokens and its model {rows:,}: take the "
            "tokenizer that it was trained with, or add rows to the model's table of tokens."
        )
    return tokenizer, vocab


def read_config(folder: Path) -> EncoderConfig:
    """The sizes in a `config.json`; an architecture that is not ELECTRA's is refused."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no model: there is no config.json in it.")
    try:
        c = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is not valid JSON; export or download the model again.") from None
    kind = c.get("model_type") if isinstance(c, dict) else None
    if kind != "electra":
        raise UserError(f"{folder} is a '{kind}' model, not an ELECTRA.")
    if c.get("hidden_act", "gelu") != "gelu" or c.get("layer_norm_eps", 1e-12) != 1e-12:
        raise UserError(f"{folder} is an ELECTRA with another activation or LayerNorm epsilon.")
    try:
        return EncoderConfig(
            layers=c["num_hidden_layers"],
            hidden=c["hidden_size"],
            heads=c["num_attention_heads"],
            feed_forward=c["intermediate_size"],
            embedding=c["embedding_size"],
            max_positions=c["max_position_embeddings"],
            vocab_size=c["vocab_size"],
            vocab_multiple=1,
            dropout=c["hidden_dropout_prob"],
            attention_dropout=c["attention_probs_dropout_prob"],
            init_std=c["initializer_range"],
        )
    except KeyError as missing:
        raise UserError(f"{path} has no {missing}; export or download the model again.") from None


def _fill(network: N, folder: Path) -> N:
    """Copy a folder's weights into a network; each name must be there, and none besides."""
    weights = read_weights(folder)
    output = weights.pop("generator_lm_head.weight", None)
    if output is not None and not torch.equal(output, weights.get(TOKEN_TABLE, output[:0])):
        raise UserError(
            f"{folder}: the output matrix is not the token table; we have only tied ones."
        )
    kind = f"a {type(network).__name__.lower()}"
    copy_weights(folder, weights, dict(_named_tensors(network)), kind)
    return network.eval()


def by_new_name(name: str) -> str:
    """LayerNorm's tensors as they are called today: TensorFlow's names are in older files still."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of `model.safetensors`, under transformers' names."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{folder} has no model.safetensors; weights in pickle form (.bin, .pt) are not loaded "
            "because they can run code: convert them to safetensors first."
        )
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} is damaged or may not be read ({error}); export or download it again."
        ) from None
    weights = {by_new_name(name): tensor for name, tensor in weights.items()}
    if not any(name.startswith(BODY) for name in weights):  # ElectraModel alone, without a head
        weights = {f"{BODY}{name}": tensor for name, tensor in weights.items()}
    # A buffer that some versions of transformers write
    weights.pop("electra.embeddings.position_ids", None)
    return weights


def copy_weights(
    folder: Path, weights: dict[str, Tensor], wanted: dict[str, Tensor], kind: str
) -> None:
    """Copy tensors into those that are wanted; the names must be the same, and the shapes."""
    path = folder / "model.safetensors"
    missing, unknown = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    if missing or unknown:
        lists = {"missing": sorted(missing), "unexpected": sorted(unknown)}
        differing = "; ".join(f"{w} {n[0]} and {len(n) - 1} more" for w, n in lists.items() if n)
        raise UserError(
            f"{path} is not the weights of {kind} ({differing}): name a run or folder that has one."
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            if parameter.shape != weights[name].shape:
                raise UserError(f"{path}: {name} does not have the shape that config.json states.")
            parameter.copy_(weights[name])


def _named_tensors(network: Generator | Discriminator) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under transformers' name; views into ours, so that they serve both ways."""
    yield from named_encoder(network.encoder)
    if isinstance(network, Generator):
        yield "generator_lm_head.bias", network.bias
    head = GENERATOR_HEAD if isinstance(network, Generator) else DISCRIMINATOR_HEAD
    for ours, theirs in head.items():
        yield from named_linear(theirs, network.get_submodule(ours))


def named_encoder(encoder: Encoder) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an encoder, likewise."""
    for ours, theirs in EMBEDDINGS.items():
        yield f"electra.embeddings.{theirs}", encoder.embeddings.get_parameter(ours)
    if not isinstance(encoder.embedding_proj, nn.Identity):
        yield from named_linear("electra.embeddings_project", encoder.embedding_proj)
    for i, layer in enumerate(encoder.layers):
        path = f"electra.encoder.layer.{i}"
        for part in PARTS:
            fused = layer.get_parameter(f"qkv.{part}").chunk(3)
            for theirs, tensor in zip(("query", "key", "value"), fused, strict=True):
                yield f"{path}.attention.self.{theirs}.{part}", tensor
        for ours, theirs in LAYER.items():
            yield from named_linear(f"{path}.{theirs}", layer.get_submodule(ours))


def named_linear(path: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The two tensors of a linear layer or a norm."""
    for part in PARTS:
        yield f"{path}.{part}", module.get_parameter(part)
