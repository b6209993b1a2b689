"""Model folders for transformers: a network as `config.json` and `model.safetensors`.

They are written and read with safetensors; transformers is not needed.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.errors import UserError
from electra.json_types import MAX_NUMBER, parse_json
from electra.model_packages import check_files
from electra.model_paths import SUBFOLDERS
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
"""Prefix of the encoder's tensors in the classes of transformers that have a head."""
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "embedding": "embedding_size",
    "max_positions": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
RATES = {
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
}
"""Our settings and transformers' names for them in `config.json`."""
TOKEN_TABLE = f"{BODY}embeddings.{EMBEDDINGS['token.weight']}"
N = TypeVar("N", Generator, Discriminator)


def export(
    network: Generator | Discriminator,
    folder: Path,
    pad_id: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write one network, without the padding rows of its token table."""
    kind = "ElectraForMaskedLM" if isinstance(network, Generator) else "ElectraForPreTraining"
    config = network.encoder.config
    write_model(
        folder,
        named_tensors(network),
        transformers_config(config, kind, pad_id),
        config.vocab_size,
        dtype,
    )


def write_model(
    folder: Path,
    tensors: Iterable[tuple[str, Tensor]],
    config: dict[str, Any],
    vocab_size: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `model.safetensors`, in `dtype`, and `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for theirs, ours in without_padding(tensors, vocab_size):
        # safetensors refuses tensors that share memory
        weights[theirs] = ours.detach().to("cpu", dtype, copy=True)
    save_tensors(folder / "model.safetensors", weights)
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def without_padding(
    tensors: Iterable[tuple[str, Tensor]], vocab_size: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield named tensors, those with a row per token without the rows that pad them."""
    for name, tensor in tensors:
        per_token = name.endswith(("word_embeddings.weight", "generator_lm_head.bias"))
        yield name, tensor[:vocab_size] if per_token else tensor


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a file with the usual permissions."""
    path.touch()
    mode = path.stat().st_mode
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors leaves the mode of its private temporary file


def transformers_config(config: EncoderConfig, kind: str, pad_id: int) -> dict[str, Any]:
    """Return the `ElectraConfig` of a network for the transformers class `kind`."""
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
        "dtype": "float32",  # of the loaded model, also where the file is in fp16
    }


def load_discriminator(folder: Path) -> Discriminator:
    """Load a discriminator from a folder, of this project or of `ElectraForPreTraining`."""
    return load_weights_(Discriminator(build_encoder(folder)), folder)


def load_encoder(folder: Path) -> Encoder:
    """Load the encoder alone and ignore the head."""
    encoder = build_encoder(folder)
    weights = read_weights(folder)
    body = {name: tensor for name, tensor in weights.items() if name.startswith(BODY)}
    copy_weights(folder, body, dict(named_encoder(encoder)), "an ELECTRA")
    return encoder.eval()


def load_generator(folder: Path) -> Generator:
    """Load a generator from a folder, of this project or of `ElectraForMaskedLM`."""
    return load_weights_(Generator(build_encoder(folder)), folder)


def build_encoder(folder: Path) -> Encoder:
    """Build an encoder of a folder's sizes; without weights, which bound them, it is refused."""
    weights_file(folder)
    return Encoder(read_config(folder))


def load_tokenizer_and_vocab(folder: Path) -> tuple[Tokenizer, Vocabulary]:
    """Load a model's tokenizer; one with more tokens than the model is refused."""
    tokenizer = load_tokenizer(folder)
    vocab, rows = vocabulary(tokenizer, special_names(folder)), read_config(folder).vocab_size
    if vocab.size > rows:
        raise UserError(
            f"The tokenizer of {folder} has {vocab.size:,} tokens and its model {rows:,}: use the "
            "tokenizer that it was trained with, or resize the model's token embeddings."
        )
    return tokenizer, vocab


def read_config(folder: Path) -> EncoderConfig:
    """Read the sizes in a `config.json`; other architectures than ELECTRA are refused."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} has no config.json: give a folder with a model.")
    try:
        c = parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is not valid JSON; export or download the model again.") from None
    kind = c.get("model_type") if isinstance(c, dict) else None
    if kind != "electra":
        raise UserError(f"{folder} is a model of the type '{kind}': give an ELECTRA model.")
    if c.get("hidden_act", "gelu") != "gelu" or c.get("layer_norm_eps", 1e-12) != 1e-12:
        raise UserError(
            f"{folder} has another activation or LayerNorm epsilon: only hidden_act=gelu and "
            "layer_norm_eps=1e-12 are supported."
        )
    sizes = {ours: _number(path, c, theirs, int) for ours, theirs in SIZES.items()}
    rates = {ours: _number(path, c, theirs, int, float) for ours, theirs in RATES.items()}
    config = EncoderConfig(**sizes, **rates, vocab_multiple=1)
    weights = folder / "model.safetensors"
    if weights.is_file():
        check_size(config, weights.stat().st_size, path, f"{weights.name} has")
    return config


def _number(path: Path, content: dict[str, Any], name: str, *kinds: type) -> Any:
    """Return a number of a `config.json`."""
    if name not in content:
        raise UserError(f"{path} has no '{name}'; export or download the model again.")
    value = content[name]
    if type(value) not in kinds or abs(value) >= MAX_NUMBER:
        wanted = "a number" if float in kinds else "a whole number"
        raise UserError(
            f"{path}: {name}={repr(value)[:40]} is not {wanted}; export or download the model "
            "again."
        )
    return value


def check_size(config: EncoderConfig, stored: int, path: Path | str, files: str) -> None:
    """Refuse sizes for which the weights have too few bytes, before memory is allocated."""
    hidden = config.hidden
    layer = 4 * hidden * hidden + 2 * hidden * config.feed_forward_width
    tables = (config.vocab_size + config.max_positions) * config.embedding
    needed = config.layers * layer + tables
    if needed > stored:
        raise UserError(
            f"{path} describes a network of {needed:,} parameters, but {files} only {stored:,} "
            "bytes; export or download the model again."
        )


def network_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the pre-trained networks in the folder of a model, by name.

    A folder that is a network itself is called by its head: `discriminator` or `generator`.
    """
    inside = [name for name in SUBFOLDERS if (folder / name / "config.json").is_file()]
    found = {}
    for name in inside or [""]:
        path = folder / name
        read_config(path)  # refuses other architectures by their name
        names = read_tensor_names(path)
        heads = [
            h for h in ("discriminator", "generator") if f"{h}_predictions.dense.weight" in names
        ]
        if not heads:
            raise UserError(
                f"{path} has neither the head of a discriminator nor that of a generator: give a "
                "pre-trained model, not a fine-tuned one or an encoder alone."
            )
        found[heads[0] if name in ("", "model") else name] = path
    return found


def load_weights_(network: N, folder: Path) -> N:
    """Copy a folder's weights into a network; the names must match exactly.

    Rows that pad the network's token table stay as they are.
    """
    kind = f"a {type(network).__name__.lower()}"
    if (folder / "task.json").is_file():
        raise UserError(
            f"{folder} is a fine-tuned model, not {kind}: give the model that it was made from."
        )
    weights = read_weights(folder)
    output = weights.pop("generator_lm_head.weight", None)
    if output is not None and not torch.equal(output, weights.get(TOKEN_TABLE, output[:0])):
        raise UserError(
            f"{folder}: the output weights differ from the token embeddings; only tied ones "
            "are supported."
        )
    size = network.encoder.config.vocab_size
    copy_weights(folder, weights, dict(without_padding(named_tensors(network), size)), kind)
    return network.eval()


def rename_layer_norm(name: str) -> str:
    """Replace TensorFlow's names of LayerNorm tensors, which older files have."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def weights_file(folder: Path) -> Path:
    """Return the path of a folder's weights, which must be there."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{folder} has no model.safetensors; weights in pickle form (.bin, .pt) are not loaded "
            "because they can run code: convert them to safetensors first."
        )
    return path


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of `model.safetensors`, under the names of transformers."""
    path = weights_file(folder)
    check_files(folder)
    with explain_damage(path):
        weights = load_file(path)
    return {ours: weights[theirs] for ours, theirs in tensor_names(weights).items()}


def read_tensor_names(folder: Path) -> set[str]:
    """Read only the names of what `read_weights` returns."""
    path = weights_file(folder)
    with explain_damage(path), safe_open(path, "pt") as file:
        return set(tensor_names(file.keys()))


def tensor_names(stored: Iterable[str]) -> dict[str, str]:
    """Map transformers' names of the tensors to those in a file."""
    names = {rename_layer_norm(name): name for name in stored}
    if not any(name.startswith(BODY) for name in names):  # ElectraModel alone, without a head
        names = {f"{BODY}{ours}": theirs for ours, theirs in names.items()}
    # A buffer that old versions of transformers write
    names.pop("electra.embeddings.position_ids", None)
    return names


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn an error of reading a file of tensors into a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} is damaged or cannot be read ({error}); export or download it again."
        ) from None


def copy_weights(
    folder: Path, weights: dict[str, Tensor], wanted: dict[str, Tensor], kind: str
) -> None:
    """Copy tensors into those of `wanted`; names and shapes must match."""
    path = folder / "model.safetensors"
    missing, unknown = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    if missing or unknown:
        lists = {"missing": sorted(missing), "unexpected": sorted(unknown)}
        differing = "; ".join(f"{w} {n[0]} and {len(n) - 1} more" for w, n in lists.items() if n)
        raise UserError(
            f"{path} does not hold the weights of {kind} ({differing}): give a run or folder "
            "that does."
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            if parameter.shape != weights[name].shape:
                raise UserError(
                    f"{path}: {name} does not have the shape in config.json; export it again."
                )
            parameter.copy_(weights[name])


def named_tensors(network: Generator | Discriminator) -> Iterator[tuple[str, Tensor]]:
    """Yield views of all tensors under the names of transformers, for reading and writing."""
    yield from named_encoder(network.encoder)
    if isinstance(network, Generator):
        yield "generator_lm_head.bias", network.bias
    head = GENERATOR_HEAD if isinstance(network, Generator) else DISCRIMINATOR_HEAD
    for ours, theirs in head.items():
        yield from named_linear(theirs, network.get_submodule(ours))


def named_encoder(encoder: Encoder) -> Iterator[tuple[str, Tensor]]:
    """Yield views of an encoder's tensors under the names of transformers."""
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
    """Yield weight and bias of a linear layer or LayerNorm."""
    for part in PARTS:
        yield f"{path}.{part}", module.get_parameter(part)
