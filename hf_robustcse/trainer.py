"""`RobustCSETrainer`: the stock ``Trainer`` with a sentence-embedding objective and sentence-embedding evaluation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from huggingface_hub import CommitInfo, run_as_future
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import HubStrategy, get_last_checkpoint
from transformers.utils import PushInProgress

from hf_robustcse import publish
from hf_robustcse.arguments import DEV_METRICS, PAIR_METRICS, TEXT_METRICS, RobustCSETrainingArguments
from hf_robustcse.distributed import encode_together, rank, world_size
from hf_robustcse.errors import PushFailed, TrainingStopped, UserError
from hf_robustcse.evaluation.dev_text import DevText, evaluate_dev_text
from hf_robustcse.evaluation.geometry import evaluate_dev, has_positives
from hf_robustcse.evaluation.sts import StsData
from hf_robustcse.files import write_json
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.packing import packer_of
from hf_robustcse.publish.hub import explain
from hf_robustcse.stream import POSITION, TextStream

OF_POSITIVES = ("alignment", "positive_cosine")
LOWER_IS_BETTER = ("alignment", "uniformity", "mean_cosine", "random_cosine")


def metrics_of(data: StsData | DevText) -> tuple[str, ...]:
    """The metrics of a dev set; the first is the one that chooses the checkpoint unless another is named."""
    if isinstance(data, DevText):
        return TEXT_METRICS
    return tuple(metric for metric in PAIR_METRICS if metric not in OF_POSITIVES or has_positives(data))


def repo_name(output_dir: Path) -> str:
    """The name of the repository for the model of a folder: the folder's; a stack's ``+`` is none for the Hub."""
    return output_dir.absolute().name.replace("+", "-")


class EndOfTraining(TrainerCallback):
    """Evaluate after the last step; on SIGTERM save a checkpoint at the end of the step and stop.

    Several processes agree on the step at which they stop.
    """

    def __init__(self) -> None:
        self.received = False
        self.stopped = False
        self._previous: Any = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Install the handler."""
        try:
            self._previous = signal.signal(signal.SIGTERM, self._receive)
        except ValueError:  # not the main thread: the program that called us handles its signals
            self._previous = None

    def _receive(self, *_: object) -> None:
        self.received = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for a checkpoint and the end of training."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True  # the last steps are candidates too
        received = self.received
        if world_size() > 1:
            flag = torch.tensor(int(received), device=args.device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            received = bool(flag)
        if received and not self.stopped:
            self.stopped = control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def restore(self) -> None:
        """Give the signal back."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None


class AfterUpdate(TrainerCallback):
    """Tells the model of every update of its weights, before a checkpoint of the step is written."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: RobustCSEModel, **_: Any
    ) -> None:
        """Move what follows the weights, such as a momentum target."""
        model.after_update(state.global_step / state.max_steps)


class StepClock(TrainerCallback):
    """The seconds of every step, from the end of one to the end of the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start."""
        self._last = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Note the time."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def peak_bytes() -> int:
    """The most memory that this process has held, on the GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class StreamPosition(TrainerCallback, ExportableState):
    """Keeps how far a `TextStream` was read; every checkpoint has it, in its ``trainer_state.json``."""

    def __init__(self) -> None:
        self.position: dict[str, Any] | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A stream has no length, so the log's ``epoch`` is the part of the training that is done."""
        state.epoch = state.global_step / state.max_steps

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"args": {}, "attributes": {"position": self.position}}


class RobustCSETrainer(Trainer):
    """Train a `RobustCSEModel` on the batches of ``data.ContrastiveCollator``.

    Logs every term of the loss, evaluates on dev sets of scored pairs or of plain text, chooses the checkpoint by a dev
    metric, stops on a term that is not finite and on collapsed embeddings, and writes every checkpoint in the published
    layout.

    With ``push_to_hub`` whether the token may write is asked before training. Every push is a release (see `publish`):
    scrubbed, without pickles, one commit. One that fails while training is a warning. With the strategies
    ``checkpoint`` and ``all_checkpoints`` the states to resume from, which hold pickles, go to a branch of their own,
    ``checkpoints``.

    Args:
        model: the model.
        args: see `RobustCSETrainingArguments`.
        eval_dataset: dev sets by name; their metrics are ``eval_<name>_<metric>``, with ``eval_avg_spearman`` the mean
            over those of scored pairs, if there are several.
        **kwargs: as for ``Trainer`` (train_dataset, data_collator, callbacks, optimizers, ...).

    Raises:
        UserError: for a batch without negatives, a selection metric that does not exist or is computed on a test set.
    """

    # The loss is a mean over the batch, so the trainer must divide it by the accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: RobustCSEModel,
        args: RobustCSETrainingArguments,
        *,
        eval_dataset: Mapping[str, StsData | DevText] | None = None,
        **kwargs: Any,
    ) -> None:
        self.eval_data = dict(eval_dataset or {})
        self.end = EndOfTraining()
        self._terms: dict[str, Tensor] = {}
        self._logged_terms: dict[str, float] = {}
        self._batches = 0
        self.start_spread: float | None = None
        self._check_selection(args)
        if args.torch_compile:
            packer_of(model.encoder.backbone)  # it tries the backbone, which is not to be compiled for that
            # The backbone alone: the methods take gradients inside the forward pass, which a graph cannot hold.
            model.encoder.backbone.compile(
                backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode, dynamic=True
            )
            # Accelerate would compile the whole model if any of the three were left.
            args.torch_compile, args.torch_compile_backend, args.torch_compile_mode = False, None, None
        kwargs.setdefault("processing_class", model.tokenizer)
        self.streams = isinstance(kwargs.get("train_dataset"), TextStream)
        own = [AfterUpdate(), *([StreamPosition()] if self.streams else [])]
        kwargs["callbacks"] = [*own, *(kwargs.get("callbacks") or []), self.end]
        super().__init__(model=model, args=args, eval_dataset=self.eval_data or None, **kwargs)
        self.model_accepts_loss_kwargs = False
        self._check_strategy(model)
        model.set_seed(args.seed)
        model.forward_chunk_size = args.forward_chunk_size
        if self.args.per_device_train_batch_size * world_size() < 2:
            raise UserError("--per_device_train_batch_size 1 leaves no negatives: use at least 2, better 64")

    @property
    def strategy(self) -> str:
        """How the processes share the work: one process, DDP, FSDP or DeepSpeed ZeRO and its stage."""
        if self.is_deepspeed_enabled:
            return f"DeepSpeed ZeRO-{self.accelerator.state.deepspeed_plugin.zero_stage}"
        return "FSDP" if self.is_fsdp_enabled else "DDP" if world_size() > 1 else "one process"

    def _check_strategy(self, model: RobustCSEModel) -> None:
        """Refuse what a strategy of Accelerate cannot do with this model, before anything is trained.

        Raises:
            UserError: naming the setting to change.
        """
        state, name = self.accelerator.state, None
        if state.distributed_type == DistributedType.MULTI_CPU:
            for kind in ("FSDP", "DEEPSPEED"):
                if os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true":
                    raise UserError(f"Accelerate has no {kind} on CPUs and would train without: leave one of them out")
        if self.is_fsdp_enabled:
            from torch.distributed.fsdp import CPUOffloadPolicy

            name, plugin = "FSDP", state.fsdp_plugin
            if plugin.fsdp_version != 2:
                raise UserError("FSDP 1 is not supported: set fsdp_version: 2, as examples/accelerate/fsdp.yaml does")
            if "FULL" not in str(plugin.state_dict_type):
                raise UserError(f"{plugin.state_dict_type} exports no model: set fsdp_state_dict_type: FULL_STATE_DICT")
            if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
                raise UserError("FSDP with parameters on the CPU is not supported: set fsdp_offload_params: false")
            self._check_wrapped(model, set(plugin.transformer_cls_names_to_wrap or []))
        elif self.is_deepspeed_enabled:
            name = "DeepSpeed"
            if state.deepspeed_plugin.zero_stage == 3:
                raise UserError(
                    "DeepSpeed ZeRO-3 is not supported, the methods take gradients inside the forward pass: use "
                    "zero_stage: 2, or FSDP (examples/accelerate/fsdp.yaml) to share the weights too"
                )
        exact = [method.name for method in model.method.methods.values() if method.needs_float32]
        if name and exact and state.mixed_precision != "no":
            raise UserError(
                f"{name} casts the weights to {state.mixed_precision}, which rounds away what {exact[0]} adds to them: "
                "set mixed_precision: 'no' (and no --bf16 or --fp16), or use DDP, which only computes in it"
            )

    @staticmethod
    def _check_wrapped(model: RobustCSEModel, classes: set[str]) -> None:
        """The word embeddings are read outside their module's forward pass: the model as a whole has to own them."""
        names: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if (first := names.setdefault(id(parameter), name)) != name:
                raise UserError(
                    f"{name} is {first}, and FSDP has no parameters with two names: use DDP or ZeRO"
                    + (", or dcl with --dcl_mlm_weight 0" if "dcl" in model.method.methods else "")
                )
        backbone = model.encoder.backbone
        layers = next((type(m[0]).__name__ for m in backbone.modules() if isinstance(m, torch.nn.ModuleList)), None)
        words = backbone.get_input_embeddings()
        around = {type(m).__name__ for m in backbone.modules() if any(part is words for part in m.modules())}
        known = {type(m).__name__ for m in backbone.modules()}
        if not classes & known or classes & around:
            raise UserError(
                "FSDP has to wrap the layers of the encoder and nothing that holds its word embeddings: set "
                f"fsdp_transformer_layer_cls_to_wrap: {layers}"
            )

    def _check_selection(self, args: RobustCSETrainingArguments) -> None:
        names = [f"eval_{name}_{metric}" for name, data in self.eval_data.items() for metric in metrics_of(data)]
        if sum(isinstance(data, StsData) for data in self.eval_data.values()) > 1:
            names.append("eval_avg_spearman")
        if not self.eval_data:
            if args.eval_strategy != "no":
                raise UserError("there is no dev set to evaluate on: pass one or set --eval_strategy no")
            return
        metric = args.metric_for_best_model
        if metric is None:
            dev = [name for name, data in self.eval_data.items() if not data.is_test]
            if not dev and args.load_best_model_at_end and not args.allow_test_selection:
                raise UserError(
                    "all evaluation sets are test sets, which may not choose the checkpoint: add a dev set such as "
                    "stsb_dev to --eval_tasks, or pass --allow_test_selection"
                )
            first = (dev or list(self.eval_data))[0]
            metric = f"eval_{first}_{metrics_of(self.eval_data[first])[0]}"
        metric = metric if metric.startswith("eval_") else f"eval_{metric}"
        if metric not in names:
            raise UserError(f"--metric_for_best_model {metric} does not exist; choose one of {', '.join(names)}")
        args.metric_for_best_model = metric
        args.greater_is_better = not metric.endswith(LOWER_IS_BETTER)
        if args.load_best_model_at_end and self.selected_on_test(args) and not args.allow_test_selection:
            raise UserError(
                f"--metric_for_best_model {metric} would choose the checkpoint on a test set: choose a dev metric, or "
                "pass --allow_test_selection, which the result will state"
            )

    def selected_on_test(self, args: RobustCSETrainingArguments | None = None) -> bool:
        """Whether a test set has a say in which checkpoint is exported."""
        args = args or self.args
        if not args.load_best_model_at_end:
            return False
        tested = [name for name, data in self.eval_data.items() if data.is_test]
        of_tests = {f"eval_{name}_{metric}" for name in tested for metric in DEV_METRICS}
        return args.metric_for_best_model in of_tests or (
            args.metric_for_best_model == "eval_avg_spearman" and bool(tested)
        )

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As ``Trainer.train``; however it ends, the handler of SIGTERM is then what it was before.

        Args:
            resume_from_checkpoint: a folder, or True for the last one in ``output_dir``. A stream goes on from its
                place there; nothing that was trained on is read again.
            **kwargs: for ``Trainer.train``.

        Raises:
            UserError: if a checkpoint does not say how far the stream was read.
        """
        skips = self.args.ignore_data_skip
        if self.streams and resume_from_checkpoint:
            if resume_from_checkpoint is True:
                resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
            self._stream_from(resume_from_checkpoint)
            self.args.ignore_data_skip = True  # the stock trainer would fetch every batch again
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.args.ignore_data_skip = skips
            self.end.restore()

    def _stream_from(self, checkpoint: str) -> None:
        state = json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))
        kept = state.get("stateful_callbacks", {}).get("StreamPosition", {})
        position = kept.get("attributes", {}).get("position")
        if position is None:
            raise UserError(
                f"{checkpoint} does not say how far the stream was read: it cannot be resumed by --streaming"
            )
        self.train_dataset.load_position(position)

    def get_train_dataloader(self) -> DataLoader:
        """The stock loader; that of a `TextStream` knows its processes itself."""
        if not self.streams:
            return super().get_train_dataloader()
        # A stream that was made before the processes joined took itself for the only one.
        self.train_dataset.processes, self.train_dataset.process = world_size(), rank()
        return self.train_dataset.loader(
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """As ``Trainer.training_step``; a batch of a stream says how far the stream is read after it."""
        if self.streams:
            kept = next(c for c in self.callback_handler.callbacks if isinstance(c, StreamPosition))
            kept.position = inputs.pop(POSITION)
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a batch, its terms kept for the log.

        Raises:
            TrainingStopped: if a term is not finite on any process.
        """
        if self.is_fsdp_enabled:  # the gradient of an attack must not put weights away that the same pass still needs
            model.set_reshard_after_backward(False)
        outputs = model(**inputs)
        if self.is_fsdp_enabled:
            model.set_reshard_after_backward(True)
        terms = {name: value.detach() for name, value in outputs.items()}
        finite = torch.stack([value.isfinite().all() for value in terms.values()]).int()
        if world_size() > 1:
            torch.distributed.all_reduce(finite, op=torch.distributed.ReduceOp.MIN)
        if not bool(finite.all()):
            self._stop_not_finite([n for n, ok in zip(terms, finite.tolist(), strict=True) if not ok], terms, inputs)
        for name, value in terms.items():
            self._terms[name] = self._terms.get(name, 0) + value
        self._batches += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def _stop_not_finite(self, bad: Sequence[str], terms: dict[str, Tensor], inputs: dict[str, Tensor]) -> None:
        step = self.state.global_step + 1
        path = Path(self.args.output_dir) / f"not-finite-step-{step}-rank-{rank()}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.cpu().contiguous() for name, value in inputs.items()}, path)
        named = [name for name in bad if name != "loss"] or list(bad)
        values = ", ".join(f"{name} {float(value):.4g}" for name, value in terms.items())
        raise TrainingStopped(
            f"{' and '.join(named)} is not finite at step {step} ({values}); the batch is in {path}; "
            "lower --learning_rate, or use --bf16 in place of --fp16"
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the mean of every loss term since the last log over steps and processes."""
        if "loss" in logs and self._batches:
            names = [name for name in self._terms if name != "loss"]
            values = torch.stack([self._terms[name].float() for name in names]) / self._batches
            values = self.accelerator.reduce(values, reduction="mean")
            self._logged_terms = dict(zip(names, values.tolist(), strict=True))
            logs = {**logs, **self._logged_terms}
            self._terms, self._batches = {}, 0
        super().log(logs, start_time)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Embed texts with the model as it is, each process its share.

        Args:
            sentences: the same on every process.

        Returns:
            (n, d) on the CPU, on every process.
        """
        model, batch_size = self.accelerator.unwrap_model(self.model), self.args.per_device_eval_batch_size
        with self._whole(model):
            return encode_together(
                lambda batch: model.encode(batch, batch_size=batch_size),
                sentences,
                width=model.encoder.width,
                batch_size=batch_size,
                device=self.args.device,
            )

    @contextmanager
    def _whole(self, model: RobustCSEModel) -> Iterator[None]:
        """FSDP's shares of the weights gathered, once: processes have different numbers of batches to embed."""
        parts: list[Any] = []
        if self.is_fsdp_enabled:
            from torch.distributed.fsdp import FSDPModule

            parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(
                    bool(self.accelerator.state.fsdp_plugin.reshard_after_forward), recurse=False
                )

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Spearman x 100, or retrieval, and geometry on every dev set.

        Args:
            eval_dataset: {name: `StsData` or `DevText`}; by default those of the trainer.
            ignore_keys: unused, for the signature of ``Trainer``.
            metric_key_prefix: before every name.

        Returns:
            ``<prefix>_<set>_<metric>`` of each set (`metrics_of`), and ``<prefix>_avg_spearman``.

        Raises:
            TrainingStopped: if the embeddings have collapsed since training began.
        """
        started = time.perf_counter()
        sets = dict(eval_dataset or self.eval_data)
        metrics: dict[str, float] = {}
        for name, data in sets.items():
            found = (evaluate_dev_text if isinstance(data, DevText) else evaluate_dev)(self.encode, data)
            for metric, value in found.items():
                metrics[f"{metric_key_prefix}_{name}_{metric}"] = value
        scores = [metrics[f"{metric_key_prefix}_{n}_spearman"] for n, data in sets.items() if isinstance(data, StsData)]
        if len(scores) > 1:
            metrics[f"{metric_key_prefix}_avg_spearman"] = sum(scores) / len(scores)
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - started, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if sets:
            self._check_collapse(metrics, f"{metric_key_prefix}_{next(iter(sets))}_embedding_std")
        return metrics

    def _check_collapse(self, metrics: dict[str, float], name: str) -> None:
        spread = metrics[name]
        if self.start_spread is None:
            self.start_spread = spread  # an untrained encoder may be narrow: what counts is that it became narrower
        if self.is_in_train and spread < self.args.collapse_threshold and spread < self.start_spread / 2:
            terms = ", ".join(f"{term} {value:.4g}" for term, value in self._logged_terms.items())
            raise TrainingStopped(
                f"the embeddings collapsed: {name} is {spread:.3g} at step {self.state.global_step}, "
                f"{self.start_spread:.3g} before training (loss terms: {terms or 'not logged yet'}); "
                "lower --learning_rate or raise the weight of the contrastive term"
            )

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            # The stock trainer pickles its arguments beside the model; readable JSON takes their place.
            (folder / "training_args.bin").unlink(missing_ok=True)
            write_json(folder / "training_args.json", self.args.to_dict())

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository, after asking whether the token may write to it.

        Args:
            token: in place of ``hub_token``.
            private: in place of ``hub_private_repo``.

        Raises:
            UserError: if it may not, or the Hub cannot be reached.
        """
        if not self.is_world_process_zero():
            return
        self.hub_model_id = publish.preflight(
            self.args.hub_model_id or repo_name(Path(self.args.output_dir)),
            token=token or self.args.hub_token,
            private=self.args.hub_private_repo if private is None else private,
            revision=self.args.hub_revision,
            create=True,
        )
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model to ``output_dir`` and publish it from there as a release; call it on every process.

        Args:
            commit_message: first line of the commit.
            blocking: wait for the upload.
            token: in place of ``hub_token``.
            revision: the branch, in place of ``hub_revision``.
            private: in place of ``hub_private_repo``.
            **kwargs: tags, license, language and finetuned_from (a Hub id) for the card, and results, more result files
                for it; what else the stock trainer takes is on the card from the records.

        Returns:
            The commit, or its future if not `blocking`; None on other processes than the first.

        Raises:
            PushFailed: one line that names the folder of the model and the command to retry.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        tags = kwargs.get("tags") or []
        card = {name: kwargs.get(name) for name in ("license", "language")} | {
            "base_model": kwargs.get("finetuned_from")
        }
        settings = {
            "message": commit_message, "token": token, "revision": revision or self.args.hub_revision,
            "private": self.args.hub_private_repo if private is None else private,
            "tags": [tags] if isinstance(tags, str) else tags, "results": kwargs.get("results", ()),
            "card": card,
        }  # fmt: skip

        def push() -> CommitInfo:
            return publish.push(self.args.output_dir, self.hub_model_id, **settings)[0]

        return push() if blocking else run_as_future(push)

    @property
    def _pushes_states(self) -> bool:
        return self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        # A copy: the checkpoint may be removed while it is on its way.
        copy = Path(tempfile.mkdtemp(prefix="robustcse-")) / Path(checkpoint_folder).name
        try:
            shutil.copytree(
                checkpoint_folder, copy, ignore=None if self._pushes_states else shutil.ignore_patterns("*.pt", "*.pth")
            )
        except OSError as error:  # of shutil too, such as a full disk
            self._warn_not_pushed(self.state.global_step, error)
            shutil.rmtree(copy.parent, ignore_errors=True)
            return
        job = run_as_future(self._push_copy, copy, self.state.global_step)  # one after the other
        if busy:
            self.push_in_progress.jobs.append(job)
        else:
            self.push_in_progress = PushInProgress([job])

    def _push_copy(self, checkpoint: Path, step: int) -> None:
        """Push a checkpoint while training goes on, which a failure must not end."""
        args = self.args
        settings = {"private": args.hub_private_repo, "revision": args.hub_revision, "token": args.hub_token}
        settings["message"] = f"Training in progress, step {step}"
        try:
            release = publish.build_release(
                checkpoint, checkpoint.parent / "release", repo_id=self.hub_model_id, token=args.hub_token
            )
            publish.upload(release.folder, self.hub_model_id, **settings)
            if self._pushes_states:
                last = args.hub_strategy == HubStrategy.CHECKPOINT
                name = "last-checkpoint" if last else checkpoint.name
                publish.push_states(checkpoint, self.hub_model_id, name=name, replace=last, **settings)
        except Exception as error:  # whatever it is, nobody looks at the result of this job
            self._warn_not_pushed(step, error)
        finally:
            shutil.rmtree(checkpoint.parent, ignore_errors=True)

    def _warn_not_pushed(self, step: int, error: Exception) -> None:
        reason = (str(error) if isinstance(error, UserError | PushFailed) else explain(error)).split("; ")[0]
        print(f"warning: the checkpoint of step {step} was not pushed: {reason}", file=sys.stderr, flush=True)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The stock sampler; lengths that it sorts by are read once, where a column of a data set reads row by row."""
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            sampler.lengths = list(sampler.lengths[:])
        return sampler

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self.accelerator.unwrap_model(self.model).load_checkpoint(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self.accelerator.unwrap_model(self.model).load_checkpoint(self.state.best_model_checkpoint)
