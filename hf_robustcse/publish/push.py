"""From a checkpoint folder to the Hub: pre-flight, release folder, check, upload."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import CommitInfo

from hf_robustcse import layout
from hf_robustcse.errors import PushFailed, UserError
from hf_robustcse.files import atomic_write_text
from hf_robustcse.publish.folder import Release, build_release
from hf_robustcse.publish.hub import preflight, retry_command, upload
from hf_robustcse.publish.scrub import Scrubber
from hf_robustcse.publish.verify import verify

STATES_BRANCH = "checkpoints"
"""The branch of the states of a training run, which hold pickles and are no release."""


def push(
    model: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
    tags: Sequence[str] = (),
    results: Sequence[str | Path] = (),
    card: Mapping[str, str | None] | None = None,
    check: bool = True,
    retry: str | None = None,
) -> tuple[CommitInfo, Release]:
    """Publish a checkpoint: release folder, check by sentence-transformers alone, one commit.

    Args:
        model: a checkpoint folder.
        repo_id: NAME or OWNER/NAME.
        private: make the repository private.
        revision: the branch.
        message: first line of the commit.
        token: of the Hub; by default that of this machine.
        tags: for the card.
        results: more result files for the card.
        card: license, language and base_model for it.
        check: run `verify` before the upload.
        retry: the command to repeat, for the message.

    Returns:
        The commit, and the release as it was built (its folder is gone).

    Raises:
        PushFailed: one line that names the model folder, which is as it was, and the command to retry.
    """
    command = retry or retry_command(model, repo_id, private=private, revision=revision)
    with tempfile.TemporaryDirectory(prefix="robustcse-") as temporary:
        try:
            repo_id = preflight(repo_id, token=token, private=private, revision=revision)
            release = build_release(
                model, Path(temporary) / "release", repo_id=repo_id, results=results, extra_tags=tags, token=token,
                card=card,
            )  # fmt: skip
            if check:
                verify(release.folder)
        except UserError as error:
            raise PushFailed(f"{error}; the model is in {model}; again: {command}") from error
        try:
            commit = upload(
                release.folder, repo_id, private=private, revision=revision, message=message, token=token,
                retry=command,
            )  # fmt: skip
        except PushFailed as error:
            raise PushFailed(str(error).replace(f"{release.folder} is kept", f"the model is in {model}")) from error
    return commit, release


def push_states(
    checkpoint: str | Path,
    repo_id: str,
    *,
    name: str,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
    replace: bool = True,
) -> CommitInfo:
    """Publish a checkpoint of training with the states to resume from, on a branch of its own.

    These hold pickles (optimizer.pt, rng_state.pth), so no release has them: the branch is ``checkpoints``, or
    ``<revision>-checkpoints``. JSON files are scrubbed as those of a release.

    Args:
        checkpoint: the folder.
        repo_id: OWNER/NAME.
        name: the folder's on the branch.
        private: make the repository private.
        revision: the branch of the release.
        message: first line of the commit.
        token: of the Hub; by default that of this machine.
        replace: delete the others that are on the branch.

    Raises:
        PushFailed: one line.
    """
    scrub = Scrubber(repo_id, (token,), (Path(checkpoint),))
    branch = STATES_BRANCH if revision in (None, "main") else f"{revision}-{STATES_BRANCH}"
    with tempfile.TemporaryDirectory(prefix="robustcse-") as temporary:
        folder = Path(temporary) / name
        shutil.copytree(checkpoint, folder)
        for file in ("trainer_state.json", "training_args.json", layout.CONFIG):
            if (folder / file).is_file():
                # Our own file: the log may be long, and hold a NaN.
                record = scrub.record(json.loads((folder / file).read_text(encoding="utf-8")))
                atomic_write_text(folder / file, json.dumps(record, indent=2) + "\n")
        return upload(
            temporary, repo_id, private=private, revision=branch, message=message, token=token, replace=replace
        )
