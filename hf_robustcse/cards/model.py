"""The card of a model folder: what was recorded beside the weights, rendered."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_robustcse import files
from hf_robustcse.cards import scores
from hf_robustcse.cards.about import ABOUT, FAMILY_TAGS
from hf_robustcse.cards.check import check_language, check_license, check_repo_id
from hf_robustcse.cards.checkpoint import EMBEDDED, Checkpoint, is_hub_model, mapping, read_checkpoint
from hf_robustcse.cards.limits import limits_of
from hf_robustcse.cards.text import Raw, block, code, public_command, public_path, render, table
from hf_robustcse.evaluation.sts import TASKS
from hf_robustcse.methods import METHODS
from hf_robustcse.report.read import clean
from hf_robustcse.report.table import NAMES
from hf_robustcse.report.write import comparison_cells

PLACEHOLDER = "ORG/NAME"
OURS = """@software{hf_robustcse,
  title = {hf\\_robustcse: robust and debiased sentence embeddings for the Hugging Face Trainer},
  version = {%s}
}"""
_TEXTS = ("A man is playing a guitar.", "Someone is playing an instrument.")


def card_text(
    model: str | Path,
    *,
    repo_id: str | None = None,
    results: Sequence[str | Path] = (),
    license: str | None = None,
    language: str | None = None,
    base_model: str | None = None,
) -> str:
    """The README.md of a model folder of ours; reads files only, never the network.

    Args:
        model: the folder, with ``robustcse/config.json``; what is not recorded beside it is said not to be.
        repo_id: where the model is, or will be, on the Hub.
        results: further result files of run_unsup, run_eval, run_finetune, run_attack and run_ablation, or folders.
        license: identifier of the model's licence; None states none.
        language: code of the language of the training text; None states none.
        base_model: Hub id of the encoder that training began with; None takes the recorded one, if it is a Hub id.

    Returns:
        The card: YAML and Markdown, without folders of this machine.

    Raises:
        UserError: if the folder is no checkpoint of ours, or a file or an argument is bad.
    """
    if license is not None:
        check_license(license)
    if language is not None:
        check_language(language)
    checkpoint = read_checkpoint(model, repo_id)
    if base_model is None:
        base_model = checkpoint.base if is_hub_model(checkpoint.base) else None
    else:
        check_repo_id(base_model, "--base_model")
    evidence = scores.gather(checkpoint, results)
    data = _metadata(checkpoint, evidence, license, language, base_model)
    name = repo_id or PLACEHOLDER
    reported, backbone = scores.reported_of(checkpoint)
    return render(
        "model.md",
        metadata=Raw(data.to_yaml()),
        title=checkpoint.name,
        width=_width(checkpoint),
        methods=Raw(" + ".join(code(method) for method in checkpoint.methods)),
        ideas=[_idea(method) for method in checkpoint.methods],
        base=_base(checkpoint, base_model),
        corpus=_corpus(checkpoint),
        with_sentence_transformers=block(
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{name}")\n'
            f"embeddings = model.encode([{', '.join(_texts(checkpoint))}])\n"
            "print(model.similarity(embeddings, embeddings))",
            "python",
        ),
        with_transformers=block(_transformers_snippet(checkpoint, name), "python"),
        pooling=f", pooling {checkpoint.config['pooler']}" + (" and the head" if checkpoint.dense else ""),
        kept="the projection head and the state of the method" if checkpoint.config.get("head") != "none"
        else "the state of the method",
        with_trainer=block(
            f'from hf_robustcse import RobustCSEModel\n\nmodel = RobustCSEModel.from_pretrained("{name}")', "python"
        ),
        train_on=block(_train_on(checkpoint, name), "sh"),
        check=_check(checkpoint),
        results=scores.results_table(checkpoint, evidence),
        reading=_reading(reported, backbone, checkpoint, evidence),
        reported_more=scores.more_reported(checkpoint, evidence),
        comparisons=_comparisons(evidence),
        attacks=scores.attack_table([("this model", evidence.own), (scores.BASELINE, evidence.baseline)]),
        robust_sets=scores.robust_set_table(evidence.finetuned),
        typos=scores.typo_table(evidence.own),
        training=_training(checkpoint),
        command=block(public_command(str(command)), "sh") if (command := _recorded_command(checkpoint)) else None,
        licences=_licences(checkpoint, evidence, license, base_model),
        limits=limits_of(checkpoint, evidence),
        citation=block(citation(checkpoint.methods), "bibtex"),
        uncited=uncited(checkpoint.methods),
        files=[(Raw(_file_name(name)), digest) for name, digest in [*checkpoint.files, *evidence.files]],
        tiny=_tiny(checkpoint),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# metadata


def _metadata(
    checkpoint: Checkpoint, evidence: scores.Evidence, license: str | None, language: str | None, base_model: str | None
) -> ModelCardData:
    corpus = checkpoint.manifest.get("corpus", {})
    source = str(corpus.get("source") or "").partition(":")[0]
    found = _eval_results(checkpoint, evidence)
    return ModelCardData(
        language=language,
        license=license,
        base_model=base_model,
        datasets=[source] if source and corpus.get("files") == [] else None,  # a corpus from the Hub has no files
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*FAMILY_TAGS, *checkpoint.methods],
        model_name=checkpoint.name if found else None,
        eval_results=found or None,
    )  # fmt: skip


def _eval_results(checkpoint: Checkpoint, evidence: scores.Evidence) -> list[EvalResult]:
    """One entry for each STS set and split that this very model was scored on."""
    found = []
    for column in scores.columns_of(evidence.own):
        if column.group != "sts" or column.task == "average":
            continue
        value = evidence.own[column]
        task = TASKS.get(column.task)
        hub = re.fullmatch(r"hub:([\w./-]+?)(?:@(\w+))?", value.source or "")
        known = task is not None and value.data is not None and value.data == task.sha256.get(column.split)
        name = NAMES.get(column.task, column.task)
        found.append(
            EvalResult(
                task_type="semantic-similarity",
                task_name="Semantic Similarity",
                # A copy on the Hub may have other rows: its id only where these rows are known to be the same.
                dataset_type=hub[1] if hub else task.hub[0].name if known and task else column.task.lower(),
                dataset_revision=hub[2] if hub else None,
                dataset_name=f"{name} {column.split}".strip(),
                dataset_config=column.task,
                dataset_split=column.split or None,
                dataset_args={key: entry for key, entry in (("pairs", value.count), ("sha256", value.data)) if entry},
                metric_type="spearman_cosine",
                metric_name="Spearman of the cosine x 100",
                metric_value=round(value.mean, 2),
                metric_args={"aggregation": "all", "seeds": value.seeds}
                | ({} if value.std is None else {"std": round(value.std, 2)}),
            )
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# what it is


def _width(checkpoint: Checkpoint) -> Any:
    return mapping(checkpoint.config.get("encoder")).get("hidden_size") or mapping(
        checkpoint.config.get("encoder")
    ).get("dim", "a fixed number of")


def _idea(method: str) -> Raw:
    paper = METHODS[method].paper
    link = f" ([arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}))" if paper.arxiv else ""
    return Raw(f"**{ABOUT[method].label}**{link}: {ABOUT[method].idea}")


def _base(checkpoint: Checkpoint, base_model: str | None) -> Raw | str:
    encoder = mapping(checkpoint.config.get("encoder"))
    layers, width = encoder.get("num_hidden_layers"), encoder.get("hidden_size")
    shape = f" ({layers} layers of width {width})" if isinstance(layers, int) and isinstance(width, int) else ""
    if base_model:
        return Raw(f"[{base_model}](https://huggingface.co/{base_model}){shape}")
    if checkpoint.base is None:
        return f"an encoder that was not recorded{shape}"
    if checkpoint.base == EMBEDDED:
        return f"the tiny encoder that the package brings{shape}"
    return Raw(code(public_path(checkpoint.base)) + shape)


def _corpus(checkpoint: Checkpoint) -> Raw | str:
    corpus = checkpoint.manifest.get("corpus", {})
    if not corpus.get("source"):
        return "text that was not recorded" if not checkpoint.manifest else "the text that the package brings"
    kind = {2: "labelled pairs", 3: "labelled triplets"}.get(checkpoint.views, "sentences")
    kept = corpus.get("kept")
    name = code(public_path(str(corpus["source"])))
    return Raw(f"{kept} {kind} of {name}" if isinstance(kept, int) else f"{kind} of {name}")


def _tiny(checkpoint: Checkpoint) -> str | None:
    width = mapping(checkpoint.config.get("encoder")).get("hidden_size")
    if not isinstance(width, int) or width >= 256:
        return None
    return "A demonstration: an encoder of this size is not for use where quality matters."


def _transformers_snippet(checkpoint: Checkpoint, name: str) -> str:
    pooler = checkpoint.config["pooler"]
    length = checkpoint.max_seq_length
    layers = {"first-last": "[1], output.hidden_states[-1]", "top-two": "[-2], output.hidden_states[-1]"}.get(pooler)
    lines = ["import torch", "from transformers import AutoModel, AutoTokenizer", ""]
    if checkpoint.dense:
        lines[1:2] = [
            "from huggingface_hub import hf_hub_download",
            "from safetensors.torch import load_file",
            lines[1],
        ]
    lines += [
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = AutoModel.from_pretrained("{name}").eval()',
        f"texts = [{', '.join(_texts(checkpoint))}]",
        'batch = tokenizer(texts, padding=True, padding_side="right", truncation=True'
        + (f", max_length={length}" if isinstance(length, int) else "") + ', return_tensors="pt")',
        "with torch.no_grad():",
        "    output = model(**batch" + (", output_hidden_states=True" if layers else "") + ")",
    ]  # fmt: skip
    if pooler == "cls":
        lines.append("embeddings = output.last_hidden_state[:, 0]")
    else:
        tokens = "output.last_hidden_state"
        if layers:
            first, last = layers.split(", ")
            lines.append(f"tokens = (output.hidden_states{first} + {last}) / 2")
            tokens = "tokens"
        lines.append('mask = batch["attention_mask"].unsqueeze(-1)')
        lines.append(f"embeddings = ({tokens} * mask).sum(1) / mask.sum(1)")
    for folder, activation in checkpoint.dense:
        lines.append(f'layer = load_file(hf_hub_download("{name}", "{folder}/model.safetensors"))')
        apply = {"Tanh": "torch.tanh({})", "ReLU": "torch.relu({})"}.get(activation, "{}")
        linear = 'embeddings @ layer["linear.weight"].T + layer["linear.bias"]'
        lines.append(f"embeddings = {apply.format(linear)}")
    return "\n".join([*lines, "print(torch.nn.functional.cosine_similarity(embeddings[0], embeddings[1], dim=0))"])


def _train_on(checkpoint: Checkpoint, name: str) -> str:
    words = ["python examples/run_unsup.py", f"--model_name_or_path {name}", f"--method {checkpoint.method}"]
    words.append(f"--pooler {checkpoint.config['pooler']}")
    if checkpoint.config.get("keep_head"):
        words.append("--keep_head")
    return " ".join([*words, "--train_file sentences.txt --output_dir my-model"])


def _texts(checkpoint: Checkpoint) -> tuple[str, str]:
    """The two texts of the snippets as literals: those with a recorded cosine, or others."""
    recorded = mapping(checkpoint.results.get("check")).get("sentences")
    texts = recorded if isinstance(recorded, list) and len(recorded) == 2 else _TEXTS
    first, second = (json.dumps(clean(text), ensure_ascii=False) for text in texts)
    return first, second


def _check(checkpoint: Checkpoint) -> str | None:
    """The cosine that was recorded for the two texts."""
    cosine = mapping(checkpoint.results.get("check")).get("cosine")
    return f"{cosine:.4f}" if isinstance(cosine, float) else None


# ---------------------------------------------------------------------------------------------------------------------
# results, training, data


def _reading(reported: dict[str, float], backbone: str, checkpoint: Checkpoint, evidence: scores.Evidence) -> str:
    said = ""
    if reported and scores.results_table(checkpoint, evidence):
        said = (
            f"The paper's figures are for {backbone} and its own corpus, steps and batch: another model than this one."
        )
    elif len(checkpoint.methods) > 1:
        said = "No paper reports this mixture of methods."
    elif checkpoint.views > 1:
        said = "The papers' figures are of unlabelled training and are left out."
    return said


def _comparisons(evidence: scores.Evidence) -> Raw | None:
    if not evidence.comparisons:
        return None
    rows = comparison_cells(evidence.comparisons)
    rows = [[public_path(row[0]), public_path(row[1]), *row[2:]] for row in rows]
    return table(["A", "B", "task", "A", "B", "B - A", "95 % interval", "verdict"], rows)


def _recorded_command(checkpoint: Checkpoint) -> str | None:
    command = checkpoint.results.get("command") or checkpoint.manifest.get("command")
    return command if isinstance(command, str) and command else None


def _training(checkpoint: Checkpoint) -> Raw | None:
    manifest, training = checkpoint.manifest, checkpoint.training
    if not manifest and not training:
        return None
    identity, corpus = manifest.get("identity", {}), manifest.get("corpus", {})
    arguments = mapping(manifest.get("arguments", {}).get("training"))
    length = manifest.get("max_seq_length", {})
    versions = mapping(checkpoint.results.get("library_versions")) or manifest.get("library_versions", {})
    selection = mapping(checkpoint.results.get("selection"))
    accumulated = identity.get("gradient_accumulation_steps")
    augmentation = identity.get("augmentation", "dropout")
    rate = f", rate {identity.get('augmentation_rate')}" if augmentation != "shuffle" else ""
    rate += f", {drop:.0%} of the rest left out" if (drop := identity.get("augmentation_drop")) else ""
    facts: list[tuple[str, Any]] = [
        ("corpus", _corpus(checkpoint) if corpus.get("source") else None),
        ("sha256 of the corpus", code(str(corpus["sha256"])[:16]) if corpus.get("sha256") else None),
        ("steps", training.get("steps")),
        ("sentences seen", training.get("sentences")),
        ("batch, all processes", identity.get("batch")),
        ("gradient accumulation", accumulated if accumulated != 1 else None),
        ("learning rate", identity.get("learning_rate")),
        ("schedule", arguments.get("lr_scheduler_type")),
        ("tokens of a sentence, training", length.get("training")),
        ("augmentation", f"{augmentation}{rate}" if augmentation != "dropout" else None),
        ("temperature", identity.get("temperature") or checkpoint.config.get("temperature")),
        ("pooler", checkpoint.config["pooler"]),
        ("head in training", checkpoint.config.get("head")),
        ("options that are not the default", _options(checkpoint)),
        ("seeds", " ".join(map(str, checkpoint.seeds)) or None),
        ("seed of these weights", checkpoint.results.get("exported_seed")),
        ("checkpoint", _selection(selection)),
        ("precision", manifest.get("dtype")),
        ("weights are stored as", _stored(manifest.get("release"))),
        ("hardware", _hardware(checkpoint)),
        ("seconds of training", training.get("seconds")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or None),
    ]
    return table(["what", "value"], [[what, value] for what, value in facts if value not in (None, "")])


def _options(checkpoint: Checkpoint) -> Raw | None:
    options = mapping(checkpoint.config.get("method_options"))
    changed = []
    for method in checkpoint.methods:
        for field in dataclasses.fields(METHODS[method].Options):
            value = options.get(field.name, field.default)
            if value != field.default:
                changed.append(code(f"--{field.name} {public_path(value) if isinstance(value, str) else value}"))
    return Raw(", ".join(changed)) if changed else None


def _selection(selection: dict[str, Any]) -> str | None:
    if not selection.get("metric"):
        return None
    where = " ON A TEST SET" if selection.get("on_test_set") else ""
    return f"step {selection.get('step')}, chosen by {selection['metric']}{where}"


def _stored(release: Any) -> str | None:
    """How a release holds the weights, where that is less than they were scored with."""
    weights = release.get("weights") if isinstance(release, dict) else None
    if not isinstance(weights, dict) or not weights.get("max_abs_difference"):
        return None
    return (
        f"{weights.get('dtype')}; the scores are those of the weights before, an entry of an embedding differs by "
        f"{weights['max_abs_difference']:.4f} at most"
    )


def _hardware(checkpoint: Checkpoint) -> str | None:
    named = [checkpoint.results.get("device"), checkpoint.manifest.get("device")]
    device = ", ".join(dict.fromkeys(str(name) for name in named if name))
    processes = checkpoint.manifest.get("processes")
    return f"{device}, {processes} processes" if device and isinstance(processes, int) and processes > 1 else device


def _licences(
    checkpoint: Checkpoint, evidence: scores.Evidence, license: str | None, base_model: str | None
) -> list[Raw]:
    """What is known of the terms; nothing is made up."""
    base = base_model or ("the encoder it began with" if checkpoint.base != EMBEDDED else None)
    lines = []
    if license:
        lines.append(f"The publisher states the licence `{license}` for these weights.")
    else:
        lines.append("No licence is stated for these weights: ask the publisher before you use them.")
    if base:
        lines.append(f"They derive from {base}; its licence applies, and is stated where it was published.")
    else:
        lines.append(
            "They derive from the package's own tiny encoder (Apache-2.0), which was trained on sentences of English "
            "Wikipedia (CC BY-SA 3.0) and holds its vocabulary and weights only."
        )
    source = checkpoint.manifest.get("corpus", {}).get("source")
    if source:
        wiki = "Text of Wikipedia is CC BY-SA. " if "wiki" in str(source).lower() else ""
        name = code(public_path(str(source)))
        lines.append(f"Training text {name}: {wiki}Whether weights inherit the terms of a text is not settled.")
    columns = {column.task for column in scores.columns_of(evidence.own, evidence.setting)}
    if years := sorted(columns & {"STS12", "STS13", "STS14", "STS15", "STS16"}):
        lines.append(
            f"{', '.join(years)} (SemEval): texts of several owners, no one licence; used for scoring only."
            + (
                " STS13 is without its SMT part, whose licence does not let it be passed on."
                if "STS13" in years
                else ""
            )
        )
    if "STSB" in columns:
        lines.append("STS-B: a selection of SemEval's STS sets, with their unclear terms; used for scoring only.")
    if "SICKR" in columns:
        lines.append("SICK-R: CC BY-NC-SA 3.0; used for scoring only.")
    lines.append("The code of hf_robustcse: Apache-2.0, written from the papers, without code of their repositories.")
    return [Raw(line) for line in lines]


def uncited(methods: Sequence[str]) -> str | None:
    """The papers that no reference is known of."""
    names = [ABOUT[method].label for method in methods if not METHODS[method].paper.bibtex]
    return f"No reference of the paper is recorded here for {', '.join(names)}." if names else None


def citation(methods: Sequence[str]) -> str:
    """The BibTeX entries of the methods' papers, and ours."""
    entries = [METHODS[method].paper.bibtex for method in methods]
    version = files.version_of("hf-robustcse") or ""
    return "\n\n".join([*(entry for entry in entries if entry), OURS % version])


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+/-]", "_", name)
