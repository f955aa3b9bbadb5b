"""A training run from arguments to results: corpus, model, trainer, export, manifest, several seeds."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from accelerate.utils import broadcast_object_list
from sentence_transformers import SentenceTransformer
from transformers import TrainingArguments, set_seed

from hf_robustcse import layout, publish
from hf_robustcse.arguments import DEV_METRICS, EMBEDDED_CORPUS, EMBEDDED_ENCODER, Arguments, DataArguments
from hf_robustcse.arguments import parse_arguments as parse_arguments
from hf_robustcse.augmentation import TEXT_AUGMENTATIONS, TextAugmentation, check_drop, check_word_list
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.distributed import say, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.dev_file import load_dev_file
from hf_robustcse.evaluation.dev_text import SEED, DevText, hold_out, load_dev_text
from hf_robustcse.evaluation.geometry import has_positives
from hf_robustcse.evaluation.results import base_results, library_versions, task_record
from hf_robustcse.evaluation.run import load_tasks
from hf_robustcse.evaluation.sts import OWN, STS_TEST, MissingData, StsData, load_sts, parse_task
from hf_robustcse.files import write_json
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.publish.verify import PAIR
from hf_robustcse.stream import TextStream
from hf_robustcse.trainer import RobustCSETrainer, StepClock, metrics_of, peak_bytes, repo_name

DRY_STEPS = 4


def run(arguments: Arguments) -> dict[str, Any]:
    """Train, for one seed or several.

    Args:
        arguments: of the run.

    Returns:
        What is written to ``results.json``.

    Raises:
        UserError: for bad input; nothing has been written then. With ``--push_to_hub`` a token that may not write, or a
            Hub that cannot be reached, is bad input too.
        TrainingStopped: if training cannot go on.
        PushFailed: if all is done and written, but the push in the end failed.
    """
    training = arguments.training
    _ = training.device  # joins the process group, if there is one
    transformers.utils.logging.set_verbosity_error()  # load reports; what matters in them is checked
    transformers.utils.logging.disable_progress_bar()
    datasets.utils.logging.set_verbosity_error()
    if torch.cuda.device_count() > 1 and world_size() == 1:
        say(f"one of {torch.cuda.device_count()} GPUs is used; all of them: accelerate launch {arguments.command}")
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ and world_size() == 1:
        say(
            "warning: accelerate launch starts one process on a CPU whatever --num_processes says; for several use "
            f"torchrun --nproc_per_node N {arguments.command} --use_cpu"
        )
    loads_once = [os.environ.get(key) == "true" for key in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")]
    if all(loads_once):
        raise UserError("every process loads the encoder itself: set fsdp_cpu_ram_efficient_loading: false")
    name = "embedded" if arguments.embedded else Path(arguments.model.model_name_or_path).name
    default = Path("runs") / f"{arguments.model.method}-{name}"
    seeds = arguments.run.seeds or [training.seed]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))} names a seed twice")
    if arguments.run.dry_run:
        settle_output_dir(training, default, arguments.run.overwrite_output_dir, remove=False)
        return _dry_run(arguments)
    if training.push_to_hub:
        training.hub_model_id = _check_hub(training, default, arguments.command)
    settle_output_dir(training, default, arguments.run.overwrite_output_dir)

    dev = _load_dev(arguments)
    test = _load_test(arguments, dev)
    corpus, held_out = _load_corpus(arguments)
    if held_out is not None:
        # Before the sets of --eval_tasks, as every set of the user's own: the first chooses the checkpoint.
        dev = {k: v for k, v in dev.items() if k == OWN} | {held_out.key: held_out} | dev
    wanted = training.push_to_hub
    if arguments.run.seeds is None:
        results = _run_one(arguments, corpus, dev, test)
    else:
        training.push_to_hub = False  # of several seeds the exported one is pushed, in the end
        of_seeds = run_seeds(arguments, seeds, lambda one: _run_one(one, corpus, dev, test))
        if of_seeds[-1]["training"]["status"] != "finished":
            return of_seeds[-1]
        results = _summarise_seeds(Path(training.output_dir), seeds, of_seeds, training.should_save)
    if wanted and results["training"]["status"] == "finished" and training.process_index == 0:
        _push(training, results["method"])
    return results


def _dry_run(arguments: Arguments) -> dict[str, Any]:
    """Train `DRY_STEPS` steps in a folder that is then removed; what the whole run would be, as far as can be told."""
    dev = _load_dev(arguments)
    _load_test(arguments, dev)
    corpus, held_out = _load_corpus(arguments)
    dev = dev | ({held_out.key: held_out} if held_out else {})
    asked = arguments.training
    batch, accumulation = asked.per_device_train_batch_size * world_size(), asked.gradient_accumulation_steps
    steps = asked.max_steps
    if steps <= 0:
        batches = len(corpus.dataset) / batch
        batches = math.floor(batches) if asked.dataloader_drop_last else math.ceil(batches)
        steps = math.ceil(asked.num_train_epochs * math.ceil(batches / accumulation))
    with tempfile.TemporaryDirectory(prefix="robustcse-dry-") as folder:
        mine = copy.copy(arguments)
        mine.training = training = copy.deepcopy(asked)
        training.output_dir, training.max_steps, training.push_to_hub = folder, DRY_STEPS, False
        training.save_strategy = training.logging_strategy = "no"
        training.report_to = []  # a tracker would keep four steps as a run
        training.eval_on_start = False
        trainer = _trainer(mine, corpus, dev)
        model, strategy = trainer.model, trainer.strategy
        training.eval_strategy = "no"
        training.load_best_model_at_end = False
        clock = StepClock()
        trainer.add_callback(clock)
        trainer.train()
    seconds = statistics.median(clock.seconds[1:])  # the first one warms up
    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    plan = {
        "method": arguments.model.method,
        "processes": world_size(),
        "strategy": strategy,
        "dtype": _dtype(asked),
        "sentences_per_step": batch * accumulation,
        "negatives": _negatives(model, corpus, batch),
        "steps": steps,
        "rows": None if corpus.report is None else len(corpus.dataset),
        "parameters": parameters,
        "state_bytes": 4 * parameters + 12 * trained,  # float32 weights; gradients and two moments of Adam
        "peak_bytes": peak_bytes(),
        "seconds_per_step": seconds,
        "seconds": seconds * steps,
    }
    encoder = arguments.model.model_name_or_path or "the embedded encoder"
    processes = f"{world_size()} process{'es' if world_size() > 1 else ''}"
    say(
        f"dry run: {plan['method']} on {encoder}, {plan['dtype']}, {processes}{f' ({strategy})' * (world_size() > 1)}",
        f"a step: {asked.per_device_train_batch_size} sentences x {processes} x {accumulation} accumulated = "
        f"{plan['sentences_per_step']:,}; {plan['negatives']} negatives for each sentence",
        f"steps: {steps:,}, {steps * plan['sentences_per_step']:,} sentences"
        + ("" if plan["rows"] is None else f" of a corpus of {plan['rows']:,}"),
        f"memory of a process: {plan['peak_bytes'] / 1e9:.2f} GB at its peak here; weights, gradients and Adam are "
        f"{plan['state_bytes'] / 1e9:.2f} GB in all ({parameters / 1e6:.1f} million parameters)",
        f"time: {seconds:.3f} s a step here, so about {_duration(plan['seconds'])} without evaluation and checkpoints"
        + (f", for each of {len(arguments.run.seeds)} seeds" if arguments.run.seeds else ""),
        "nothing was written; the same command without --dry_run trains",
    )  # fmt: skip
    return {"training": {"status": "dry"}, "plan": plan}


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _dtype(training: TrainingArguments) -> str:
    return "bf16" if training.bf16 else "fp16" if training.fp16 else "fp32"


def _negatives(model: RobustCSEModel, corpus: Corpus, batch: int) -> int:
    return (batch - 1 if corpus.views < 3 else 2 * batch - 1) if model.method.contrastive else 0


def _check_hub(training: TrainingArguments, default: Path, command: str) -> str:
    """OWNER/NAME to push to, the same on every process, before anything is read or written.

    Raises:
        UserError: if a push cannot succeed.
    """
    shared: list[str | None] = [None, None]
    if training.process_index == 0:
        name = training.hub_model_id or repo_name(Path(training.output_dir or default))
        try:
            shared[0] = publish.preflight(
                name, token=training.hub_token, private=training.hub_private_repo, revision=training.hub_revision,
                retry=f"examples/{command}",
            )  # fmt: skip
        except UserError as error:
            shared[1] = str(error)
    if world_size() > 1:
        broadcast_object_list(shared)
    if shared[1]:
        raise UserError(shared[1])
    return shared[0]


def _push(training: TrainingArguments, method: str) -> None:
    commit, release = publish.push(
        training.output_dir, training.hub_model_id, private=training.hub_private_repo, revision=training.hub_revision,
        token=training.hub_token, message=f"{method}: end of training",
    )  # fmt: skip
    say(*(f"warning: {warning}" for warning in release.warnings), f"pushed: {commit.commit_url}")


def run_seeds(arguments: Any, seeds: Sequence[int], one: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run once for each seed, in a folder `seed-N` of its own.

    Args:
        arguments: of the run, with its `training` arguments; a seed that is finished already is not run again when they
            resume.
        seeds: distinct.
        one: arguments of one seed -> its results.

    Returns:
        The results of each seed, up to the first that was stopped.
    """
    training, root, results = arguments.training, Path(arguments.training.output_dir), []
    for number, seed in enumerate(seeds, 1):
        mine = copy.copy(arguments)
        mine.training = copy.deepcopy(training)
        mine.training.seed, mine.training.output_dir = seed, str(root / f"seed-{seed}")
        say(f"seed {seed} ({number} of {len(seeds)})")
        finished = root / f"seed-{seed}" / "results.json"
        if training.resume_from_checkpoint and finished.is_file():
            say(f"already finished: {finished}")
            results.append(json.loads(finished.read_text(encoding="utf-8")))
            continue
        if training.resume_from_checkpoint and not holds_run(finished.parent):  # not begun, or killed as it began
            mine.training.resume_from_checkpoint = None
        results.append(one(mine))
        if results[-1]["training"]["status"] != "finished":
            break
    return results


def settle_output_dir(training: TrainingArguments, default: Path, overwrite: bool, remove: bool = True) -> None:
    """Choose the default folder, or refuse one that holds another run, the same on every process.

    Args:
        training: its `output_dir` is set where it is None.
        default: the folder to choose then, or the first of `default-2`, `default-3`, ... that does not exist.
        overwrite: whether a run that is there may be replaced.
        remove: whether it is removed then.

    Raises:
        UserError: for a folder that cannot be used.
    """
    problem = None
    if training.process_index == 0:
        if training.output_dir is None:
            tries = (default.with_name(f"{default.name}-{i}") if i > 1 else default for i in range(1, 10**6))
            training.output_dir = str(next(path for path in tries if not path.exists()))
        folder = Path(training.output_dir)
        if folder.exists() and not folder.is_dir():
            problem = f"--output_dir {folder} is a file"
        elif training.resume_from_checkpoint and not holds_run(folder):
            problem = f"there is no run to resume in {folder}: check --output_dir"
        elif not training.resume_from_checkpoint and not overwrite and holds_run(folder):
            problem = (
                f"--output_dir {folder} holds another run: choose a new one, go on with "
                "--resume_from_checkpoint last, or pass --overwrite_output_dir"
            )
        elif overwrite and remove and holds_run(folder):
            _remove_run(folder)
    if world_size() > 1:
        shared = [training.output_dir, problem]
        broadcast_object_list(shared)
        training.output_dir, problem = shared
    if problem:
        raise UserError(problem)


def holds_run(folder: Path) -> bool:
    """Whether a run, or a model, is in a folder."""
    marks = ("manifest.json", "results.json", "modules.json", "config.json", "checkpoint-*", "seed-*")
    return any(next(folder.glob(mark), None) for mark in marks)


def _remove_run(folder: Path) -> None:
    for pattern in ("checkpoint-*", "seed-*", "first-stage", "augmented"):
        for path in folder.glob(pattern):
            shutil.rmtree(path)
    for name in ("manifest.json", "results.json"):
        (folder / name).unlink(missing_ok=True)


def _load_corpus(arguments: Arguments) -> tuple[Corpus, DevText | None]:
    """The corpus without the sentences that are held out of it, and those."""
    data, training = arguments.data, arguments.training
    if data.streaming and training.max_steps <= 0:
        raise UserError("--streaming does not know the length of the corpus: add --max_steps")
    if not data.streaming and data.shuffle_buffer != DataArguments.shuffle_buffer:
        raise UserError("--shuffle_buffer belongs to --streaming: a corpus in memory is shuffled as a whole")
    if data.streaming and data.preprocessing_num_workers is not None:
        raise UserError(
            "--preprocessing_num_workers tokenises a corpus in memory; with --streaming the workers that "
            "read tokenise: use --dataloader_num_workers"
        )
    if data.streaming and (strategy := getattr(training, "train_sampling_strategy", "random")) != "random":
        raise UserError(f"--train_sampling_strategy {strategy} needs a corpus in memory: leave out --streaming")
    if data.max_seq_length < 3:
        raise UserError(f"--max_seq_length must be at least 3, not {data.max_seq_length}")
    rows = data.max_train_samples
    if rows is not None and (rows <= 0 or rows > 1 and rows != int(rows) or rows <= 1 and data.streaming):
        raise UserError(
            f"--max_train_samples must be a number of rows, or a part of at most 1 without --streaming, not {rows:g}"
        )
    keywords = {"text_columns": data.text_column, "dedup": data.dedup, "streaming": data.streaming}
    source = data.train_file or str(EMBEDDED_CORPUS)
    if rows is not None and rows <= 1:
        rows = math.ceil(rows * load_corpus(source, **keywords).report.kept)
    corpus = load_corpus(source, max_rows=None if rows is None else int(rows), **keywords)
    if corpus.report is not None:
        say(*corpus.report.lines())
    held_out = None
    if data.dev_holdout is not None:
        held_out, corpus = hold_out(corpus, data.dev_holdout, noise=data.dev_noise)
        say(f"held out: {held_out.n:,} sentences ({held_out.held_out:,} rows), the dev set {held_out.key}")
    batch = training.per_device_train_batch_size * world_size()
    if batch < 2:
        raise UserError("--per_device_train_batch_size 1 leaves no negatives: use at least 2, better 64")
    if not data.streaming and len(corpus.dataset) < batch:
        raise UserError(
            f"the corpus has {len(corpus.dataset)} sentences, fewer than one batch of {batch}: lower "
            "--per_device_train_batch_size or add text"
        )
    return corpus, held_out


def _load_dev(arguments: Arguments) -> dict[str, StsData | DevText]:
    """The dev sets but for one that is held out of the corpus, the user's own first."""
    data, training = arguments.data, arguments.training
    given = [name for name in ("dev_file", "dev_text", "dev_holdout") if getattr(data, name) is not None]
    if "dev_text" in given and "dev_holdout" in given:
        raise UserError("--dev_text and --dev_holdout are both the dev set without labels: leave one of them out")
    if data.dev_noise != DataArguments.dev_noise and not {"dev_text", "dev_holdout"} & set(given):
        raise UserError("--dev_noise belongs to --dev_text or --dev_holdout: add one of them or leave it out")
    if training.eval_strategy == "no":
        if given:
            raise UserError(f"--eval_strategy no makes no use of --{given[0]}: leave one of them out")
        if data.eval_tasks not in (None, ["none"]):
            raise UserError(
                f"--eval_strategy no makes no use of --eval_tasks {' '.join(data.eval_tasks)}: leave one of them out, "
                "or pass --eval_tasks none over a recipe's"
            )
    sets: dict[str, StsData | DevText] = {}
    if data.dev_file is not None:
        own = load_dev_file(data.dev_file)
        if not has_positives(own):
            say(
                "note: the scores of --dev_file are not within 0 and 5 with some above 4, as those of STS-B; alignment "
                "and positive_cosine, which are those of the pairs above 4, are left out"
            )
        sets[own.key] = own
    if data.dev_text is not None:
        text = load_dev_text(data.dev_text, noise=data.dev_noise)
        say(f"{text.key}: {text.n:,} sentences of {text.source}")
        sets[text.key] = text
    if given:  # a dev set of the user's own takes the place of STS-B
        named = [] if data.eval_tasks == ["none"] else data.eval_tasks or []
        return sets | _named_sets(named, data.eval_data_dir)
    if training.eval_strategy == "no" or data.eval_tasks == ["none"]:
        training.eval_strategy, training.load_best_model_at_end = "no", False
        return {}
    if data.eval_tasks is None and data.eval_data_dir is None:
        # A user without evaluation data still gets a dev score; the choice is printed and recorded.
        if not arguments.embedded:
            try:
                return {"stsb_dev": load_sts("STSB", None, "dev")}
            except MissingData as error:
                say(f"STS-B dev is not at hand ({error}); the embedded dev set stands in; see --eval_data_dir")
        data.eval_tasks = ["embedded_dev"]
    return _named_sets(data.eval_tasks or ["stsb_dev"], data.eval_data_dir)


def _named_sets(names: Sequence[str], data_dir: str | None) -> dict[str, StsData]:
    """The STS sets of names such as `stsb_dev`."""
    sets = {}
    for name in names:
        task, split = parse_task(name)
        pairs = load_sts(task, data_dir, split)
        sets[pairs.key.lower()] = pairs
    return sets


def _load_test(arguments: Arguments, dev: dict[str, StsData | DevText]) -> dict[str, StsData]:
    data = arguments.data
    if not data.test_tasks:
        return {}
    names = [name.lower() for name in data.test_tasks]
    if "geometry" in names:
        raise UserError("--test_tasks takes sts or STS sets; the geometry of each is reported anyway")
    found, _ = load_tasks(names, data.eval_data_dir)
    sets = {pairs.key.lower(): pairs for pairs in found}
    if twice := sorted(sets.keys() & dev.keys()):
        raise UserError(f"{', '.join(twice)} is in --eval_tasks and in --test_tasks: name it once")
    return sets


def _load_model(arguments: Arguments, corpus: Corpus) -> RobustCSEModel:
    m = arguments.model
    keywords: dict[str, Any] = {}
    if m.model_revision:
        keywords["revision"] = m.model_revision
    if m.attn_implementation:
        keywords["attn_implementation"] = m.attn_implementation
    if m.dropout is not None and not 0 <= m.dropout < 1:
        raise UserError(f"--dropout must be at least 0 and below 1, not {m.dropout}")

    def load(dropout: float | None) -> RobustCSEModel:
        set_seed(arguments.training.seed)  # the head is new
        return RobustCSEModel.from_encoder(
            m.model_name_or_path or str(EMBEDDED_ENCODER),
            method=m.method,
            method_options=arguments.method_options,
            pooler=m.pooler,
            head=m.head,
            keep_head=m.keep_head,
            temperature=m.temperature,
            augmentation=m.augmentation,
            augmentation_rate=m.augmentation_rate,
            dropout=dropout,
            **keywords,
        )

    model = load(m.dropout)
    hub = {"revision": m.model_revision} if m.model_revision else {}
    own = layout.own_pooling(m.model_name_or_path, **hub) if m.model_name_or_path else None
    if own not in (None, m.pooler):
        say(f"note: {m.model_name_or_path} embeds by {own} pooling; --pooler {own} trains it as it is used")
    if corpus.views > 1 and m.augmentation != "dropout":
        raise UserError(
            f"--augmentation {m.augmentation} makes positives, and this corpus brings its own: leave it out"
        )
    if corpus.views > 1 or not model.method.paired or has_dropout(model) or m.augmentation != "dropout":
        return model
    if m.dropout == 0:
        say("note: --dropout 0 makes both views of a sentence identical; the positive pairs teach nothing")
        return model
    if not m.dropout_fix:
        raise UserError(
            "two passes of this encoder are identical, so positive pairs carry no signal: pass --dropout 0.1"
        )
    say("two passes of this encoder are identical, so positive pairs would carry no signal: dropout is set to 0.1")
    model = load(0.1)
    if not has_dropout(model):
        raise UserError("this encoder applies no dropout in training: use labelled pairs, or another encoder")
    return model


def _text_augmentation(arguments: Arguments) -> TextAugmentation | None:
    m = arguments.model
    check_drop(m.augmentation, m.augmentation_drop)
    check_word_list(m.augmentation, m.augmentation_wordlist)
    if m.augmentation not in TEXT_AUGMENTATIONS:
        return None
    return TextAugmentation(
        m.augmentation, rate=m.augmentation_rate, seed=arguments.training.seed, drop=m.augmentation_drop,
        word_list=m.augmentation_wordlist,
    )  # fmt: skip


def has_dropout(model: RobustCSEModel) -> bool:
    """Whether two passes in training mode differ; leaves the random state as it was."""
    ids = torch.arange(8).remainder(model.encoder.backbone.get_input_embeddings().num_embeddings).view(1, 8)
    mask = torch.ones_like(ids)
    training = model.training
    model.train()
    with torch.random.fork_rng(), torch.no_grad():
        first, second = (model.encoder(mask, input_ids=ids) for _ in range(2))
    model.train(training)
    return not torch.equal(first, second)


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end; the trainer's state is the last file of one."""
    found = []
    for path in folder.glob("checkpoint-*"):
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found.append((state["global_step"], str(path)))
    return max(found)[1] if found else None


def resume_point(training: TrainingArguments, manifest: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The checkpoint to go on from, and the manifest of the run that it belongs to."""
    folder = Path(training.output_dir)
    wanted = training.resume_from_checkpoint
    if not wanted or str(wanted).lower() == "false":
        return None, {}
    path = folder / "manifest.json"
    if not path.is_file():
        raise UserError(f"there is no manifest.json in {folder}: the run in it cannot be resumed")
    before = json.loads(path.read_text(encoding="utf-8"))
    different = [key for key, value in manifest["identity"].items() if before.get("identity", {}).get(key) != value]
    if different:
        key = different[0]
        raise UserError(
            f"--output_dir {folder} holds another run, with {key} {before.get('identity', {}).get(key)} in place of "
            f"{manifest['identity'][key]}: choose another folder"
        )
    if str(wanted).lower() in ("last", "true"):
        checkpoint = last_checkpoint(folder)
        say(f"resuming from {checkpoint}" if checkpoint else "no checkpoint was written yet: starting anew")
        return checkpoint, before
    if not (Path(wanted) / "trainer_state.json").is_file():
        raise UserError(f"--resume_from_checkpoint {wanted} is no complete checkpoint; 'last' finds the newest one")
    return str(wanted), before


def git_commit() -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None


def _about(data: StsData | DevText) -> dict[str, Any]:
    """What the records say of a dev set without labels beside its source and checksum; nothing of another."""
    if not isinstance(data, DevText):
        return {}
    return {"noise": data.noise, "noise_seed": SEED, "held_out_rows": data.held_out}


def _manifest(
    arguments: Arguments, corpus: Corpus, dev: dict[str, StsData | DevText], model: RobustCSEModel, strategy: str
) -> dict[str, Any]:
    training = arguments.training
    batch = training.per_device_train_batch_size * world_size()
    cuda = torch.cuda.is_available()
    return {
        # What must be equal for a resumed run to be the same run.
        "identity": {
            "method": model.method.name,
            "method_options": model.method.options(),
            "model_name_or_path": arguments.model.model_name_or_path or "embedded",
            "pooler": model.config.pooler,
            "head": model.config.head,
            "temperature": model.config.temperature,
            "augmentation": model.config.augmentation,
            "augmentation_rate": model.config.augmentation_rate,
            "augmentation_wordlist": arguments.model.augmentation_wordlist,
            # None as in runs that were begun before there was such an option: they can be resumed.
            "augmentation_drop": arguments.model.augmentation_drop or None,
            "corpus_sha256": corpus.report.sha256 if corpus.report else None,
            "max_train_samples": arguments.data.max_train_samples,
            "dev_holdout": arguments.data.dev_holdout,
            "max_seq_length": arguments.data.max_seq_length,
            "batch": batch,
            "gradient_accumulation_steps": training.gradient_accumulation_steps,
            "learning_rate": training.learning_rate,
            "seed": training.seed,
        }
        | ({"streaming": True, "shuffle_buffer": arguments.data.shuffle_buffer} if arguments.data.streaming else {}),
        "status": "running",
        "command": arguments.command,
        "git_commit": git_commit(),
        "arguments": {
            "model": dataclasses.asdict(arguments.model),
            "data": dataclasses.asdict(arguments.data),
            "training": training.to_dict(),
        },
        "encoder": model.config.encoder,
        "corpus": corpus.report.to_dict() if corpus.report else {"source": arguments.data.train_file},
        "evaluation": {
            name: {"rows": d.n, "sha256": d.sha256, "split": d.split, "source": d.source} | _about(d)
            for name, d in dev.items()
        },
        "max_seq_length": {"training": arguments.data.max_seq_length, "evaluation": model.max_seq_length},
        "negatives": _negatives(model, corpus, batch),
        "processes": world_size(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "dtype": _dtype(training),
        "strategy": strategy,
        "library_versions": library_versions(),
    }


def _run_one(
    arguments: Arguments, corpus: Corpus, dev: dict[str, StsData | DevText], test: dict[str, StsData]
) -> dict[str, Any]:
    training = arguments.training
    folder = Path(training.output_dir)
    trainer = _trainer(arguments, corpus, dev)
    model = trainer.model
    manifest = _manifest(arguments, corpus, dev, model, trainer.strategy)
    checkpoint, earlier = resume_point(training, manifest)
    resumed_at = json.loads((Path(checkpoint) / "trainer_state.json").read_text())["global_step"] if checkpoint else 0
    negatives = manifest["negatives"]
    steps = training.gradient_accumulation_steps
    say(
        f"{model.method.name} on {arguments.model.model_name_or_path or 'the embedded encoder'}: pooler "
        f"{model.config.pooler}, head {model.config.head}, {negatives} negatives for each sentence, "
        f"{manifest['dtype']}, {world_size()} process{'es' if world_size() > 1 else ''}"
    )
    if steps > 1 and negatives:
        say(
            f"note: gradient accumulation averages the gradients of {steps} batches; a sentence still has {negatives} "
            "negatives, those of its own batch. More negatives need a larger --per_device_train_batch_size or more "
            "processes."
        )
    manifest["before"] = earlier.get("before") or _metrics(trainer, dev)
    if dev:  # a resumed run is compared with the encoder that training began with, not with what it has become
        trainer.start_spread = manifest["before"][next(iter(dev))]["embedding_std"]
    if training.should_save:
        write_json(folder / "manifest.json", manifest)

    started = time.perf_counter()
    output = trainer.train(resume_from_checkpoint=checkpoint)
    seconds = time.perf_counter() - started
    stopped = trainer.end.stopped and trainer.state.global_step < trainer.state.max_steps
    manifest["status"] = "stopped" if stopped else "finished"
    step = trainer.state.global_step
    if stopped:
        if training.should_save:
            write_json(folder / "manifest.json", manifest)
        say(
            f"stopped by SIGTERM after step {step} of {trainer.state.max_steps}; the checkpoint is in "
            f"{folder / f'checkpoint-{step}'}; go on with the same command and --resume_from_checkpoint last"
        )
        return {"training": {"status": "stopped", "steps": step}}

    after = _metrics(trainer, dev) | _metrics(trainer, test, "test")
    trainer.save_model(str(folder), _internal_call=True)  # the push comes after the results are written
    best = trainer.state.best_global_step if training.load_best_model_at_end else None
    results = base_results(
        model=str(folder),
        method=model.method.name,
        seed=training.seed,
        command=arguments.command,
        device=training.device,
    ) | {
        "tasks": {name: task_record({**after[name], "n": d.n}, d) | _about(d) for name, d in (dev | test).items()},
        "before": manifest["before"],
        "selection": {
            "metric": training.metric_for_best_model if dev else None,
            "step": best or step,
            "on_test_set": trainer.selected_on_test(),
        },
        "training": {
            "status": "finished",
            "steps": step,
            "seconds": round(seconds, 1),
            "resumed_at_step": resumed_at,  # the seconds are those of the steps after it
            "sentences": step * steps * manifest["identity"]["batch"],
            "loss": output.training_loss,
        },
    }
    results["averages"]["sts"] = _sts_average(results["tasks"])
    if training.should_save:
        results["check"] = _load_check(folder)
        write_json(folder / "manifest.json", manifest)
        write_json(folder / "results.json", results)
    _report(arguments, results, folder)
    return results


def _trainer(arguments: Arguments, corpus: Corpus, dev: dict[str, StsData | DevText]) -> RobustCSETrainer:
    model = _load_model(arguments, corpus)
    model.train()
    reads = model.method.needs_text
    model.method.attach_tokenizer(model.tokenizer, arguments.data.max_seq_length)
    if reads:
        model.method.collate(["a sentence"])  # what reads the texts has to load before anything is written
    collator = ContrastiveCollator(model.tokenizer, model.method.collate if reads else None)
    tokens = _train_data(arguments, corpus, model, collator)
    return RobustCSETrainer(model, arguments.training, train_dataset=tokens, data_collator=collator, eval_dataset=dev)


def _train_data(
    arguments: Arguments, corpus: Corpus, model: RobustCSEModel, collator: ContrastiveCollator
) -> datasets.Dataset | TextStream:
    training, data, augmentation = arguments.training, arguments.data, _text_augmentation(arguments)
    if not data.streaming:
        workers, reads = data.preprocessing_num_workers, model.method.needs_text
        return tokenize_corpus(corpus, model.tokenizer, data.max_seq_length, workers, reads, augmentation)
    if not training.dataloader_num_workers:
        say("note: each step waits for its batch to be read; --dataloader_num_workers 2 reads beside the training")
    return TextStream(
        corpus, model.tokenizer, collator, max_length=data.max_seq_length,
        batch_size=training.per_device_train_batch_size, shuffle_buffer=data.shuffle_buffer,
        seed=training.seed if training.data_seed is None else training.data_seed, augmentation=augmentation,
    )  # fmt: skip


def _load_check(folder: Path) -> dict[str, Any]:
    """Two sentences and their cosine under the folder as plain sentence-transformers loads it, on the CPU."""
    model = SentenceTransformer(str(folder), device="cpu")
    a, b = model.encode(list(PAIR), convert_to_tensor=True, show_progress_bar=False)
    return {"sentences": list(PAIR), "cosine": round(torch.cosine_similarity(a, b, dim=0).item(), 4)}


def _sts_average(tasks: dict[str, Any]) -> float | None:
    """The plain mean of the seven test sets, if all are there."""
    scores = [tasks[name.lower()]["spearman"] for name in STS_TEST if name.lower() in tasks]
    return statistics.fmean(scores) if len(scores) == len(STS_TEST) else None


def _metrics(
    trainer: RobustCSETrainer, sets: Mapping[str, StsData | DevText], prefix: str = "eval"
) -> dict[str, dict[str, float]]:
    if not sets:
        return {}
    flat = trainer.evaluate(sets, metric_key_prefix=prefix)
    return {name: {m: flat[f"{prefix}_{name}_{m}"] for m in metrics_of(data)} for name, data in sets.items()}


def _report(arguments: Arguments, results: dict[str, Any], folder: Path) -> None:
    """The end of a run: what it did, how good it is, and what comes next."""
    t = results["training"]
    say("", f"{results['method']}: {t['steps']} steps, {t['sentences']} sentences in {t['seconds']:.0f} s")
    for name, metrics in results["tasks"].items():
        if name not in results["before"]:
            say(f"{name} ({metrics['n']} pairs) spearman {metrics['spearman']:.2f}")
            continue
        before = results["before"][name]
        what = "pairs" if "spearman" in metrics else "sentences"
        heading = f"{name} ({metrics['n']} {what})"
        say(f"{heading:<24}{'before':>10}{'after':>9}")
        for metric in before:
            say(f"  {metric:<22}{before[metric]:>10.3f}{metrics[metric]:>9.3f}")
    selection = results["selection"]
    if selection["metric"]:
        chosen = f"step {selection['step']}, chosen by {selection['metric']}"
        say(chosen + (" ON A TEST SET" if selection["on_test_set"] else ""))
    say(f'model: {folder} -- SentenceTransformer("{folder}") loads it; results.json and manifest.json are beside it')
    if arguments.embedded:
        say(
            "This was the embedded demonstration: a tiny encoder on generated text. A real model:",
            f"  accelerate launch examples/run_unsup.py --method {results['method']} "
            "--model_name_or_path bert-base-uncased --train_file sentences.txt --output_dir my-model",
        )
    else:
        say(
            f"evaluate it: python examples/run_eval.py --model_name_or_path {folder} --tasks sts --output_json sts.json"
        )


def _main_metric(record: Mapping[str, Any]) -> str:
    """The metric that a record of either kind is known by."""
    return "spearman" if "spearman" in record else "score"


def _summarise_seeds(root: Path, seeds: list[int], results: list[dict[str, Any]], save: bool) -> dict[str, Any]:
    """Mean, standard deviation and range over the seeds; the seed with the best dev score becomes the root's model."""
    summary = {**results[0], "model": str(root), "seed": None, "seeds": seeds, "tasks": {}}
    summary["training"] = {"status": "finished", "runs": [result["training"] for result in results]}
    for name, metrics in results[0]["tasks"].items():
        row = {key: value for key, value in metrics.items() if key not in DEV_METRICS}
        for metric in (metric for metric in DEV_METRICS if metric in metrics):
            values = [result["tasks"][name][metric] for result in results]
            row[metric] = statistics.fmean(values)
            row[f"{metric}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
            row[f"{metric}_min"], row[f"{metric}_max"] = min(values), max(values)
        summary["tasks"][name] = row | {"seeds": len(seeds)}
        main = _main_metric(metrics)
        say(f"{name} {main} over {len(seeds)} seeds: {row[main]:.2f} ± {row[f'{main}_std']:.2f}")
    summary["averages"] = {**results[0]["averages"], "sts": _sts_average(summary["tasks"])}
    if summary["averages"]["sts"] is not None and len(seeds) > 1:
        summary["averages"]["sts_std"] = statistics.stdev(_sts_average(result["tasks"]) for result in results)
    first = next(iter(results[0]["before"]), None)
    best = 0
    if first:
        main = _main_metric(results[0]["tasks"][first])
        best = max(range(len(seeds)), key=lambda i: results[i]["tasks"][first][main])
    summary["exported_seed"] = seeds[best]
    summary["selection"] = results[best]["selection"]
    if "check" in results[best]:
        summary["check"] = results[best]["check"]
    if save:
        skip = shutil.ignore_patterns("checkpoint-*", "results.json", "manifest.json")
        shutil.copytree(root / f"seed-{seeds[best]}", root, dirs_exist_ok=True, ignore=skip)
        write_json(root / "manifest.json", {"seeds": seeds, "runs": [f"seed-{seed}/manifest.json" for seed in seeds]})
        write_json(root / "results.json", summary)
    say(f"model: {root}, that of seed {seeds[best]}; results.json holds mean and standard deviation")
    return summary
