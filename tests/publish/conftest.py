"""A checkpoint whose records tell what must not be published, and a Hub on the loopback interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import hub_server
import huggingface_hub
import pytest

from hf_robustcse.model import RobustCSEModel

SECRET = "hf_" + "A1b2C3d4" * 4


def write_records(folder: Path) -> None:
    """`results.json` and `manifest.json` with a token, local paths and a user's name, and files that stay at home."""
    command = f"run_unsup.py --train_file '/home/jqpublic77/my texts/wiki.txt' --output_dir={folder} --note {SECRET}"
    results = {
        "model": str(folder), "method": "simcse", "command": command, "seed": 0, "device": "cpu",
        "library_versions": {"torch": "2.6"},
        "tasks": {"stsb_dev": {"spearman": 61.5, "n": 1500, "split": "dev", "source": "/home/jqpublic77/sts/dev.tsv"}},
        "averages": {"sts": None},
    }  # fmt: skip
    manifest = {
        "command": command, "identity": {"model_name_or_path": "~/models/bert"},
        "arguments": {"training": {"hub_token": "my own token", "output_dir": str(folder), "run_name": "jqpublic77"}},
        "corpus": {"files": [{"path": r"C:\Users\jqpublic77\wiki.txt"}], "source": "https://example.org/a/wiki.txt"},
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "checkpoint-5").mkdir()
    for name in ("training_args.bin", "optimizer.pt", "train.log", ".env", "training_args.json", "checkpoint-5/a.pt"):
        (folder / name).write_text(SECRET, encoding="utf-8")


@pytest.fixture(scope="session")
def checkpoint(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder."""
    folder = tmp_path_factory.mktemp("jqpublic77") / "simcse-tiny"
    RobustCSEModel.from_encoder(bert).save_pretrained(folder)
    write_records(folder)
    return folder


@pytest.fixture(autouse=True)
def _user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "jqpublic77")  # what getpass reads first


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A Hub for clients in this process, with the token that writes."""
    with hub_server.hub(tmp_path / "hub") as server:
        # The clients read these from the environment when they are imported.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", hub_server.WRITE_TOKEN)
        yield server
