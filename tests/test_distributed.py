"""Two real processes give what one process with the whole batch gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_encode import BATCH, encode, sentences_of
from distributed_gradient import gradients, load
from safetensors.torch import load_file, save_file
from tiny import SENTENCES, make_encoder, make_language_model
from transformers import AutoModel

from hf_robustcse.data import text_hash
from hf_robustcse.model import RobustCSEModel

ROOT = Path(__file__).parents[1]
VADV = {"vadv_lambda": 1.0, "vadv_steps": 2, "vadv_sigma": 0.05}
SELF = {"dclr_complement": "self", "dclr_threshold": 0.99}
RSE = {"rse_epsilon": 0.1, "rse_alpha": 0.01, "rse_pgd_steps": 3, "rse_fgsm_steps": 2, "rse_lambda1": 1.0}
DCL = {"dcl_augmentation": "dropout", "dcl_mask_rate": 0.4}
CASES = {
    "simcse": ("simcse", {}),
    "vadv": ("vadv", VADV),
    "vadv-similarity": ("vadv", {**VADV, "vadv_distribution": "similarity", "vadv_norm": "linf"}),
    "vadv-literal": ("vadv", {**VADV, "vadv_step": "literal", "vadv_step_size": 50.0}),
    "gs_infonce": ("gs_infonce", {"gs_mu": 0.5, "gs_multiple": 1.5}),
    "dclr": ("dclr", {"dclr_step": "relative", "dclr_step_size": 0.1, **SELF}),
    "dclr+vadv+gs_infonce": ("dclr+vadv+gs_infonce", {**VADV, **SELF, "dclr_noise_weights": "complement"}),
    "robustsentembed": ("robustsentembed", {**RSE, "rse_lambda2": 1.0, "rse_table_start": 0.1}),
    "robustsentembed-l2": ("robustsentembed", {**RSE, "rse_lambda2": 0.0, "rse_norm": "l2"}),
    "dcl-power": ("dcl", DCL),
    "simcse+anchor": ("simcse+anchor", {"anchor_noise": "pair"}),
    "dcl-power-warm": ("dcl", {**DCL, "dcl_warmup": 0}),
    "dcl-batch": ("dcl", {**DCL, "dcl_norm": "batch"}),
}


def launch(*arguments: object, processes: int = 2, succeeds: bool = True) -> str:
    """Run a script on several CPU processes (``accelerate launch --cpu`` starts one, whatever --num_processes says)."""
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"] if processes > 1 else []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, *launcher, *map(str, arguments)], capture_output=True, text=True, env=env
        )
        # Rarely, on a busy machine, a gloo thread of torch aborts a process; that says nothing about our code.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert (done.returncode == 0) is succeeds, done.stdout[-3000:] + done.stderr[-9000:]
    return done.stdout if succeeds else done.stderr


@pytest.mark.parametrize("case", CASES)
def test_gradient_of_two_processes_is_that_of_one(case, bert, masked_lm, tmp_path):
    method, options = CASES[case]
    torch.manual_seed(0)
    # The encoder of the masked language model is its own generator.
    encoder = masked_lm if options.get("rse_lambda2") or method == "dcl" else bert
    model = RobustCSEModel.from_encoder(encoder, method=method, method_options=options)
    model.set_seed(11)
    model.save_pretrained(tmp_path / "model")
    texts = [*SENTENCES[:5], SENTENCES[1], *SENTENCES[5:7]]  # a duplicate across the two halves
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "text_hash": torch.tensor([[text_hash(text)] for text in texts]),
    }
    save_file(inputs, tmp_path / "batch.safetensors")
    # In float64: what is left is the algorithm, not the order of sums.
    launch(ROOT / "tests/distributed_gradient.py", tmp_path / "model", tmp_path / "batch.safetensors",
           tmp_path / "two.safetensors", "float64", json.dumps(model.method.outside))  # fmt: skip
    two = load_file(tmp_path / "two.safetensors")
    one = gradients(load(str(tmp_path / "model"), torch.float64, model.method.outside), inputs)
    assert one.keys() == two.keys()
    scale = max(value.norm() for name, value in one.items() if name.startswith("grad"))
    worst = max(
        ((two[name] - value).norm() / torch.maximum(value.norm(), 1e-3 * scale)).item() for name, value in one.items()
    )
    print(f"{case}: largest relative difference {worst:.2e}")
    assert worst < 1e-6


@pytest.mark.parametrize(
    ("method", "options", "negatives"),
    [
        ("vadv", ["--vadv_lambda", "1"], 9),
        ("dcl", ["--dcl_augmentation", "dropout", "--dcl_warmup", "2", "--dcl_momentum", "0.5"], 0),
    ],
)
def test_a_run_on_two_processes_is_the_run_on_one_with_the_whole_batch(method, options, negatives, tmp_path):
    encoder = make_language_model(tmp_path / "encoder") if method == "dcl" else make_encoder(tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES), encoding="utf-8")
    (tmp_path / "dev.txt").write_text("\n".join(SENTENCES[:9]), encoding="utf-8")
    common = [
        ROOT / "examples/run_unsup.py", "--method", method, "--model_name_or_path", encoder, "--train_file",
        tmp_path / "corpus.txt", "--dropout", "0.0", "--eval_tasks", "embedded_dev", "--dev_text", tmp_path / "dev.txt",
        "--metric_for_best_model", "embedded_dev_spearman", "--eval_steps", "4", "--max_steps", "8", "--learning_rate",
        "1e-3", "--adam_epsilon", "1e-4", *options, "--use_cpu", "--disable_tqdm", "true", "--overwrite_output_dir",
    ]  # fmt: skip
    launch(*common, "--output_dir", tmp_path / "two", "--per_device_train_batch_size", 5)
    launch(*common, "--output_dir", tmp_path / "one", "--per_device_train_batch_size", 10, processes=1)
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert list(one["before"]) == ["dev_text", "embedded_dev"]
    for name, metrics in one["before"].items():  # many batches, and fewer than processes
        assert two["before"][name] == pytest.approx(metrics, abs=1e-6)
    assert two["tasks"]["embedded_dev"]["spearman"] == pytest.approx(one["tasks"]["embedded_dev"]["spearman"], abs=0.02)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    moved = AutoModel.from_pretrained(encoder).state_dict()
    difference = sum((a[k] - b[k]).square().sum() for k in a).sqrt()
    path = sum((a[k] - moved[k]).square().sum() for k in a).sqrt()
    # With its usual epsilon Adam turns the rounding of a gradient near zero into a whole step.
    assert difference < 1e-3 * path
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert [m["processes"] for m in manifests] == [1, 2]
    assert [m["negatives"] for m in manifests] == [negatives, negatives]


@pytest.mark.parametrize("processes", [2, 3])
def test_texts_that_are_embedded_together(processes, tmp_path):
    launch(ROOT / "tests/distributed_encode.py", tmp_path / "out.json", processes=processes)
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["refused"] == ["the first process refuses"] * processes
    for n, everyone in out["found"].items():
        sentences = sentences_of(int(n))
        expected = encode([])(sentences).tolist()
        assert [one["rows"] for one in everyone] == [expected] * processes
        batches = [batch for one in everyone for batch in one["batches"]]
        longest_first = sorted(sentences, key=lambda s: -len(s))
        alone = [longest_first[i : i + BATCH] for i in range(0, len(sentences), BATCH)]
        assert sorted(batches) == sorted(alone)
        counts = [len(one["batches"]) for one in everyone]
        assert max(counts) - min(counts) <= 1


def test_an_evaluation_by_two_processes_is_that_of_one(tmp_path):
    encoder = make_encoder(tmp_path / "encoder")
    (tmp_path / "text.txt").write_text(
        "\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES[:3]), encoding="utf-8"
    )
    common = [
        ROOT / "examples/run_eval.py", "--model_name_or_path", encoder, "--pooling", "mean", "--device", "cpu",
        "--batch_size", "16",
    ]  # fmt: skip
    tasks = ["--tasks", "embedded_dev", "geometry", "--geometry_text", tmp_path / "text.txt", "--bootstrap", "100"]
    printed = [
        launch(*common, *tasks, "--output_json", tmp_path / f"{processes}.json", processes=processes)
        for processes in (1, 2)
    ]
    one, two = (json.loads((tmp_path / f"{processes}.json").read_text()) for processes in (1, 2))
    assert printed[1].count("Spearman x100") == 1
    assert two["tasks"]["embedded_dev"] == one["tasks"]["embedded_dev"]  # the batches are the same: to the last bit
    for name in ("top_negatives", "negatives", "perturbed"):
        for metric, value in one["tasks"]["geometry"]["probes"][name].items():
            if metric not in ("map", "counts"):  # pictures, in which rounding may move a point
                assert two["tasks"]["geometry"]["probes"][name][metric] == pytest.approx(value, abs=1e-6), metric
    refused = launch(*common, "--tasks", "stsb_dev", "--data_dir", tmp_path, "--output_json", tmp_path / "no.json",
                     succeeds=False)  # fmt: skip
    assert "error: STSB dev is not under" in refused
    assert "exitcode  : 2" in refused and not (tmp_path / "no.json").exists()
