"""The whole life of a model: trained, pushed, loaded by others, trained on, pushed as a revision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hub_server import WRITE_TOKEN
from sentence_transformers import SentenceTransformer
from tiny import SENTENCES

from hf_robustcse import RobustCSEModel
from hf_robustcse.runs import parse_arguments, run

ROOT = Path(__file__).parents[2]
TRAIN = [
    "--train_file", "text.txt", "--eval_tasks", "none", "--max_steps", "3", "--per_device_train_batch_size", "4",
    "--use_cpu", "--disable_tqdm", "true", "--report_to", "none",
]  # fmt: skip
# Somebody else's process: the package cannot be imported, nor is its folder on the path.
ALONE = """
import json, sys
sys.modules["hf_robustcse"] = None
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("org/vadv-tiny", token=False)
print(json.dumps(model.encode(json.load(sys.stdin)).tolist()))
"""


def test_train_push_load_elsewhere_train_on_push_a_revision(hub, bert, tmp_path, monkeypatch):
    home = tmp_path / "jqpublic77"
    home.mkdir()
    (home / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    environment = hub.env(home / "cache", token=WRITE_TOKEN) | {"LOGNAME": "jqpublic77", "HOME": str(home)}
    path = {"PYTHONPATH": str(ROOT)}

    # Train and push.
    words = [*TRAIN, "--model_name_or_path", str(bert), "--method", "vadv", "--output_dir", str(home / "model")]
    hub.fail("POST", "/commit/", status=500)  # a bad moment is waited for
    done = subprocess.run(
        [sys.executable, ROOT / "examples/run_unsup.py", *words, "--push_to_hub", "--hub_model_id", "org/vadv-tiny"],
        env=environment | path, cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pushed: " in done.stdout and WRITE_TOKEN not in done.stdout + done.stderr

    # Load it elsewhere, without the package and without a token.
    texts = SENTENCES[:3]
    other = subprocess.run(
        [sys.executable, "-c", ALONE], input=json.dumps(texts), env=hub.env(tmp_path / "other"), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert other.returncode == 0, other.stderr
    first = json.loads(other.stdout.splitlines()[-1])

    # Train on from the Hub, here, and push a revision.
    monkeypatch.chdir(home)
    run(parse_arguments([*TRAIN, "--model_name_or_path", "org/vadv-tiny", "--output_dir", "tuned"]))
    tuned = RobustCSEModel.from_pretrained("tuned")
    tuned.push_to_hub("org/vadv-tiny", revision="tuned", commit_message="Trained on", tags=["tuned"])

    # Both revisions load, and they are two.
    main, branch = (SentenceTransformer("org/vadv-tiny", revision=name, device="cpu") for name in ("main", "tuned"))
    assert abs(main.encode(texts) - first).max() < 1e-5
    assert abs(branch.encode(texts) - tuned.encode(texts).numpy()).max() < 1e-5
    assert abs(branch.encode(texts) - main.encode(texts)).max() > 1e-3
    again = RobustCSEModel.from_pretrained("org/vadv-tiny", revision="main")
    assert abs(again.encode(texts).numpy() - first).max() < 1e-5 and again.config.method == "vadv"

    # Nothing that was pushed tells what it must not, or can run.
    for revision in ("main", "tuned"):
        files = hub.store.files("models", "org/vadv-tiny", revision)
        assert {"README.md", "model.safetensors", "modules.json", "manifest.json", "results.json"} <= set(files)
        for name, content in files.items():
            assert name.endswith((".json", ".md", ".safetensors", ".txt", ".gitattributes")), name
            assert content[:1] != b"\x80" and content[:2] != b"PK", name
            for secret in (WRITE_TOKEN, "jqpublic77", str(tmp_path), str(bert), str(Path.home()) + "/"):
                assert secret.encode() not in content, (name, secret)
        card = files["README.md"].decode()
        assert (
            "## How to use it" in card and 'SentenceTransformer("org/vadv-tiny")' in card
        )  # not the one that stands in
