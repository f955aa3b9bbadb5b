"""benchmarks/gpu_run.sh and gpu_speed.py at toy size on the CPU: every stage runs, and what was cut goes on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "attacks")]
from gpu_speed import PRECISIONS, OutOfTime, at_most, known_peak  # noqa: E402

STAGES = (
    "probe", "tests", "speed", "speed-compiled", "speed-float", "steps", "memory", "precision", "train", "attacks",
    "study",
)  # fmt: skip


def gpu_run(*stages: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_run.sh"), *stages], capture_output=True, text=True,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )  # fmt: skip


def test_stages_are_listed_and_unknown_ones_refused(tmp_path):
    listed = gpu_run(OUT=str(tmp_path / "out"))
    assert listed.returncode == 2 and all(f"\n  {stage} " in listed.stdout for stage in STAGES)
    wrong = gpu_run("spead", OUT=str(tmp_path / "out"))
    assert wrong.returncode == 2 and "there is no stage spead" in wrong.stderr


def test_peaks_are_found_by_the_name_of_the_device():
    for name, peaks in {
        "NVIDIA H200": (989.4, 494.7, 66.9), "NVIDIA H100 PCIe": (756.0, 378.0, 51.0),
        "NVIDIA A10": (125.0, 62.5, 31.2),
        "NVIDIA A100-SXM4-80GB": (312.0, 156.0, 19.5), "NVIDIA L4": (121.0, 60.0, 30.3),
        "NVIDIA A10G": (None, None, None), "NVIDIA GeForce RTX 4090": (165.2, 82.6, 82.6), "cpu": (None, None, None),
    }.items():  # fmt: skip
        assert tuple(known_peak(name, precision) for precision in PRECISIONS) == peaks


def test_a_cell_cannot_keep_the_end_of_its_time():
    with pytest.raises(OutOfTime, match="not done in 0 s"), at_most(0.05):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(1)


@pytest.mark.slow
def test_every_stage_runs_in_toy_size_and_is_not_repeated(tmp_path):
    from run_attack_tools import make_classifier, rows, write_rows

    victim = make_classifier(tmp_path / "victim")
    examples = write_rows(tmp_path / "rows.tsv", rows(4))
    own = {
        "OUT": str(tmp_path / "out"), "GPU_RUN_TOY": "1", "LIMIT": "3000", "SEEDS": "0 1", "VICTIM": str(victim),
        "ATTACKED": str(examples), "ATTACKS": "deepwordbug",
    }  # fmt: skip
    done = gpu_run(*STAGES, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    assert "hf_robustcse can be imported" in (out / "probe.txt").read_text()
    for name in ("speed_bf16", "speed_float"):
        cells = json.loads((out / f"{name}.json").read_text())["cells"]
        assert len(cells) >= 7 and all("median_seconds" in cell for cell in cells.values()), cells
    for method in ("simcse", "vadv", "dclr", "gs_infonce"):
        result = json.loads((out / "train" / method / "results.json").read_text())
        assert result["seeds"] == [0, 1] and "spearman_std" in result["tasks"]["embedded_dev"]
    assert not list(out.rglob("*.safetensors"))
    again = gpu_run(*STAGES[1:], **own)
    assert again.returncode == 0 and again.stdout.count("done before") >= 15, again.stdout
