"""Use a trained model from Python: `electra.load(path)`."""

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from electra.device import choose_device, choose_precision
from electra.errors import UserError
from electra.finetune.predict import Predictor, load_predictor
from electra.hub import corruption, inference
from electra.hub.corruption import CorruptedToken
from electra.hub.folders import load_discriminator, load_encoder, load_generator
from electra.hub.heads import CARD, TaskCard
from electra.hub.inference import DetectedToken, Loaded, PredictedToken, load_network
from electra.model_paths import Network, find_model, find_network
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Encoder
from electra.tasks.examples import Choice, Example, Question, Sentence, Tagged

Texts = list[str] | tuple[str, ...]
Pooling = Literal["mean", "cls"]
Array = npt.NDArray[np.float32]
Record = dict[str, Any]
METHODS = {
    "classify": "classify",
    "regress": "classify",
    "choice": "choose",
    "tag": "tag",
    "qa": "answer",
}
"""The method of `Model` for each kind of fine-tuned model."""
CHUNK = 1024
"""Texts whose token states `encode` keeps in memory at a time."""


def load(model: str | PathLike[str], device: str | torch.device | None = None) -> "Model":
    """Open a run, a checkpoint, a (fine-tuned) model folder, an installed model or a Hub model.

    `device` is `cpu`, `cuda`, `cuda:1` or `mps`; without it, a GPU where there is one.
    """
    return Model(find_model(str(model)), find_device(device))


def find_device(device: str | torch.device | None) -> torch.device:
    """Return the device with that name; None or `auto` prefers a GPU."""
    if device is None or device == "auto":
        return choose_device("auto")
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UserError(f"'{device}' is not a device: use cpu, cuda, cuda:1 or mps.") from None
    choose_device(wanted.type, "device")  # type: ignore[arg-type]
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UserError(f"There is no '{wanted}' here: use cuda:0 or cpu.")
    return wanted


class Model:
    """A trained model; each of its networks is loaded when it is first used, and kept."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        self.device = device

    def __repr__(self) -> str:
        return f"Model('{self.folder}', device='{self.device}')"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, of the library `tokenizers`."""
        return self._encoder.tokenizer

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = ...,
        *,
        convert_to_tensor: Literal[False] = ...,
    ) -> Array: ...
    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = ...,
        *,
        convert_to_tensor: Literal[True],
    ) -> Tensor: ...
    def encode(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = "mean",
        *,
        convert_to_tensor: bool = False,
    ) -> Array | Tensor:
        """Return one embedding per text: (texts, hidden), or (hidden,) for a single text.

        `mean` is the mean of the last hidden states of all tokens, `[CLS]` and `[SEP]` included,
        as in sentence-transformers; `cls` is the state of `[CLS]`.
        """
        if pooling not in ("mean", "cls"):
            raise UserError(f"There is no pooling '{pooling}': use mean or cls.")
        every = _as_list(texts)
        pooled = [
            state.mean(0) if pooling == "mean" else state[0].clone()  # a view would keep its batch
            for begin in range(0, len(every), CHUNK)
            for state in inference.encode(self._encoder, every[begin : begin + CHUNK])
        ]
        hidden = self._encoder.network.config.hidden
        found = torch.stack(pooled) if pooled else torch.empty(0, hidden, device=self.device)
        found = found[0] if isinstance(texts, str) else found
        return found if convert_to_tensor else found.cpu().numpy()

    @overload
    def encode_tokens(
        self, texts: Sequence[str], *, convert_to_tensor: Literal[False] = ...
    ) -> list[Array]: ...
    @overload
    def encode_tokens(
        self, texts: Sequence[str], *, convert_to_tensor: Literal[True]
    ) -> list[Tensor]: ...
    def encode_tokens(
        self, texts: Sequence[str], *, convert_to_tensor: bool = False
    ) -> list[Array] | list[Tensor]:
        """Return the last hidden states of each text, specials included: (tokens, hidden)."""
        states = inference.encode(self._encoder, _as_list(texts))
        return states if convert_to_tensor else [state.cpu().numpy() for state in states]

    @overload
    def detect(self, text: str) -> list[DetectedToken]: ...
    @overload
    def detect(self, text: Texts) -> list[list[DetectedToken]]: ...
    def detect(self, text: str | Texts) -> list[DetectedToken] | list[list[DetectedToken]]:
        """Return for each token of a text the probability that it was replaced."""
        found = inference.detect(self._discriminator, _as_list(text))
        return found[0] if isinstance(text, str) else found

    def detect_tokens(self, tokens: Sequence[str]) -> list[float]:
        """Return the same for a text that is given as tokens, such as a corrupted one."""
        return inference.detect_tokens(self._discriminator, [tokens])[0]

    def corrupt(
        self,
        text: str,
        *,
        mask_rate: float = 0.15,
        temperature: float = 1.0,
        seed: int = 0,
        top: int = 5,
    ) -> list[CorruptedToken]:
        """Mask a share of a text's tokens and replace them by samples of the generator.

        The same seed gives the same masks and samples; `top` is the number of proposals per mask.
        """
        return corruption.corrupt(
            self._generator,
            text,
            mask_rate=mask_rate,
            temperature=temperature,
            seed=seed,
            top=top,
        )

    def propose(self, tokens: Sequence[str], position: int, top: int = 5) -> list[PredictedToken]:
        """Return the generator's `top` most likely tokens for one position of such a text."""
        return corruption.propose(self._generator, tokens, position, top)

    @overload
    def fill(self, text: str, top: int = ...) -> list[list[PredictedToken]]: ...
    @overload
    def fill(self, text: Texts, top: int = ...) -> list[list[list[PredictedToken]]]: ...
    def fill(
        self, text: str | Texts, top: int = 5
    ) -> list[list[PredictedToken]] | list[list[list[PredictedToken]]]:
        """Return for each `[MASK]` of a text the generator's `top` most likely tokens."""
        found = inference.fill(self._generator, _as_list(text), top)
        return found[0] if isinstance(text, str) else found

    @property
    def task(self) -> TaskCard | None:
        """The task of a fine-tuned model: its kind, labels and columns; None for other models."""
        folder = self._find("encoder")
        return self._predictor.card if (folder / CARD).is_file() else None

    def score(self, texts: Sequence[str]) -> list[float]:
        """Return the pseudo-log-likelihood of each text; needs an Electric model."""
        return inference.score(self._discriminator, _as_list(texts))

    @overload
    def classify(self, texts: str) -> Record: ...
    @overload
    def classify(self, texts: list[str] | list[tuple[str, str]]) -> list[Record]: ...
    @overload
    def classify(self, texts: tuple[Any, ...]) -> Record | list[Record]: ...
    def classify(
        self, texts: str | list[str] | list[tuple[str, str]] | tuple[Any, ...]
    ) -> Record | list[Record]:
        """Return a label with its probabilities, or a value, for each text or pair of texts.

        A single text gives one record, and so does a tuple of two texts if the model reads pairs.
        """
        examples = []
        pairs = self._check_kind("classify").reads_pairs
        single = isinstance(texts, str) or (
            pairs and isinstance(texts, tuple) and _are_texts(texts, 2)
        )
        for number, text in enumerate([texts] if single else _as_list(texts), 1):
            parts: Any = (text,) if isinstance(text, str) else text
            if not _are_texts(parts, 1 + pairs):
                wanted = "pairs (text, text)" if pairs else "single texts"
                raise UserError(f"{self.folder} reads {wanted}: text {number} is something else.")
            for part in parts:
                inference.check_text(part)
            second = parts[1] if pairs else None
            examples.append(Sentence(id=str(number), text=parts[0], pair=second))
        records = self._predict(examples)
        return records[0] if single else records

    def choose(self, text: str, options: Sequence[str]) -> Record:
        """Return the index of the option that fits a text, with the probability of each."""
        self._check_kind("choose")
        listed = tuple(_as_list(options))
        for part in (text, *listed):
            inference.check_text(part)
        if len(listed) < 2:
            raise UserError("choose() needs a list of two or more options.")
        (record,) = self._predict([Choice(id="1", text=text, options=listed)])
        return record

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return a tag for each word of each sentence.

        A sentence is a list of words, or a string that is split at spaces.
        """
        self._check_kind("tag")
        examples = []
        for number, s in enumerate(_as_list(sentences), 1):
            words = tuple(s.split() if isinstance(s, str) else _as_list(s))
            for word in words:
                inference.check_text(word)
            examples.append(Tagged(id=str(number), words=words))
        return [record["tags"] for record in self._predict(examples)]

    def answer(self, question: str, context: str) -> Record:
        """Return the answer to a question about a context, with the next best ones."""
        self._check_kind("answer")
        inference.check_text(question)
        inference.check_text(context)
        (record,) = self._predict([Question(id="1", question=question, context=context)])
        return record

    def _predict(self, examples: Sequence[Example]) -> list[Record]:
        messages: list[str] = []
        records = list(self._predictor.predict(examples, warn=messages.append))
        for message in messages:
            warnings.warn(message, stacklevel=3)  # the line that called the method
        return [{k: v for k, v in record.items() if k != "id"} for record in records]

    def _check_kind(self, method: str) -> Predictor:
        kind = self._predictor.card.kind
        if METHODS.get(kind) != method:
            other = f": use {METHODS[kind]}()" if kind in METHODS else ""
            raise UserError(f"{self.folder} is a model of the kind '{kind}'{other}.")
        return self._predictor

    def _find(self, network: Network) -> Path:
        return find_network(self.folder, network)

    @cached_property
    def _encoder(self) -> Loaded[Encoder]:
        return load_network(load_encoder, self._find("encoder"), self.device)

    @cached_property
    def _discriminator(self) -> Loaded[Discriminator]:
        return load_network(load_discriminator, self._find("discriminator"), self.device)

    @cached_property
    def _generator(self) -> Loaded[Generator]:
        return load_network(load_generator, self._find("generator"), self.device)

    @cached_property
    def _predictor(self) -> Predictor:
        dtype = choose_precision("auto", self.device)
        return load_predictor(self._find("encoder"), self.device, dtype)


def _are_texts(parts: Any, count: int) -> bool:
    """Return whether something is a sequence of this many strings."""
    is_sequence = isinstance(parts, tuple | list) and len(parts) == count
    return is_sequence and all(isinstance(part, str) for part in parts)


def _as_list(texts: Any) -> list[Any]:
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable):
        raise UserError(f"Give a text or a list of texts, not {type(texts).__name__}.")
    return list(texts)
