"""A dev set without labels: sentences of a file or held out of the corpus, and choosing the checkpoint by them."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np
import pytest
import torch
from test_trainer import trainer_of
from tiny import SENTENCES, WORDS

from hf_robustcse.data import load_corpus
from hf_robustcse.errors import TrainingStopped, UserError
from hf_robustcse.evaluation import dev_text
from hf_robustcse.evaluation.dev_text import evaluate_dev_text, hold_out, load_dev_text
from hf_robustcse.evaluation.sts import StsData
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.runs import parse_arguments, run
from hf_robustcse.typos import add_typos


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(30)]
    path = tmp_path / "dev.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_sentences_of_a_file(tmp_path, monkeypatch):
    lines = ["Кошка сидит на окне", "नमस्ते दुनिया", "the cat sat", "the cat sat", ""]
    (tmp_path / "dev.txt").write_text("\n".join(lines), encoding="utf-8")
    data = load_dev_text(tmp_path / "dev.txt", noise=0.5)
    assert data.sentences == lines[:3] and data.perturbed == [add_typos(s, rate=0.5, seed=0) for s in lines[:3]]
    assert (data.key, data.split, data.n, data.noise, data.held_out) == ("dev_text", "dev", 3, 0.5, 0)
    assert data.source == str(tmp_path / "dev.txt") and not data.is_test
    rows = "\n".join(f"{a}\t{b}" for a, b in zip(data.sentences, data.perturbed, strict=True))
    assert data.sha256 == hashlib.sha256(rows.encode()).hexdigest()
    assert load_dev_text(tmp_path / "dev.txt", noise=1.0).sha256 != data.sha256
    monkeypatch.setattr(dev_text, "MAX_SENTENCES", 2)
    assert load_dev_text(tmp_path / "dev.txt").n == 2


def test_held_out_sentences_are_in_no_row(tmp_path):
    path = tmp_path / "pairs.tsv"
    rows = [(f"sentence number {i}", f"sentence number {(i * i) % 20}") for i in range(20)]
    path.write_text("anchor\tpositive\n" + "\n".join("\t".join(row) for row in rows), encoding="utf-8")
    whole = load_corpus(path)
    data, rest = hold_out(whole, 5)
    held = set(data.sentences)
    assert data.n == len(held) == 5 and held <= {a for a, _ in rows}
    kept = [row for row in rows if held.isdisjoint(row)]
    assert list(zip(rest.dataset["text"], rest.dataset["positive"], strict=True)) == kept
    assert data.held_out == 20 - len(kept) > 5 and rest.views == 2
    assert data.source == f"held out of {path}" and hold_out(whole, 5)[0] == data
    for number in (1, 20, -3):
        with pytest.raises(UserError, match=rf"--dev_holdout {number} must be at least 2 and below the 20"):
            hold_out(whole, number)
    with pytest.raises(UserError, match="pass --dev_text FILE"):
        hold_out(load_corpus(path, streaming=True), 5)


def test_bad_text(tmp_path):
    for content, words in (
        ("one line\n", "has 1 distinct sentence"), ("1 2\n3 4\n", "do they hold words"), ("", "no|empty"),
    ):  # fmt: skip
        (tmp_path / "dev.txt").write_text(content)
        with pytest.raises(UserError, match=words):
            load_dev_text(tmp_path / "dev.txt")
    (tmp_path / "dev.txt").write_text("some words\nother words\n")
    for noise in (0.0, 1.5, -1.0):
        with pytest.raises(UserError, match="--dev_noise must be above 0 and at most 1"):
            load_dev_text(tmp_path / "dev.txt", noise=noise)


def test_metrics_against_loops(text):
    data = load_dev_text(text)

    def encode(sentences):
        return np.array([np.random.default_rng(sum(map(ord, s))).normal(size=6) + 1 for s in sentences])

    metrics = evaluate_dev_text(encode, data)
    x, y = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in map(encode, (data.sentences, data.perturbed))
    )
    n, found, cosine, potential, similar = len(x), 0, 0.0, [], []
    for i in range(n):
        products = [float(y[i] @ x[j]) for j in range(n)]
        cosine += products[i] / n
        found += all(products[i] > products[j] for j in range(n) if j != i)
        potential += [np.exp(-2 * np.square(x[i] - x[j]).sum()) for j in range(n) if j != i]
        similar += [x[i] @ x[j] for j in range(n) if j != i]
    assert metrics["retrieval"] == pytest.approx(100 * found / n) and 0 < found < n
    assert metrics["cosine"] == pytest.approx(cosine)
    assert metrics["uniformity"] == pytest.approx(np.log(np.mean(potential)))
    assert metrics["score"] == pytest.approx(metrics["retrieval"] - metrics["uniformity"])
    assert metrics["mean_cosine"] == pytest.approx(np.mean(similar))
    assert metrics["embedding_std"] == pytest.approx(x.std(axis=0).mean() * 6**0.5)
    assert 1 <= metrics["effective_rank"] <= 6


def test_equal_retrieval_is_decided_by_uniformity(text):
    data = load_dev_text(text)
    points = {s: i for i, s in enumerate([*data.sentences])} | {s: i for i, s in enumerate(data.perturbed)}

    def encode(narrow):
        angles = np.eye(len(data.sentences)) + narrow
        return lambda sentences: angles[[points[s] for s in sentences]]

    wide, thin, collapsed = (evaluate_dev_text(encode(narrow), data) for narrow in (0, 1, 1e9))
    assert wide["retrieval"] == thin["retrieval"] == 100 and collapsed["retrieval"] == 0
    assert wide["score"] > thin["score"] > collapsed["score"] and collapsed["embedding_std"] < 1e-3


# --- in training -----------------------------------------------------------------------------------------------------


def train(bert, corpus, folder, *more):
    argv = [
        "--model_name_or_path", bert, "--train_file", corpus, "--output_dir", folder, "--max_steps", 6, "--eval_steps",
        2, "--per_device_train_batch_size", 8, "--learning_rate", "1e-3", "--use_cpu", "--disable_tqdm", "true", *more,
    ]  # fmt: skip
    return run(parse_arguments(list(map(str, argv))))


def logged(folder, metric):
    states = [json.loads(p.read_text()) for p in folder.glob("checkpoint-*/trainer_state.json")]
    logs = max(states, key=lambda state: state["global_step"])["log_history"]
    return {log["step"]: log[metric] for log in logs if metric in log and log["step"]}


def test_it_chooses_the_checkpoint_without_any_label(bert, corpus, text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_robustcse.runs.load_sts", lambda *a, **k: pytest.fail("STS-B was read"))
    folder = tmp_path / "run"
    results = train(bert, corpus, folder, "--dev_text", text, "--dev_noise", 0.4)
    assert list(results["tasks"]) == list(results["before"]) == ["dev_text"]
    task, before = results["tasks"]["dev_text"], results["before"]["dev_text"]
    metrics = ["score", "retrieval", "cosine", "uniformity", "mean_cosine", "embedding_std", "effective_rank"]
    assert list(before) == metrics and set(metrics) < set(task) and results["averages"]["sts"] is None
    assert (task["n"], task["split"], task["source"], task["noise"], task["noise_seed"], task["held_out_rows"]) == (
        30, "dev", str(text), 0.4, 0, 0,
    )  # fmt: skip
    scores = logged(folder, "eval_dev_text_score")
    assert results["selection"] == {
        "metric": "eval_dev_text_score", "step": results["selection"]["step"], "on_test_set": False,
    }  # fmt: skip
    assert scores.keys() == {2, 4, 6} and scores[results["selection"]["step"]] == max(scores.values()) == task["score"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["evaluation"]["dev_text"]["sha256"] == task["sha256"] == load_dev_text(text, noise=0.4).sha256
    assert manifest["before"]["dev_text"] == before
    assert "dev_text (30 sentences)" in capsys.readouterr().out


def test_held_out_beside_labels_and_several_seeds(bert, corpus, tmp_path):
    folder = tmp_path / "run"
    results = train(bert, corpus, folder, "--dev_holdout", 12, "--eval_tasks", "embedded_dev", "--seeds", 0, 1)
    assert list(results["tasks"]) == ["dev_text", "embedded_dev"]
    task = results["tasks"]["dev_text"]
    assert task["n"] == task["held_out_rows"] == 12 and task["retrieval_std"] >= 0 and "score_max" in task
    each = [json.loads((folder / f"seed-{seed}" / "results.json").read_text())["tasks"]["dev_text"] for seed in (0, 1)]
    assert each[0]["sha256"] == each[1]["sha256"] and task["score"] == np.mean([one["score"] for one in each])
    assert results["exported_seed"] == max((0, 1), key=lambda seed: each[seed]["score"])
    assert results["selection"]["metric"] == "eval_dev_text_score"
    manifest = json.loads((folder / "seed-0" / "manifest.json").read_text())
    assert manifest["identity"]["dev_holdout"] == 12 and "held out of" in manifest["evaluation"]["dev_text"]["source"]
    assert manifest["corpus"]["kept"] == len(SENTENCES) ** 2  # of the corpus, of which 12 are not trained on


def test_resume(bert, corpus, tmp_path):
    more = ("--dev_holdout", 12, "--save_total_limit", 5)
    whole = train(bert, corpus, tmp_path / "whole", *more)
    part = tmp_path / "part"
    train(bert, corpus, part, *more)
    for path in ("checkpoint-6", "results.json"):
        (part / path).rename(tmp_path / path)
    again = train(bert, corpus, part, *more, "--resume_from_checkpoint", "last")
    assert again["training"]["resumed_at_step"] == 4
    assert again["tasks"] == whole["tasks"] and again["before"] == whole["before"]
    with pytest.raises(UserError, match="holds another run, with dev_holdout 12 in place of 11"):
        train(bert, corpus, part, "--dev_holdout", 11, "--resume_from_checkpoint", "last")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--dev_text", "nowhere.txt"], "nowhere.txt"),
        (["--dev_text", "dev.txt", "--dev_holdout", 5], "--dev_text and --dev_holdout are both"),
        (["--dev_noise", 0.5, "--eval_tasks", "embedded_dev"], "--dev_noise belongs to --dev_text or --dev_holdout"),
        (["--dev_text", "dev.txt", "--dev_noise", 0], "--dev_noise must be above 0"),
        (["--dev_holdout", 96], "the corpus has 4 sentences, fewer than one batch of 8"),
        (["--dev_holdout", 100], "--dev_holdout 100 must be at least 2 and below the 100"),
        (["--dev_holdout", 9, "--streaming"], "pass --dev_text FILE"),
        (["--dev_holdout", 9, "--eval_strategy", "no"], "--eval_strategy no makes no use of --dev_holdout"),
        (["--eval_strategy", "no", "--eval_tasks", "embedded_dev"], "makes no use of --eval_tasks embedded_dev"),
        (["--dev_text", "dev.txt", "--metric_for_best_model", "dev_text_spearman"],
         "choose one of eval_dev_text_score, eval_dev_text_retrieval, .*uniformity"),
    ],
)  # fmt: skip
def test_refusals_write_nothing(bert, corpus, text, tmp_path, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=words):
        train(bert, corpus, tmp_path / "run", *more)
    assert sorted(tmp_path.rglob("*")) == before


def test_collapse_stops_the_run(bert, text, tmp_path):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert)
    trainer = trainer_of(model, tmp_path, dev={"dev_text": load_dev_text(text)})

    def collapse(sentences):
        x = RobustCSEModel.encode(model, sentences)
        return x if trainer.state.global_step == 0 else 1 + 1e-4 * x

    trainer.encode = collapse
    trainer.evaluate()
    with pytest.raises(TrainingStopped, match="embeddings collapsed: eval_dev_text_embedding_std"):
        trainer.train()


def test_names_beside_labelled_sets(bert, text, tmp_path):
    model = RobustCSEModel.from_encoder(bert)
    rows = [(SENTENCES[i], SENTENCES[i - 1], float(i)) for i in range(5)]
    pairs = StsData("STSB", "dev", {"all": rows}, "test", "0")
    dev = {"stsb_dev": pairs, "dev_text": load_dev_text(text)}
    trainer = trainer_of(model, tmp_path, dev=dev, metric_for_best_model="dev_text_uniformity")
    assert trainer.args.greater_is_better is False and not trainer.selected_on_test()
    assert "eval_avg_spearman" not in trainer.evaluate()
    assert trainer_of(model, tmp_path, dev=dev).args.metric_for_best_model == "eval_stsb_dev_spearman"
    assert trainer_of(model, tmp_path, dev=dev, metric_for_best_model="dev_text_cosine").args.greater_is_better
    with pytest.raises(UserError, match="does not exist"):
        trainer_of(model, tmp_path, dev=dev, metric_for_best_model="avg_spearman")
