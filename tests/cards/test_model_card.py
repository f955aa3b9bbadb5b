"""Cards of model folders: what they say, that it can be traced, that nothing slips in, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import SENTENCES, make_encoder, options_of

from hf_robustcse import SentenceTransformer, cli
from hf_robustcse.cards import card_text, validate
from hf_robustcse.cards.text import block, public_command, public_path
from hf_robustcse.evaluation.sts import TASKS
from hf_robustcse.files import sha256_file
from hf_robustcse.methods import METHODS
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.runs import parse_arguments, run

EVIL = "x|y<script>alert(1)</script> --> ``` \n---\nlicense: mit\n# heading [a](b) {{ 7 * 7 }} {% raw %} \x1b[31m\u202e"
HOME = "/home/alice/secret project"


def save(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def sts(score: float, split: str = "test", data: str = "a" * 64, **more: Any) -> dict[str, Any]:
    return {"spearman": score, "n": 100, "split": split, "source": "data/sts", "sha256": data, **more}


def results(model: str, method: str | None, tasks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What run_unsup writes."""
    return {
        "model": model, "revision": None, "method": method, "library_versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": "cpu", "seed": 0, "command": f"run_unsup.py --method {method} --seed 0 --output_dir {model}",
        "protocol": {"text": "raw, cased", "aggregation": "all", "metric": "Spearman of cosine similarity x 100"},
        "tasks": tasks, "averages": {"sts": None}, "selection": {"metric": "eval_stsb_dev", "step": 7},
        "training": {"status": "finished", "steps": 8, "seconds": 12.5, "sentences": 256, "loss": 0.5},
    } | changes  # fmt: skip


def manifest(method: str, **identity: Any) -> dict[str, Any]:
    about = {
        "method": method, "model_name_or_path": "embedded", "batch": 32, "gradient_accumulation_steps": 1,
        "learning_rate": 3e-5, "temperature": 0.05, "seed": 0,
    }  # fmt: skip
    return {
        "identity": about | identity, "command": "run_unsup.py", "arguments": {"training": {}}, "dtype": "fp32",
        "corpus": {"source": "data/wiki.txt", "files": [{}], "columns": ["text"], "kept": 400, "sha256": "c" * 64},
        "max_seq_length": {"training": 32, "evaluation": 64}, "processes": 1, "device": "x86_64",
        "library_versions": {},
    }  # fmt: skip


def checkpoint(folder: Path, encoder: Path, method: str = "simcse", **options: Any) -> Path:
    torch.manual_seed(0)
    options = {"method": method, "method_options": options_of(method), **options}
    model = RobustCSEModel.from_encoder(encoder, **options)
    model.train()(*(model.tokenizer(SENTENCES, padding=True, return_tensors="pt")[k] for k in INPUTS))  # batch norm
    model.save_pretrained(folder)
    return folder


INPUTS = ("input_ids", "attention_mask")


@pytest.fixture
def model(tmp_path, bert):
    """A vadv checkpoint with results and manifest, seed 0 of a sweep."""
    folder = checkpoint(tmp_path / "sweep" / "vadv" / "seed-0", bert, "vadv", pooler="first-last")
    tasks = {"stsb": sts(70.126), "sts12": sts(60.0, data="b" * 64), "stsb_dev": sts(71.0, "dev", "d" * 64)}
    before = {"stsb_dev": {"spearman": 72.0}}
    save(folder / "results.json", results("sweep/vadv/seed-0", "vadv", tasks, before=before))
    save(folder / "manifest.json", manifest("vadv"))
    return folder


def section(text: str, name: str) -> str:
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, its heads first."""
    found = []
    for run_ in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in run_.splitlines()]
        assert len({len(row) for row in rows}) == 1 and set(rows[1]) == {"---"}, run_
        found.append([rows[0], *rows[2:]])
    return found


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in [key, *leaves(entry)]]
    if isinstance(value, list):
        return [len(value), *(leaf for entry in value for leaf in leaves(entry))]
    return [value]


def untraced(text: str, paths: list[Path]) -> list[str]:
    """The numbers of a card's tables and limits that are in none of the files, nor in the papers."""
    known: list[float] = []
    words = set()
    for path in paths:
        for leaf in leaves(json.loads(path.read_text(encoding="utf-8"))):
            if isinstance(leaf, (int, float)):
                known.append(float(leaf))
            elif isinstance(leaf, str):
                words.add(leaf)
                known += [float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", leaf)]
    papers = [v for method in METHODS.values() for figures in method.paper.reported.values() for v in figures.values()]

    def missing(cell: str, among: list[float]) -> list[str]:
        cell = cell.replace("\\", "")
        if any(cell.strip("`") in word for word in words):
            return []
        numbers = re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w.]*\w)", cell)
        digits = {n: len(n.partition(".")[2].partition("e")[0]) for n in numbers}
        close = {n: (lambda v, n=n: abs(v - float(n)) <= 0.5000001 * 10 ** -digits[n]) for n in numbers}
        return [n for n in numbers if not any(close[n](v) or f"{v:.3g}" == n for v in among)]

    lost = []
    for heads, *rows in tables(text):
        for row in rows:
            for head, cell in zip(heads, row, strict=True):
                lost += missing(cell, papers if head.startswith("reported") else known)
    limits = re.sub(r"lambda = 1e-6|1e-3", "", section(text, "Limits"))
    return lost + missing(" ".join(re.findall(r"\d+\.\d+", limits)), known)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run of two seeds."""
    root = tmp_path_factory.mktemp("run")
    encoder = make_encoder(root / "encoder")
    (root / "corpus.txt").write_text("\n".join(f"{line} {n}" for n in range(4) for line in SENTENCES), encoding="utf-8")
    run(parse_arguments([
        "--method", "dclr+vadv", "--model_name_or_path", str(encoder), "--train_file", str(root / "corpus.txt"),
        "--output_dir", str(root / "model"), "--max_steps", "2", "--eval_steps", "1", "--seeds", "0", "1", "--use_cpu",
        "--per_device_train_batch_size", "8", "--eval_tasks", "embedded_dev", "--disable_tqdm", "true",
        "--pooler", "top-two",
    ]))  # fmt: skip
    return root / "model"


@pytest.mark.parametrize("part", [".", "seed-1"])
def test_card_of_a_real_run(trained, part):
    folder = trained / part
    text = card_text(folder, repo_id="org/name", license="apache-2.0", language="en")
    data = validate(text).data
    assert data.license == "apache-2.0" and data.language == "en" and data.base_model is None
    assert data.tags[-2:] == ["dclr", "vadv"] and data.pipeline_tag == "sentence-similarity"
    recorded = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    [result] = data.eval_results
    value = recorded["tasks"]["embedded_dev"]["spearman"]
    assert result.metric_value == round(value, 2) and result.dataset_split == "dev"
    assert result.dataset_args["pairs"] == recorded["tasks"]["embedded_dev"]["n"]
    assert result.metric_args["aggregation"] == "all" and result.metric_args["seeds"] == (2 if part == "." else 1)
    read = [folder / "results.json", folder / "robustcse" / "config.json", folder / "manifest.json"]
    if part == ".":
        seeds = [json.loads((trained / f"seed-{n}" / "results.json").read_text(encoding="utf-8")) for n in (0, 1)]
        values = [seed["tasks"]["embedded_dev"]["spearman"] for seed in seeds]
        assert f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" in section(text, "Results")
        assert "n seeds = 2" in text and "One seed" not in text
        read[-1] = trained / f"seed-{recorded['exported_seed']}" / "manifest.json"
    else:
        assert "One seed" in section(text, "Limits")
    assert untraced(text, read) == []
    for path in read:
        assert f"{path.relative_to(folder).as_posix()} {sha256_file(path)}" in text
    # No folder of this machine, whatever was recorded.
    assert "corpus.txt" in text and str(trained.parent) not in text and "pytest" not in text
    # The recorded cosine is that of the first snippet.
    sentences, cosine = recorded["check"]["sentences"], recorded["check"]["cosine"]
    a, b = SentenceTransformer(str(folder)).encode(sentences, convert_to_tensor=True)
    assert torch.cosine_similarity(a, b, dim=0).item() == pytest.approx(cosine, abs=1e-3) and f"{cosine:.4f}" in text


@pytest.mark.parametrize("method", ["simcse", "vadv", "gs_infonce", "dclr", "robustsentembed", "dcl", "dclr+vadv"])
def test_card_of_every_method_without_anything_recorded(method, bert, tmp_path):
    folder = checkpoint(tmp_path / "model", bert, method)
    text = card_text(folder)
    data = validate(text).data
    assert data.tags[-1] == method.split("+")[-1] and not data.eval_results and data.license is None
    assert "No score of this model was recorded" in text and "there is no manifest.json" in text
    assert "No cosine was recorded" in text and "Nothing was measured" in section(text, "Limits")
    assert "No licence is stated" in text and "Not measured" in section(text, "Robustness")
    for part in method.split("+"):
        assert METHODS[part].paper.bibtex is None or METHODS[part].paper.bibtex in section(text, "Citation")
    assert untraced(text, [folder / "robustcse" / "config.json"]) == []


@pytest.mark.parametrize(
    "options",
    [
        *({"pooler": pooler} for pooler in ("cls", "mean", "first-last", "top-two")),
        {"keep_head": True},
        {"keep_head": True, "head": "mlp", "pooler": "first-last"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_snippets_give_the_same_embeddings(options, bert, tmp_path, monkeypatch, capsys):
    folder = checkpoint(tmp_path / "model", bert, **options)
    text = card_text(folder, repo_id="org/name")
    plain, transformers, ours = (code.replace("org/name", str(folder)) for code in code_blocks(text, "python"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, file: str(Path(repo) / file))
    spaces: list[dict[str, Any]] = [{}, {}, {}]
    for code, space in zip((plain, transformers, ours), spaces, strict=True):
        exec(code, space)
    wanted = torch.tensor(spaces[0]["embeddings"])
    torch.testing.assert_close(spaces[1]["embeddings"], wanted, atol=1e-5, rtol=1e-5)
    sentences = re.findall(r'encode\(\["(.*)", "(.*)"\]\)', plain)[0]
    torch.testing.assert_close(spaces[2]["model"].encode(sentences), wanted, atol=1e-5, rtol=1e-5)


def test_measured_here_and_reported_never_share_a_column(model, tmp_path):
    text = card_text(model)
    [heads, *rows] = tables(section(text, "Results"))[0]
    assert heads == ["task (split)", "reported by the paper (BERT-base)", "before training", "measured here, one seed"]
    assert ["STS-B (test, n = 100)", "79.90", "-", "70.13"] in rows
    assert ["STS-B (dev, n = 100)", "84.55", "72.00", "71.00"] in rows
    assert "STS average of 7 77.73" in text and "another model than this one" in text
    assert "STS-B (dev): 71.00 after, 72.00 before" in section(text, "Limits")
    assert {result.dataset_type for result in validate(text).data.eval_results} == {"stsb", "sts12"}
    assert untraced(text, [model / "results.json", model / "manifest.json", model / "robustcse" / "config.json"]) == []


def test_further_results(model, tmp_path):
    def cell(*scores: float) -> dict[str, Any]:
        spread = {"mean": statistics.fmean(scores), "std": statistics.stdev(scores), "values": list(scores)}
        return {"n": 100, "split": "test", "sha256": "a" * 64, "spearman": spread}

    cells = {
        method: {"method": method, "seeds": [0, 1], "tasks": {"stsb": cell(*scores)}, "steps": [8, 8]}
        for method, scores in {"simcse": (71.0, 73.0), "vadv": (70.126, 71.0), "dclr": (90.0, 91.0)}.items()
    }
    command = "run_ablation.py methods --output_dir sweep"
    sweep = save(tmp_path / "sweep.json", {"grid": "methods", "command": command, "cells": cells})
    record = {
        "attempted": 80, "skipped": 20, "n": 100, "success_rate": 81.25, "success_rate_low": 71.3,
        "success_rate_high": 88.3, "accuracy_before": 80.0, "split": "test", "sha256": "e" * 64,
    }  # fmt: skip
    attacks = {"MR": {"pwws": record, "bae": record | {"success_rate": 12.5}}}
    attacked = save(
        tmp_path / "attacks.json", results("vadv/seed-0", "vadv", {}, attacks=attacks, training=None, command="x")
    )
    other = save(tmp_path / "other.json", results("dclr/seed-0", "dclr", {"stsb": sts(99.0)}))
    tuned = {
        "RTE": {"accuracy": 61.5, "n": 10, "split": "dev", "robust": {"accuracy": 52.25, "n": 10}, "invariance": 85.75}
    }
    finetuned = save(
        tmp_path / "rte.json", results("sweep/vadv/seed-0", None, tuned, protocol={"task": "rte"}, command="x")
    )
    probes = {"n": 50, "source": f"{HOME}/text.txt", "perturbed": {"noise": 0.2, "accuracy": 91.25, "cosine": 0.875}}
    probed = save(
        tmp_path / "probes.json",
        results("sweep/vadv/seed-0", "vadv", {"geometry": {"set": None, "probes": probes}}, training=None, command="x"),
    )
    files = [sweep, attacked, other, finetuned, probed]
    text = card_text(model, results=files)
    validate(text)
    [heads, *rows] = tables(section(text, "Results"))[0]
    assert heads[-2:] == [
        "measured here, mean ± std (n seeds = 2)", "simcse, measured here, mean ± std (n seeds = 2)"
    ]  # fmt: skip
    [row] = [row for row in rows if row[0].startswith("STS-B (test")]
    assert row[1:] == ["79.90", "-", "70.13", "70.56 ± 0.62", "72.00 ± 1.41"]
    assert "99.00" not in text and "90.50" not in text  # another model, another method
    attack, robust, typos = tables(section(text, "Robustness"))
    assert attack[0] == ["data set (split)", "examples", "accuracy before", "pwws", "bae"]
    assert attack[1][:3] == ["MR (test)", "100", "80.0"] and attack[1][3].replace("\\", "") == "81.2 [71.3, 88.3]"
    assert robust[1] == ["RTE (dev)", "accuracy", "61.50", "52.25", "85.75"]
    assert typos[1] == ["text.txt", "50", "91.25", "0.88"]
    limits = section(text, "Limits")
    assert "Not better than `simcse` (means over 2 seeds) on 1 of 1 sets: STS-B (test) 70.56 against 72.00" in limits
    assert "1 of 2 attacks succeed on half" in limits and "pwws on MR, on 81.2 %" in limits
    read = [model / "results.json", model / "manifest.json", model / "robustcse" / "config.json", *files]
    assert untraced(text, read) == [] and all(f"{path.name} {sha256_file(path)}" in text for path in files)
    assert untraced(text, read[:3])  # the test can fail


def test_what_was_scored_on_other_rows_is_compared_with_nothing(model, tmp_path):
    other = save(tmp_path / "o.json", results("simcse/seed-0", "simcse", {"stsb": sts(99.0, data="f" * 64)}))
    assert "99.00" not in card_text(model, results=[other])


def test_chosen_on_a_test_set_is_said(model):
    recorded = json.loads((model / "results.json").read_text(encoding="utf-8"))
    recorded["selection"] |= {"on_test_set": True, "metric": "eval_sts12"}
    save(model / "results.json", recorded)
    text = card_text(model)
    assert "chosen ON A TEST SET" in section(text, "Limits") and "ON A TEST SET" in section(text, "Training")


def test_supervised_training_is_not_set_beside_unsupervised_figures(bert, tmp_path):
    folder = checkpoint(tmp_path / "model", bert, "simcse", keep_head=True)
    about = manifest("simcse", model_name_or_path="bert-base-uncased")
    about["corpus"] |= {"source": "org/nli-pairs", "files": [], "columns": ["a", "b", "c"]}
    save(folder / "manifest.json", about)
    save(folder / "results.json", results("m", "simcse", {"stsb": sts(80.0)}))
    text = card_text(folder)
    data = validate(text).data
    assert "reported by" not in text and "labelled triplets" in text and "unlabelled training" in text
    assert data.datasets == ["org/nli-pairs"] and data.base_model == "bert-base-uncased"
    assert "--keep_head" in section(text, "How to use it")


def test_the_hub_id_of_a_set_is_named_only_where_its_rows_are_known(bert, tmp_path):
    folder = checkpoint(tmp_path / "model", bert)
    tasks = {
        "sickr": sts(60.0, data=TASKS["SICKR"].sha256["test"]),
        "sts12": sts(60.0, source="hub:mteb/sts12-sts@a0d554a64d88156834ff5ae9920b964011b16384"),
        "sts13": sts(60.0, data="1" * 64),
    }
    save(folder / "results.json", results("m", "simcse", tasks))
    found = {result.dataset_config: result for result in validate(card_text(folder)).data.eval_results}
    assert found["SICKR"].dataset_type == "mteb/sickr-sts" and found["STS13"].dataset_type == "sts13"
    assert found["STS12"].dataset_type == "mteb/sts12-sts" and found["STS12"].dataset_revision.startswith("a0d554a")
    assert "its SMT part" in section(card_text(folder), "Data and licences")


def test_hostile_contents_stay_text(bert, tmp_path):
    folder = checkpoint(tmp_path / "model", bert)
    command = f'python "{HOME}/run_unsup.py" --train_file="{HOME}/wiki.txt" --hub_token *** ```` {EVIL}'
    tasks = {EVIL: sts(50.0, EVIL), "stsb_dev": sts(40.0, "dev")}
    attack = {"n": 3, "success_rate": 1.0, "split": EVIL}
    recorded = results(
        f"{HOME}/model", "simcse", tasks, command=command, device=EVIL,
        library_versions={EVIL: EVIL, "torch": "x" * 10**6},
        attacks={EVIL: {EVIL: attack}}, selection={"metric": EVIL, "step": EVIL}, seed=0, missing=[],
        check={"sentences": [EVIL, '"); import os  #'], "cosine": 0.5},
    )  # fmt: skip
    save(folder / "results.json", recorded)
    about = manifest("simcse", model_name_or_path=f"{HOME}/encoder", learning_rate=EVIL)
    about["corpus"] |= {"source": f"{HOME}/{EVIL}", "kept": EVIL, "sha256": EVIL, "columns": EVIL}
    save(folder / "manifest.json", about | {"device": f"{EVIL}|", "dtype": EVIL})
    evil = save(tmp_path / "a --> b.json", recorded | {"model": f"{HOME}/model"})
    text = card_text(folder, results=[evil])
    card = validate(text)
    assert set(yaml.safe_load(text.split("\n---\n")[0][4:])) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert card.data.license is None and len(card.data.eval_results) == 2
    assert text.isprintable() or not set(text) & set("\x1b\u202e")
    assert "alice" not in text and "secret" not in text and len(text) < 60_000
    body = text.split("\n---\n", 1)[1]
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", body, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside and "49" not in section(outside, "Training")
    assert outside.count("-->") == 1 and len(re.findall("^# ", outside, re.MULTILINE)) == 1
    assert [line[3:] for line in outside.splitlines() if line.startswith("## ")] == [
        "How to use it", "Results", "Robustness", "Training", "Data and licences", "Limits", "Citation",
    ]  # fmt: skip
    assert tables(outside)  # no table is torn
    for code in code_blocks(text, "python"):
        compile(code, "snippet", "exec")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda folder: shutil.rmtree(folder / "robustcse"), "no checkpoint of this project"),
        (lambda folder: (folder / "robustcse/config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: save(folder / "robustcse/config.json", {"method": "x\ny"}), "unknown method 'x y'"),
        (lambda folder: save(folder / "robustcse/config.json", {"method": "simcse", "pooler": "x"}), "unknown pooler"),
        (lambda folder: (folder / "results.json").write_text("[]"), "results.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[" * 10**5), "manifest.json is nested too deeply"),
        (lambda folder: save(folder / "results.json", {"tasks": {"a": 1}}), "results.json is no result"),
    ],
)  # fmt: skip
def test_damaged_folders_give_one_line(change, said, model, capsys):
    change(model)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["card", str(model)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and said in error and error.count("\n") == 1
    assert not (model / "README.md").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "name a model folder, or --method"),
        (["MODEL", "--method", "vadv"], "name a model folder, or --method"),
        (["nowhere"], "nowhere is not a folder"),
        (["MODEL", "--license", "gpl-99"], "--license gpl-99 is no identifier"),
        (["MODEL", "--language", "English"], "--language English is no code"),
        (["MODEL", "--repo_id", "a/b/c"], "--repo_id a/b/c is no id of the Hub"),
        (["MODEL", "--base_model", "/tmp/x"], "--base_model /tmp/x is no id of the Hub"),
        (["MODEL", "--results", "none.json"], "none.json is not there"),
        (["--method", "vadw"], "unknown --method 'vadw'"),
        (["--method", "vadv", "--license", "mit"], "--license is for the card of a model folder"),
    ],
)
def test_bad_arguments_give_one_line_and_write_nothing(words, said, model, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["card", *(str(model) if word == "MODEL" else word for word in words)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and said in error and error.count("\n") == 1
    assert not (model / "README.md").exists()


def test_the_command_writes_the_card_without_a_network(model, tmp_path, monkeypatch, capsys):
    def refuse(*_: Any) -> None:
        raise AssertionError("the card asked the network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    cli.main(["card", str(model), "--repo_id", "org/name"])
    assert (model / "README.md").read_text(encoding="utf-8") == card_text(model, repo_id="org/name")
    assert "README.md" in capsys.readouterr().out
    cli.main(["card", str(model), "--output", "-"])
    assert capsys.readouterr().out == card_text(model)
    cli.main(["card", str(model), "--output", str(tmp_path / "new" / "card.md")])
    assert (tmp_path / "new" / "card.md").read_text(encoding="utf-8") == card_text(model)


@pytest.mark.parametrize(
    "recorded, shown",
    [
        ("/home/alice/x/wiki.txt", "wiki.txt"),
        ("~/wiki.txt", "wiki.txt"),
        ("../alice/wiki.txt", "wiki.txt"),
        (r"C:\Users\alice\wiki.txt", "wiki.txt"),
        (r"\\host\alice\wiki.txt", "wiki.txt"),
        ("https://alice:word@host/wiki.txt", "wiki.txt"),
        ("a/b/wiki.txt", "wiki.txt"),
        ("a/simcse/seed-0", "simcse/seed-0"),
        ("/home/alice/seed-0", "seed-0"),
        ("org/name", "org/name"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("/", "-"),
    ],
)
def test_paths_lose_their_folders(recorded, shown):
    assert public_path(recorded) == shown
    assert (
        public_command(f"run.py --x '{recorded}' --y='{recorded}'").replace("'", "")
        == f"run.py --x {shown} --y={shown}"
    )


def test_a_block_cannot_be_closed_from_within():
    text = block("a\n````\nb", "sh")
    assert text.startswith("`````sh\n") and text.endswith("\n`````")


def test_a_paired_comparison_is_shown(model, tmp_path):
    record = {
        "a": 70.126, "a_std": None, "b": 71.5, "b_std": None, "difference": 1.374, "low": -0.25, "high": 2.75,
        "verdict": "no difference is shown", "n": 100, "split": "test", "sha256": "a" * 64,
    }  # fmt: skip
    sides = {
        side: [{"model": f"{HOME}/sweep/{name}/seed-0", "method": name, "pooling": "first-last", "revision": None}]
        for side, name in (("a", "vadv"), ("b", "dclr"))
    }
    compared = {**sides, "tasks": {"STSB": record}, "command": "run_eval.py --compare", "protocol": {}, "missing": []}
    text = card_text(model, results=[save(tmp_path / "c.json", compared)])
    comparison = tables(section(text, "Results"))[1]
    assert comparison[1][2:] == [
        "STS-B (test, all)",
        "70.13",
        "71.50",
        "+1.37",
        "-0.25 to +2.75",
        "no difference is shown",
    ]
    assert "alice" not in text
