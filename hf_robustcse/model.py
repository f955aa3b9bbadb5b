"""`RobustCSEModel`: a sentence encoder and the method that trains it, as one module."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput, logging

from hf_robustcse import layout
from hf_robustcse.augmentation import TEXT_AUGMENTATIONS, check_rate
from hf_robustcse.chunks import in_chunks
from hf_robustcse.encoder import SentenceEncoder, load_backbone
from hf_robustcse.errors import UserError
from hf_robustcse.files import read_json
from hf_robustcse.methods import Batch, build
from hf_robustcse.modules import HEADS, POOLERS, statistics_frozen
from hf_robustcse.perturb import AUGMENTATIONS, SharedDropout, augment, dropout_off, words_of

logger = logging.get_logger(__name__)
# What versions of transformers, and its trainer, put into any configuration.
_OTHERS_KEYS = {"use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "torch_dtype", "dtype", "model_type"}
HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only")


class RobustCSEConfig(PretrainedConfig):
    """Everything that builds a `RobustCSEModel`.

    Args:
        encoder: the backbone's configuration as a dictionary with its ``model_type``.
        method: name of the method or stack, such as ``vadv`` or ``simcse``.
        method_options: options of the methods by field name.
        pooler: cls, mean, first-last or top-two.
        head: none, tanh or mlp; ``auto`` takes the method's own.
        keep_head: whether the head is part of the sentence embedding, or only of training.
        temperature: of every softmax over similarities, above 0.
        augmentation: what makes the positive of an unlabelled sentence differ from it, see `perturb.augment` and
            `augmentation.TextAugmentation`; ``typos`` and ``synonyms`` are made where the corpus is tokenised.
        augmentation_rate: the part that a cutoff takes away, in [0, 1), or of the words that typos or synonyms change,
            in (0, 1].

    Raises:
        UserError: for a value that is none of these.
    """

    model_type = "robustcse"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        method: str = "simcse",
        method_options: dict[str, Any] | None = None,
        pooler: str = "cls",
        head: str = "auto",
        keep_head: bool = False,
        temperature: float = 0.05,
        augmentation: str = "dropout",
        augmentation_rate: float = 0.15,
        **kwargs: Any,
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.method_options = method_options or {}
        self.pooler = pooler
        self.head = build(method, self.method_options).head if head == "auto" else head
        self.keep_head = keep_head
        self.temperature = temperature
        self.augmentation = augmentation
        self.augmentation_rate = augmentation_rate
        for option, value, choices in (
            ("pooler", pooler, POOLERS), ("head", self.head, HEADS),
            ("augmentation", augmentation, AUGMENTATIONS + TEXT_AUGMENTATIONS),
        ):  # fmt: skip
            if value not in choices:
                raise UserError(f"--{option} must be one of {', '.join(choices)}, not {value!r}")
        for option, value, kinds in (
            ("encoder", encoder, dict | None), ("keep_head", keep_head, bool),
            ("temperature", temperature, int | float), ("augmentation_rate", augmentation_rate, int | float),
        ):  # fmt: skip
            if not isinstance(value, kinds):
                raise UserError(f"--{option} cannot be {value!r}")
        if not 0 < temperature < math.inf:
            raise UserError(f"--temperature must be above 0, not {temperature}")
        if augmentation in TEXT_AUGMENTATIONS:
            check_rate(augmentation, augmentation_rate)
        elif not 0 <= augmentation_rate < 1:
            raise UserError(f"--augmentation_rate must be at least 0 and below 1, not {augmentation_rate}")
        super().__init__(**kwargs)


class RobustCSEModel(PreTrainedModel):
    """A sentence encoder with its training objective.

    The forward pass of a training batch returns the loss and its terms, so DDP, the optimizer and the checkpoint see
    one module that holds the encoder, the head and whatever state the method has.

    Args:
        config: see `RobustCSEConfig`.
        backbone: a loaded encoder; without it one of ``config.encoder`` is initialised at random.
    """

    config_class = RobustCSEConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    # The forward pass takes no loss arguments: the trainer divides the loss by the accumulation steps.
    accepts_loss_kwargs = False

    def __init__(self, config: RobustCSEConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if backbone is None:
            settings = dict(config.encoder or {})
            if "model_type" not in settings:
                raise UserError("RobustCSEConfig.encoder needs the backbone's configuration with its model_type")
            layout.check_sizes(settings, "RobustCSEConfig.encoder")
            backbone = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        config.encoder = backbone.config.to_diff_dict() | {"model_type": backbone.config.model_type}
        self.encoder = SentenceEncoder(backbone, pooler=config.pooler, head=config.head)
        self.method = build(config.method, config.method_options)
        self.method.attach(self.encoder)
        config.method_options = self.method.options()
        self.tokenizer: Any | None = None
        # Rows per encoder pass of `forward`, see `RobustCSETrainingArguments`; no part of a checkpoint.
        self.forward_chunk_size: int | None = None
        self.post_init()

    def init_weights(self) -> None:
        """Nothing: every part initialises itself, and a pretrained backbone must keep its weights."""

    def get_input_embeddings(self) -> torch.nn.Module:
        """The word embeddings, for what transformers and Accelerate do with any model."""
        return self.encoder.backbone.get_input_embeddings()

    @classmethod
    def from_encoder(
        cls,
        model_name_or_path: str | os.PathLike[str],
        *,
        method: str = "simcse",
        method_options: Mapping[str, Any] | None = None,
        pooler: str = "cls",
        head: str = "auto",
        keep_head: bool = False,
        temperature: float = 0.05,
        augmentation: str = "dropout",
        augmentation_rate: float = 0.15,
        dropout: float | None = None,
        **kwargs: Any,
    ) -> RobustCSEModel:
        """Start training from a pretrained encoder.

        Args:
            model_name_or_path: a folder or Hub id that ``AutoModel`` loads.
            method: as in `RobustCSEConfig`, like the next seven.
            method_options: see there.
            pooler: see there.
            head: see there.
            keep_head: see there.
            temperature: see there.
            augmentation: see there.
            augmentation_rate: see there.
            dropout: set every dropout probability of the encoder.
            **kwargs: for ``from_pretrained`` (revision, token, cache_dir, local_files_only, attn_implementation).

        Raises:
            UserError: if the encoder cannot be loaded or trained, or for a bad option.
        """
        config = RobustCSEConfig(
            method=method, method_options=dict(method_options or {}), pooler=pooler, head=head, keep_head=keep_head,
            temperature=temperature, augmentation=augmentation, augmentation_rate=augmentation_rate,
        )  # fmt: skip
        name = os.fspath(model_name_or_path)
        layout.check(name, **{key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs})
        model = cls(config, load_backbone(name, dropout=dropout, **kwargs))
        model.method.load_pretrained(name, **kwargs)
        model.attach_tokenizer(load_tokenizer(name, **kwargs))
        return model

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        method_options: Mapping[str, Any] | None = None,
        dropout: float | None = None,
        **kwargs: Any,
    ) -> RobustCSEModel:
        """Load a checkpoint that this project wrote, to encode or to train on.

        Nothing that the checkpoint says is trusted: neither code nor files outside it are loaded (`layout.check`), and
        sizes have to be those of its weights. What a method's option names outside (``dclr_complement``,
        ``rse_generator``, ``dcl_wordlist``) has to be named again in `method_options` to train on.

        Args:
            pretrained_model_name_or_path: its folder or Hub id.
            method_options: take the place of those in the checkpoint, by name.
            dropout: set every dropout probability of the encoder.
            **kwargs: revision, token, cache_dir, local_files_only, attn_implementation.

        Raises:
            UserError: if there is no such checkpoint (for a plain encoder use `from_encoder`), or it is refused.
        """
        name = os.fspath(pretrained_model_name_or_path)
        hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        path = layout.find(name, layout.CONFIG, **hub)
        if path is None:
            raise UserError(
                f"{name!r} is no checkpoint of this project (it has no {layout.CONFIG}), or cannot be reached with "
                "this token; RobustCSEModel.from_encoder starts from any other encoder"
            )
        layout.check(name, **hub)
        options = dict(method_options or {})
        config = _read_config(path, options)
        cls._check_rest(name, path, config, **hub)
        model = cls(config, load_backbone(name, dropout=dropout, **kwargs))
        model.method.unconfirmed = {k: v for k, v in model.method.outside.items() if k not in options}
        model.load_rest(name, **hub)
        model.attach_tokenizer(load_tokenizer(name, **kwargs))
        return model.eval()

    @classmethod
    def _check_rest(cls, name: str, path: Path, config: RobustCSEConfig, **hub: Any) -> None:
        """Refuse a configuration that asks for other weights than there are, before memory is taken for any."""
        weights = layout.find(name, layout.WEIGHTS, **hub)
        if weights is None:
            raise UserError(f"{name} has no {layout.WEIGHTS}")
        try:
            with torch.device("meta"):
                wanted = cls(
                    copy.deepcopy(config), AutoModel.from_config(AutoConfig.from_pretrained(name, **hub))
                ).state_dict()
        except UserError:
            raise
        except Exception as error:  # a number beyond what torch counts to
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path} describes no model that can be built ({reason})") from error
        rest = {key: value for key, value in wanted.items() if not key.startswith(layout.BACKBONE)}
        layout.check_shapes(rest, layout.read_shapes(weights), path)

    def load_rest(self, model_name_or_path: str, **hub: Any) -> None:
        """Load the head and the method's state of a checkpoint, every key of it."""
        wanted = {k for k in self.state_dict() if not k.startswith(layout.BACKBONE)}
        found = layout.read_rest(model_name_or_path, **hub)
        if wanted != found.keys():
            raise UserError(
                f"{model_name_or_path} does not fit this model: {layout.WEIGHTS} lacks {sorted(wanted - found.keys())} "
                f"and has {sorted(found.keys() - wanted)} too many"
            )
        self.load_state_dict(found, strict=False)

    def load_checkpoint(self, directory: str) -> None:
        """Replace all weights and all state by those of a checkpoint of this model."""
        backbone = load_backbone(directory)
        self.encoder.backbone.load_state_dict(backbone.state_dict())
        self.load_rest(directory)

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Write the published layout (see `layout`), which ``AutoModel`` and sentence-transformers load as it is.

        Args:
            save_directory: made if need be.
            is_main_process: only this process writes.
            state_dict: the whole state, where it cannot be read off the model (FSDP).
            push_to_hub: publish the model afterwards.
            **kwargs: repo_id (the folder's name by default) and what else `push_to_hub` takes.
        """
        if not is_main_process:
            return
        layout.write(
            save_directory,
            self.encoder,
            self.state_dict() if state_dict is None else state_dict,
            config=self._published_config(),
            tokenizer=self.tokenizer,
            max_seq_length=self.max_seq_length,
            keep_head=self.config.keep_head,
        )
        if push_to_hub:
            self.push_to_hub(**{"repo_id": os.path.basename(os.path.normpath(save_directory)), **kwargs})

    def _published_config(self) -> dict[str, Any]:
        """The configuration, where a file or folder of this machine is known by its last name alone."""
        config = self.config.to_diff_dict()
        for option, value in self.method.outside.items():
            local = layout.leads_out(value) or value.count("/") > 1 or os.path.exists(value)
            config["method_options"][option] = os.path.basename(os.path.normpath(value)) if local else value
        return config

    def push_to_hub(  # type: ignore[override]
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        tags: Sequence[str] = (),
        results: Sequence[str | os.PathLike[str]] = (),
    ) -> str:
        """Publish the model: a release folder without pickles and local paths, checked alone, in one commit.

        Args:
            repo_id: NAME or OWNER/NAME on the Hub; made if it is not there.
            commit_message: first line of the commit.
            private: make it private.
            token: of the Hub; by default that of this machine.
            revision: the branch, made if it is not there.
            tags: for the card.
            results: result files for the card.

        Returns:
            The address of the commit.

        Raises:
            PushFailed: one line that names the folder where the model is kept and the command to retry.
        """
        from hf_robustcse import publish  # it imports what evaluates, which takes seconds

        folder = tempfile.mkdtemp(prefix="robustcse-model-")
        self.save_pretrained(folder)
        # If this fails the folder stays: the message names it.
        commit, release = publish.push(
            folder, repo_id, private=private, revision=revision, message=commit_message or "Upload model",
            token=token, tags=[tags] if isinstance(tags, str) else tags, results=results,
        )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        for warning in release.warnings:
            logger.warning(warning)
        return commit.commit_url

    @property
    def max_seq_length(self) -> int:
        """The most tokens that an embedding is computed of: what tokenizer and positions allow, at most 512."""
        limits = [512, getattr(self.tokenizer, "model_max_length", 512)]
        positions = getattr(self.encoder.backbone.config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            # RoBERTa and its kin number the first token after the padding index.
            offset = positions % 8 if positions % 8 <= 4 else 0
            limits.append(positions - offset)
        return int(min(limits))

    def set_seed(self, seed: int) -> None:
        """Seed whatever the method draws (dropout follows torch's own seed)."""
        self.method.set_seed(seed)

    def attach_tokenizer(self, tokenizer: Any) -> None:
        """Use this tokenizer, in the methods too."""
        self.tokenizer = tokenizer
        self.method.attach_tokenizer(tokenizer, self.max_seq_length)

    def after_update(self, progress: float) -> None:
        """To be called after every update of the weights; `progress` of the training so far is in (0, 1]."""
        self.method.after_update(self.encoder, progress)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, text_hash: Tensor | None = None, **extras: Tensor
    ) -> ModelOutput:
        """The training loss of a batch and its terms.

        Args:
            input_ids: (N, V, L) or (N, L): V = 1 the sentences, which are their own positives under another dropout
                mask; V = 2 sentence and positive; V = 3 sentence, positive and hard negative. Padding on the right.
            attention_mask: the same shape.
            text_hash: (N, V) numbers that are equal where texts are; rows that share a text are not contrasted.
            **extras: what `Stack.collate` made of the texts.

        Returns:
            ``loss``, a scalar, and each of its terms by name.

        Raises:
            UserError: if the positives are to be made in the text and were not.
        """
        if input_ids.dim() == 2:
            input_ids, attention_mask = input_ids.unsqueeze(1), attention_mask.unsqueeze(1)
        count, views = input_ids.shape[:2]
        if views == 1 and self.config.augmentation in TEXT_AUGMENTATIONS:
            raise UserError(
                f"the positives with {self.config.augmentation} are missing: tokenize_corpus(..., augmentation="
                f"TextAugmentation({self.config.augmentation!r}, ...)) makes them"
            )
        ids, masks = input_ids.transpose(0, 1), attention_mask.transpose(0, 1)
        words = words_of(self.tokenizer, input_ids[:, 0], attention_mask[:, 0])
        doubled = views == 1 and self.method.paired
        augmented = doubled and self.config.augmentation != "dropout"
        # Word embeddings are looked up here, once for all views, only where they are needed beside the encoder's pass.
        embeds = self.encoder.embed(ids) if self.method.perturbs or augmented else None
        anchors = None if embeds is None else embeds[0]
        if doubled:
            ids, masks = ids.expand(2, -1, -1), masks.expand(2, -1, -1)
            if augmented:
                second = augment(anchors, words, kind=self.config.augmentation, rate=self.config.augmentation_rate)
                embeds = torch.stack([anchors, second])
            elif embeds is not None:
                embeds = embeds.expand(2, -1, -1, -1)
        mask = masks[0].contiguous()
        same_dropout = SharedDropout(mask.device)

        def encode_views(some: slice) -> Tensor:
            if embeds is None:
                return self._encode(masks[some].flatten(0, 1), input_ids=ids[some].flatten(0, 1))
            return self._encode(masks[some].flatten(0, 1), inputs_embeds=embeds[some].flatten(0, 1))

        if self.method.replays:  # a mask can be drawn again only for a pass of the same shape
            with same_dropout:
                pooled = encode_views(slice(1))
            if len(ids) > 1:
                pooled = torch.cat([pooled, encode_views(slice(1, None))])
        else:
            pooled = encode_views(slice(None))
        h = self.encoder.head(pooled).split(count)
        pooled = pooled.split(count)
        positive = min(1, len(h) - 1)  # the anchors themselves if no method asks for pairs

        def project(x: Tensor) -> Tensor:
            with statistics_frozen(self.encoder.head):
                return self.encoder.head(x)

        def encode(x: Tensor) -> Tensor:
            return self._encode(mask.repeat(len(x) // count, 1), inputs_embeds=x)

        batch = Batch(
            input_ids=input_ids[:, 0],
            attention_mask=mask,
            positive_ids=input_ids[:, 1] if views > 1 else None,
            positive_mask=attention_mask[:, 1] if views > 1 else None,
            words=words,
            extras=extras,
            embeds=anchors,
            pooled=pooled[0],
            pooled_pos=pooled[positive],
            h=h[0],
            h_pos=h[positive],
            hard_negatives=h[2] if len(h) == 3 else None,
            text_hash=text_hash,
            embed=self.encoder.embed,
            encode=encode,
            encode_ids=lambda ids, its_mask: self._encode(its_mask, input_ids=ids),
            project=project,
            dropout_free=lambda: dropout_off(self.encoder.backbone),
            same_dropout=lambda: same_dropout,
            temperature=self.config.temperature,
            chunk_size=self.forward_chunk_size,
        )
        loss, terms = self.method(batch)
        return ModelOutput(loss=loss, **terms)

    def _encode(self, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """`SentenceEncoder.forward`, in chunks of `forward_chunk_size` rows if it is set."""
        ((name, tensor),) = inputs.items()
        evaluating = not self.encoder.backbone.training

        def encode(mask: Tensor, x: Tensor) -> Tensor:
            # A chunk is computed again when the method has left `Batch.dropout_free`, without dropout all the same.
            with dropout_off(self.encoder.backbone) if evaluating else contextlib.nullcontext():
                return self.encoder(mask, **{name: x})

        return in_chunks(encode, attention_mask, tensor, rows=self.forward_chunk_size)

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Sentence embeddings as they are published.

        Args:
            input_ids: (N, L), padding on the right.
            attention_mask: (N, L).

        Returns:
            (N, d), not normalised.
        """
        pooled = self.encoder(attention_mask, input_ids=input_ids)
        return self.encoder.head(pooled) if self.config.keep_head else pooled

    @torch.no_grad()
    def encode(self, sentences: str | Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Embed texts, the longest first, in evaluation mode and float32.

        Args:
            sentences: one text or several.
            batch_size: texts in one pass.

        Returns:
            (n, d) on the CPU, in the order of `sentences`; (d,) for a single text.

        Raises:
            UserError: if the model came without a tokenizer.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer: set model.tokenizer, or load it with from_pretrained")
        device = next(self.encoder.parameters()).device
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        out = torch.empty(len(sentences), self.encoder.width)
        training = self.training
        self.eval()
        try:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                batch = self.tokenizer(
                    [sentences[i] for i in rows], padding=True, padding_side="right", truncation=True,
                    max_length=self.max_seq_length, return_tensors="pt",
                )  # fmt: skip
                out[rows] = self.embed(batch["input_ids"].to(device), batch["attention_mask"].to(device)).float().cpu()
        finally:
            self.train(training)
        return out


def _read_config(path: Path, options: Mapping[str, Any]) -> RobustCSEConfig:
    """The configuration in a checkpoint, with some options of its method replaced.

    Raises:
        UserError: if it has unknown keys or values that cannot be, or names a path of another machine.
    """
    settings = read_json(path)
    own = set(inspect.signature(RobustCSEConfig).parameters) - {"kwargs"}
    if not isinstance(settings, dict) or not isinstance(settings.get("method_options", {}), dict):
        raise UserError(f"{path} is no JSON object with method_options, another object")
    if unknown := sorted(settings.keys() - own - RobustCSEConfig().to_dict().keys() - _OTHERS_KEYS):
        raise UserError(
            f"{path} has the unknown key {unknown[0]!r}: a newer version of this package may have written it"
        )
    try:
        # The keys that every configuration of transformers has are none of ours and stay unread.
        config = RobustCSEConfig(**{key: value for key, value in settings.items() if key in own})
        config.method_options = config.method_options | dict(options)
        outside = build(config.method, config.method_options).outside
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    for option, value in outside.items():
        if option not in options and layout.leads_out(value):
            raise UserError(
                f"{path} names {value!r} as {option}, which is no Hub id and may lead anywhere: name it again, "
                f"RobustCSEModel.from_pretrained(..., method_options={{{option!r}: ...}})"
            )
    return config


def load_tokenizer(model_name_or_path: str, **kwargs: Any) -> Any:
    """The encoder's tokenizer.

    Raises:
        UserError: if it cannot be loaded or has no padding token.
    """
    try:
        hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, **hub)
    except Exception as error:  # the readers of vocabularies have a dozen kinds
        reason = " ".join(str(error).split())
        raise UserError(f"cannot load the tokenizer of {model_name_or_path!r}: {reason[:300]}") from error
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {model_name_or_path!r} has no padding token: batches need one")
    return tokenizer
