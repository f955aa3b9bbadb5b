"""`results.json`: one object per evaluation, which the tables, the plots and the model card read."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hf_robustcse.files import version_of

if TYPE_CHECKING:
    from hf_robustcse.evaluation.sts import StsData
    from hf_robustcse.evaluation.transfer import TransferData

_PACKAGES = (
    "hf-robustcse",
    "torch",
    "transformers",
    "sentence-transformers",
    "datasets",
    "scikit-learn",
    "scipy",
    "numpy",
)
SECRET_NAME = re.compile(r"(token|password|secret|api[_-]?key)$", re.IGNORECASE)
SECRET_VALUE = re.compile(r"hf_[A-Za-z0-9]{20,}")


def library_versions() -> dict[str, str | None]:
    """The installed versions of Python and of the libraries that a result depends on (None: not installed)."""
    return {"python": platform.python_version(), **{package: version_of(package) for package in _PACKAGES}}


def device_name(device: str | torch.device) -> str:
    """A device in words: `cpu`, or `cuda:0 (NVIDIA A100)`."""
    device = torch.device(device)
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def command_line(argv: Sequence[str]) -> str:
    """The command as one shell line, with the values of options such as `--hub_token`, and Hub tokens, as `***`."""
    words, hide = [], False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = word.startswith("-") and SECRET_NAME.search(name) is not None
        if hide and not word.startswith("-"):
            word = "***"
        elif secret and equals:
            word = f"{name}=***"
        hide = secret and not equals
        words.append(SECRET_VALUE.sub("***", word))
    return shlex.join(words)


def task_record(metrics: Mapping[str, Any], data: StsData | TransferData) -> dict[str, Any]:
    """The metrics of a task with what makes them comparable: split, source and checksum of its rows."""
    return {**metrics, "split": data.split, "source": data.source, "sha256": data.sha256}


def base_results(
    *,
    model: str,
    method: str | None,
    seed: int,
    command: str,
    revision: str | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """The object without its scores: who, with what, how; `tasks`, `averages` and whatever else are added to it.

    Args:
        model: the folder or Hub id.
        method: the training method, None for a model that was not trained here.
        seed: of whatever is drawn at random.
        command: the command as one line (`command_line` makes it).
        revision: the commit of a Hub model.
        device: that the model ran on; None for the default accelerator, or the CPU.

    Returns:
        A dictionary that `json.dumps` takes as it is.
    """
    return {
        "model": model,
        "revision": revision,
        "method": method,
        "library_versions": library_versions(),
        "device": device_name(device or ("cuda" if torch.cuda.is_available() else "cpu")),
        "seed": seed,
        "command": command,
        # The official releases, raw and cased; figures on SentEval's tokenised, lower-cased copies differ slightly.
        "protocol": {"text": "raw, cased", "aggregation": "all", "metric": "Spearman of cosine similarity x 100"},
        "tasks": {},
        "averages": {"sts": None, "transfer": None, "transfer_6": None},
    }
