"""The victim of a run: a classifier as it is, or one that is trained on an encoder first."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerBase, Trainer

from hf_robustcse import layout
from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attack_runs.data import Attacked, Training, load_training
from hf_robustcse.attacks.goals import Dissimilar
from hf_robustcse.attacks.victims import (
    Classifier,
    EncoderWithHead,
    PairSimilarity,
    Text,
    Victim,
    load_classifier,
    within_reach,
)
from hf_robustcse.distributed import on_first, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import Embedder, load_embedder, saved_method
from hf_robustcse.evaluation.transfer import DTYPE, MAX_ITER, PENALTIES
from hf_robustcse.files import write_json
from hf_robustcse.finetune.arguments import FinetuningArguments, TaskArguments
from hf_robustcse.finetune.kinds import Kind
from hf_robustcse.finetune.run import load_model, load_tokenizer
from hf_robustcse.runs import last_checkpoint

_HELD_OUT = 0.1
_FINISHED = "victim.json"


@dataclass(frozen=True)
class Plan:
    """A victim before it is trained.

    Attributes:
        about: what it is, for the results.
        identity: what must be equal for two runs to have the same victim.
        build: (folder of what is trained) -> the victim and what its training came to. A folder that holds the same
            victim already is used as it is.
    """

    about: dict[str, Any]
    identity: dict[str, Any]
    build: Callable[[Path], tuple[Victim, dict[str, Any]]]


def check_device(name: str | None) -> None:
    """Raise a `UserError` for a device that is not to be had; None is any."""
    try:
        torch.empty(1, device=name or "cpu")
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without it
        raise UserError(f"--device {name} is not to be had: {str(error).splitlines()[0]}") from error


def plan_victim(options: Options, attacked: Attacked) -> Plan:
    """Load a model, and what is needed to make a victim of it.

    Args:
        options: what and how.
        attacked: the examples; their texts are taken out of the training data.

    Raises:
        UserError: if the model or the training data cannot be loaded or do not fit the task.
    """
    kind = options.victim
    if any(isinstance(example.goal, Dissimilar) for _, example in attacked.examples):
        if kind != "auto":
            raise UserError(f"--task {attacked.task} attacks the encoder itself: leave --victim {kind} out")
        return _similarity(options, attacked)
    if kind == "auto":
        kind = "classifier" if _is_classifier(options.model_name_or_path) else "probe"
    return {"classifier": _classifier, "probe": _probe, "finetuned": _finetuned}[kind](options, attacked)


def _is_classifier(name: str) -> bool:
    try:
        layout.check(name)
        return any("SequenceClassification" in one for one in AutoConfig.from_pretrained(name).architectures or ())
    except Exception:  # word vectors have no configuration; what cannot be loaded is refused by who loads it
        return False


def _about(kind: str, options: Options, max_length: int | None, module: nn.Module, tokenizer: Any) -> dict:
    config = getattr(module, "config", None)
    return {
        "kind": kind,
        "model": options.model_name_or_path,
        "revision": getattr(config, "_commit_hash", None),
        "method": saved_method(options.model_name_or_path),
        "fingerprint": fingerprint(module, tokenizer),
        "max_seq_length": max_length,
        "dtype": "bfloat16" if options.bf16 else "float32",
    }


def _identity(about: dict[str, Any], training: Training | None = None, **others: Any) -> dict[str, Any]:
    names = ("kind", "fingerprint", "max_seq_length", "dtype")
    trained = {} if training is None else {"trained_on": training.sha256}
    return {name: about[name] for name in names} | trained | others


def fingerprint(module: nn.Module, tokenizer: Any) -> str:
    """The SHA-256 of a model's weights and of its tokenizer's vocabulary, wherever it was loaded from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        digest.update(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


# A classifier


def _classifier(options: Options, attacked: Attacked) -> Plan:
    victim = _load(options.model_name_or_path, options.max_seq_length, options)
    order = _order(victim, attacked, options.model_name_or_path)
    about = _about("classifier", options, victim.max_length, victim.model, victim.tokenizer)
    if order is not None:
        about["classes"] = order
    return Plan(about, _identity(about, classes=order), lambda folder: (_Reordered.of(victim, order), {}))


def _load(name: str, max_length: int | None, options: Options) -> Classifier:
    dtype = "bfloat16" if options.bf16 else "float32"
    victim = load_classifier(name, max_length=max_length, device=options.device, dtype=dtype)
    victim.batch_tokens = options.batch_tokens or victim.batch_tokens
    return victim


def _order(victim: Classifier, attacked: Attacked, name: str) -> list[int] | None:
    """Which of the classifier's classes each class of the task is, if it names them and has them in another order."""
    config, task = victim.model.config, attacked.classification
    assert task is not None
    if config.num_labels < 2:
        raise UserError(f"{name} has one output, a score: a classifier has a class each")
    if config.num_labels != attacked.classes and not (task.test is None and config.num_labels > attacked.classes):
        raise UserError(f"{name} has {config.num_labels} classes, and {attacked.task} has {attacked.classes}")
    theirs = [str(config.id2label[number]).lower() for number in range(config.num_labels)]
    ours = [label.lower() for label in task.source.labels]
    if sorted(theirs) != sorted(ours) or theirs == ours:
        return None
    return [theirs.index(label) for label in ours]


@dataclass(frozen=True)
class _Reordered:
    """A classifier with its classes in the order of the task."""

    victim: Classifier
    order: list[int]
    batch_size: int = Classifier.batch_size

    @classmethod
    def of(cls, victim: Classifier, order: list[int] | None) -> Victim:
        return victim if order is None else cls(victim, order)

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        return self.victim(texts)[:, self.order]


# An encoder


def _embedder(options: Options) -> Embedder:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # weights that the folder lacks, such as an unused pooler, are drawn: always the same
        embedder = load_embedder(
            options.model_name_or_path,
            pooling=options.pooling,
            max_seq_length=options.max_seq_length,
            device=options.device,
        )
    if options.bf16:
        embedder.model.bfloat16()
    if options.batch_tokens:
        embedder.batch_size = max(1, options.batch_tokens // (embedder.description["max_seq_length"] or 128))
    return embedder


class _Short:
    """A victim that is given texts without what lies beyond the tokens that its encoder takes."""

    def __init__(self, victim: EncoderWithHead | PairSimilarity, embedder: Embedder) -> None:
        self.victim, self.batch_size = victim, victim.batch_size
        self._tokenizer = getattr(embedder.model, "tokenizer", None)
        self._length = embedder.description["max_seq_length"]

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        return self.victim(self.cut(texts))

    def cut(self, texts: Sequence[Text]) -> list[Text]:
        """What the encoder sees of each text."""
        if not isinstance(self._tokenizer, PreTrainedTokenizerBase) or self._length is None:
            return list(texts)
        if isinstance(texts[0], str):
            return within_reach(texts, self._tokenizer, self._length)
        columns = (within_reach(column, self._tokenizer, self._length) for column in zip(*texts, strict=True))
        return list(zip(*columns, strict=True))


def _similarity(options: Options, attacked: Attacked) -> Plan:
    embedder = _embedder(options)
    about = _about("similarity", options, embedder.description["max_seq_length"], embedder.model, _tokenizer(embedder))
    about["pooling"] = embedder.description["pooling"]

    def build(folder: Path) -> tuple[Victim, dict[str, Any]]:
        embedder.alone = True
        victim = _Short(PairSimilarity(embedder), embedder)
        untouched = [text for _, example in attacked.examples for text in example.context.values()]
        victim.victim = PairSimilarity(embedder, victim.cut(untouched) if untouched else ())
        return victim, {}

    return Plan(about, _identity(about, pooling=about["pooling"]), build)


def _tokenizer(embedder: Embedder) -> Any:
    return getattr(embedder.model, "tokenizer", None)


def _training(options: Options, attacked: Attacked) -> Training:
    return load_training(
        attacked, train_file=options.train_file, data_dir=options.data_dir, limit=options.max_train_samples
    )


def _probe(options: Options, attacked: Attacked) -> Plan:
    """A logistic regression on frozen embeddings."""
    embedder = _embedder(options)
    training = _training(options, attacked)
    about = _about("probe", options, embedder.description["max_seq_length"], embedder.model, _tokenizer(embedder))
    about |= {"pooling": embedder.description["pooling"], "training": training.describe()}
    task = attacked.classification
    assert task is not None

    def build(folder: Path) -> tuple[Victim, dict[str, Any]]:
        path = folder / "probe.safetensors"
        weights = on_first(lambda: _saved_probe(path))
        if weights is None:
            texts = [tuple(row[column] for column in task.source.columns) for row in training.rows]
            asked = [row[0] for row in texts] if len(task.columns) == 1 else texts
            # All processes embed together; the first fits, so that all have the same classifier.
            encoder = EncoderWithHead(embedder, None)
            x = encoder.features(_Short(encoder, embedder).cut(asked))
            labels = np.array([row["label"] for row in training.rows])
            weights = on_first(lambda: _fit(x, labels, path, options.seed))
        embedder.alone = True
        record = {
            "held_out_accuracy": round(100 * float(weights["accuracy"][0]), 2),
            "penalty": float(weights["penalty"][0]),
        }
        return _Short(EncoderWithHead(embedder, _head(weights)), embedder), record

    return Plan(about, _identity(about, training, pooling=about["pooling"], seed=options.seed), build)


def _head(weights: dict[str, np.ndarray]) -> nn.Linear:
    """The logits of a logistic regression; the first of two classes has 0."""
    coef, intercept = weights["coef"], weights["intercept"]
    if len(coef) == 1:
        coef, intercept = np.vstack([np.zeros_like(coef), coef]), np.append(0.0, intercept)
    head = nn.Linear(coef.shape[1], len(coef), dtype=torch.float64)
    head.load_state_dict({"weight": torch.from_numpy(coef), "bias": torch.from_numpy(intercept)})
    return head


def _saved_probe(path: Path) -> dict[str, np.ndarray] | None:
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return None


def _fit(x: np.ndarray, labels: np.ndarray, path: Path, seed: int) -> dict[str, np.ndarray]:
    """Fit a logistic regression, its penalty chosen on a tenth of the rows, and save it.

    Args:
        x: (n, d) features.
        labels: (n,), from 0.
        path: of the file.
        seed: of the tenth.

    Returns:
        `coef` (1 or C, d) and `intercept` (1 or C,) for the features as they are; `accuracy` on the tenth, `penalty`.
    """
    mean = x.mean(axis=0)
    scale = np.sqrt(x.var(axis=0).mean()) or 1.0  # one number: an embedding keeps its shape
    scaled = ((x - mean) / scale).astype(DTYPE)
    fit, held_out = train_test_split(np.arange(len(x)), test_size=_HELD_OUT, random_state=seed, stratify=labels)
    classifier = LogisticRegression(max_iter=MAX_ITER, warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        scores = [
            classifier.set_params(C=1 / penalty).fit(scaled[fit], labels[fit]).score(scaled[held_out], labels[held_out])
            for penalty in PENALTIES
        ]
        best = int(np.argmax(np.round(scores, 12)))  # the first of equals, which is the strongest penalty
        classifier = LogisticRegression(C=1 / PENALTIES[best], max_iter=MAX_ITER).fit(scaled, labels)
    weights = {
        "coef": classifier.coef_.astype(np.float64) / scale,
        "intercept": classifier.intercept_ - classifier.coef_.astype(np.float64) @ mean / scale,
        "accuracy": np.array([scores[best]]),
        "penalty": np.array([PENALTIES[best]]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    save_file(weights, temporary)
    temporary.chmod(0o644)  # safetensors makes it private; a result is as readable as any other
    temporary.replace(path)
    return weights


# A classifier that is fine-tuned here


def _finetuned(options: Options, attacked: Attacked) -> Plan:
    """A classifier fine-tuned by the stock trainer; several processes train together."""
    task = attacked.classification
    assert task is not None
    arguments = TaskArguments(
        task=task.name, model_name_or_path=options.model_name_or_path, max_seq_length=options.max_seq_length
    )
    transformers.utils.logging.set_verbosity_error()  # load reports: a new head is what is wanted here
    transformers.utils.logging.disable_progress_bar()
    tokenizer, length = load_tokenizer(arguments, task)
    kind = Kind(task, tokenizer, length)
    training = _training(options, attacked)
    model = load_model(arguments, kind, options.seed)
    about = _about("finetuned", options, length, model, tokenizer)
    settings = {
        "learning_rate": options.learning_rate,
        "num_train_epochs": options.num_train_epochs,
        "batch_size": options.train_batch_size,
        "seed": options.seed,
    }
    about |= {"training": training.describe() | settings}

    def build(folder: Path) -> tuple[Victim, dict[str, Any]]:
        record = on_first(lambda: _finished(folder))
        if record is None:
            record = _train(options, kind, model, training, folder)
        return _load(str(folder), length, options), record

    return Plan(about, _identity(about, training, **settings), build)


def _finished(folder: Path) -> dict[str, Any] | None:
    """What the training of the victim in a folder came to; None if it has not ended."""
    try:
        return json.loads((folder / _FINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _train(options: Options, kind: Kind, model: nn.Module, training: Training, folder: Path) -> dict[str, Any]:
    """Fine-tune, going on from the last checkpoint if there is one, and save."""
    arguments = FinetuningArguments(
        output_dir=str(folder),
        learning_rate=options.learning_rate,
        num_train_epochs=options.num_train_epochs,
        per_device_train_batch_size=max(1, options.train_batch_size // world_size()),
        seed=options.seed,
        bf16=options.bf16,
        use_cpu=(options.device or "").startswith("cpu") or not torch.cuda.is_available(),
        report_to="none",
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=kind.train_features(Dataset.from_list(training.rows)),
        data_collator=kind.collator(),
        processing_class=kind.tokenizer,
    )
    checkpoint = on_first(lambda: last_checkpoint(folder))
    started = time.perf_counter()
    output = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(str(folder))
    record = {
        "steps": trainer.state.global_step,
        "loss": round(output.training_loss, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }

    def finish() -> dict[str, Any]:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle; the manifest has the arguments
        write_json(folder / _FINISHED, record)
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)
        return record

    return on_first(finish)
