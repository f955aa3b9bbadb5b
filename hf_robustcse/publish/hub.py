"""The Hub's side of a release: may we write there, and one commit that does.

huggingface_hub repeats by itself the lists of files and what it sends before a commit (the large files); what it sends
once (who am I, create, branch, commit, tag, collection) is repeated here.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from hf_robustcse import layout
from hf_robustcse.errors import PushFailed, UserError
from hf_robustcse.evaluation.results import SECRET_VALUE

T = TypeVar("T")
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition of a request that the Hub did not answer, or answered with 429 or 5xx."""
_LONGEST_WAIT = 300.0  # of what the Hub may ask for
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN, using a token with write access from {}/settings/tokens"
_KEPT = re.compile(r"\.gitattributes|(LICENSE|NOTICE)(\.\w+)?")  # never deleted
_SLUG = re.compile(r"[^/]+/.+-[0-9a-f]{24}")


def retry_command(
    folder: str | Path, repo_id: str, *, private: bool | None = None, revision: str | None = None, **options: str | None
) -> str:
    """The command that publishes a folder; no token is in it.

    Args:
        folder: of the model.
        repo_id: where to.
        private: as it was asked for.
        revision: the branch.
        **options: further options of ``examples/publish.py`` with their values; None leaves one out.
    """
    words = ["python", "examples/publish.py", "--model", str(folder), "--repo_id", repo_id]
    words += ["--private"] if private else []
    for name, value in {"revision": revision, **options}.items():
        words += [f"--{name}", value] if value else []
    return shlex.join(words)


def check_names(
    repo_id: str, revision: str | None = None, tag: str | None = None, collection: str | None = None
) -> None:  # fmt: skip
    """Whether names can be names on the Hub, which is not asked.

    Args:
        repo_id: NAME or OWNER/NAME.
        revision: a branch.
        tag: of a commit.
        collection: OWNER/TITLE, TITLE, or OWNER/SLUG.

    Raises:
        UserError: one line, for the first that cannot.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{repo_id!r} is no name of a repository on the Hub ({reason}): use OWNER/NAME") from error
    for option, name, kind in (("revision", revision, "branch"), ("tag", tag, "tag")):
        if name is not None and not re.fullmatch(r"(?!.*(\.\.|//))[A-Za-z0-9_][\w./-]*(?<![./])", name):
            raise UserError(f"--{option} {name!r} is no name of a {kind}: use letters, digits, '-', '_', '.' and '/'")
    if revision is not None and re.fullmatch("[0-9a-f]{40}", revision):
        raise UserError(f"--revision {revision} is a commit, which cannot be pushed to: name a branch")
    if collection is not None and not re.fullmatch(r"([\w.-]+/)?[^/]*[^/\s][^/]*", collection):
        raise UserError(f"--collection {collection!r} is no name of a collection: use OWNER/TITLE")


def preflight(
    repo_id: str,
    *,
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    create: bool = False,
    retry: str | None = None,
) -> str:
    """Whether a push can succeed, asked before anything long: name, network, token, right to write.

    Args:
        repo_id: NAME or OWNER/NAME; without an owner it is the token's.
        token: of the Hub; by default that of this machine.
        private: the repository must be private.
        revision: the branch that is pushed to.
        create: make the repository if it is not there.
        retry: the command to repeat, for messages.

    Returns:
        OWNER/NAME.

    Raises:
        UserError: one line that says what is wrong and what to do; never the token.
    """
    again = f"; then again: {retry}" if retry else ""
    check_names(repo_id, revision)
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"HF_HUB_OFFLINE is set, so nothing can be pushed to {repo_id}: unset it{again}")
    login = _LOGIN.format(constants.ENDPOINT)
    if not (token or get_token()):
        raise UserError(f"there is no token to push to {repo_id} with: {login}{again}")
    api = HfApi(token=token)
    try:
        who = patiently(api.whoami)
        owner, _, name = repo_id.rpartition("/")
        owner = owner or who["name"]
        if problem := _may_not_write(who, owner, name):
            raise UserError(f"{problem}: {login}{again}")
        repo_id = f"{owner}/{name}"
        _refuse_public(api, repo_id, private)
        _refuse_foreign(repo_id, _files_there(api, repo_id, revision))
        if create:
            repo_id = patiently(api.create_repo, repo_id, private=private, exist_ok=True).repo_id
    except LocalTokenNotFoundError as error:
        raise UserError(f"there is no token to push to {repo_id} with: {login}{again}") from error
    except HfHubHTTPError as error:
        if _status(error) == 401:
            raise UserError(f"the Hub does not know this token: {login}{again}") from error
        raise UserError(f"cannot push to {repo_id}: {explain(error)}{again}") from error
    except Exception as error:
        if not is_transient(error):
            raise
        raise UserError(f"cannot push to {repo_id}: {explain(error)}{again}") from error
    return repo_id


def _may_not_write(who: Mapping[str, Any], owner: str, name: str) -> str | None:
    """Why what `whoami` says forbids to write to OWNER/NAME, or None."""
    token = (who.get("auth") or {}).get("accessToken") or {}
    role, me = token.get("role"), str(who["name"])
    if role == "read":
        return f"the token of {me} is read-only, it cannot write to {owner}/{name}"
    roles = {str(org["name"]).lower(): org.get("roleInOrg") for org in who.get("orgs") or []}
    if owner.lower() != me.lower():
        if owner.lower() not in roles:
            return f"{me} is no member of {owner}, so the token cannot write to {owner}/{name}"
        if roles[owner.lower()] == "read":
            return f"{me} may only read in {owner}, so the token cannot write to {owner}/{name}"
    if role == "fineGrained":
        for scope in (token.get("fineGrained") or {}).get("scoped") or []:
            entity = scope.get("entity") or {}
            whole = entity.get("type") in ("user", "org") and str(entity.get("name")).lower() == owner.lower()
            alone = entity.get("type") == "model" and str(entity.get("name")).lower() == f"{owner}/{name}".lower()
            if (whole or alone) and "repo.write" in (scope.get("permissions") or []):
                return None
        return f"the fine-grained token of {me} has no write access to {owner}/{name}"
    return None


def _refuse_public(api: HfApi, repo_id: str, private: bool | None) -> None:
    """The Hub ignores `private` for a repository that is there: nobody shall publish by mistake."""
    if not private:
        return
    try:
        info = patiently(api.repo_info, repo_id)
    except RepositoryNotFoundError:
        return
    if info.private is False:
        raise UserError(f"{repo_id} is there and is public: make it private in its settings, or leave --private out")


def upload(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
    tag: str | None = None,
    collection: str | None = None,
    retry: str | None = None,
    replace: bool = True,
) -> CommitInfo:
    """Put a folder on the Hub in one commit, and nothing if that fails.

    Large files are sent before the commit; after an interruption the same call sends only what the Hub has not got. A
    file that is on the branch and not in the folder is deleted by the same commit. A commit of what is there already
    is none.

    Args:
        folder: of a release.
        repo_id: NAME or OWNER/NAME; made if it is not there.
        private: make it private.
        revision: the branch, made from main if it is not there; by default main.
        message: first line of the commit.
        token: of the Hub; by default that of this machine.
        tag: set to the commit.
        collection: OWNER/TITLE, made if it is not there, or OWNER/SLUG: the repository is added to it.
        retry: the command to repeat, for the message.
        replace: delete what is not in the folder.

    Returns:
        The commit.

    Raises:
        PushFailed: one line with the command to retry; the folder stays as it is.
    """
    folder = Path(folder)
    command = retry or retry_command(
        folder, repo_id, private=private, revision=revision, tag=tag, collection=collection
    )  # fmt: skip
    api = HfApi(token=token)
    done = ""
    try:
        if private:
            _refuse_public(api, repo_id, private)
        repo_id = patiently(api.create_repo, repo_id, private=private, exist_ok=True).repo_id
        if revision not in (None, "main"):
            patiently(api.create_branch, repo_id, branch=revision, exist_ok=True)
        tagged = _tagged(api, repo_id, revision, tag)
        commit = _commit(api, folder, repo_id, revision, message or "Release", replace)
        done = f"the files are on {repo_id}, but "
        if tagged not in (None, commit.oid):
            raise UserError(f"the tag {tag} is that of the release before: choose another --tag")
        if tag is not None:
            patiently(api.create_tag, repo_id, tag=tag, revision=commit.oid, exist_ok=True)
        if collection is not None:
            _collect(api, repo_id, collection, private)
    except UserError as error:
        raise PushFailed(f"{done}{error}; {folder} is kept; again: {command}") from error
    except Exception as error:  # of the Hub, the client or the disk: what was made is kept
        raise PushFailed(f"{done}{explain(error)}; {folder} is kept; again: {command}") from error
    return commit


def _commit(
    api: HfApi, folder: Path, repo_id: str, revision: str | None, message: str, replace: bool
) -> CommitInfo:  # fmt: skip
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    waits = list(WAITS)
    while True:
        # Made anew each time: if the answer to a commit was lost, all files are found to be there, and none is made.
        head = patiently(api.repo_info, repo_id, revision=revision).sha
        there = api.list_repo_files(repo_id, revision=revision)
        additions = [CommitOperationAdd(name, path) for name, path in files.items()]
        if replace and layout.CONFIG in files:
            _refuse_foreign(repo_id, there)
        gone = [name for name in there if name not in files and not _KEPT.fullmatch(name)] if replace else []
        api.preupload_lfs_files(repo_id, additions, revision=revision, free_memory=False)
        try:
            return api.create_commit(
                repo_id, [*additions, *(CommitOperationDelete(name) for name in gone)], commit_message=message,
                revision=revision, parent_commit=head,
            )  # fmt: skip
        except Exception as error:
            if not waits or not (is_transient(error) or _status(error) == 412):  # 412: somebody else was faster
                raise
            _wait(error, waits.pop(0))


def _tagged(api: HfApi, repo_id: str, revision: str | None, tag: str | None) -> str | None:
    """The commit that a tag names already; it has to be the last one, which a repeated command finds to be its own."""
    if tag is None:
        return None
    there = next((ref for ref in patiently(api.list_repo_refs, repo_id).tags if ref.name == tag), None)
    if there is not None and there.target_commit != patiently(api.repo_info, repo_id, revision=revision).sha:
        raise UserError(f"{repo_id} has a tag {tag} already: choose another --tag")
    return there and there.target_commit


def _files_there(api: HfApi, repo_id: str, revision: str | None) -> list[str]:
    """The files of a branch; of main, which it will be made from, if it is not there."""
    for name in dict.fromkeys((revision, None)):
        try:
            return patiently(api.list_repo_files, repo_id, revision=name)
        except RevisionNotFoundError:
            continue
        except RepositoryNotFoundError:
            break
    return []


def _refuse_foreign(repo_id: str, there: Sequence[str]) -> None:
    """A release replaces what is on its branch: that must be a release too."""
    files = sorted(name for name in there if not _KEPT.fullmatch(name) and name != "README.md")
    if files and layout.CONFIG not in files:
        raise UserError(
            f"{repo_id} holds {files[0]}{f' and {len(files) - 1} files more' if files[1:] else ''}, which are no "
            "release of this package and would be deleted: choose another --repo_id or --revision, or empty it"
        )


def _collect(api: HfApi, repo_id: str, collection: str, private: bool | None) -> None:
    owner, _, title = collection.rpartition("/")
    if _SLUG.fullmatch(collection):
        slug = collection
    else:
        slug = patiently(
            api.create_collection, title, namespace=owner or repo_id.split("/")[0], private=bool(private),
            exists_ok=True,
        ).slug  # fmt: skip
    patiently(api.add_collection_item, slug, repo_id, "model", exists_ok=True)


def patiently(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a request, and again after growing waits if it was not answered, or with 429 or 5xx."""
    for wait in (*WAITS, None):
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if wait is None or not is_transient(error):
                raise
            _wait(error, wait)
    raise AssertionError


def _wait(error: Exception, seconds: float) -> None:
    asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    if asked.isdigit():
        seconds = min(max(seconds, float(asked)), _LONGEST_WAIT)
    print(f"{explain(error)}; trying again in {seconds:g} s", file=sys.stderr, flush=True)
    time.sleep(seconds)


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _of_client(error: BaseException) -> bool:
    """Whether it is an error of the HTTP client, which huggingface_hub has changed before (httpx, httpx2)."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "urllib3", "hf_xet")


def is_transient(error: BaseException) -> bool:
    """Whether a request may succeed when it is repeated."""
    status = _status(error)
    if status is not None:
        return status == 429 or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, (ConnectionError, TimeoutError)) or (
        _of_client(error) and bool(names & {"TransportError", "ConnectionError", "Timeout"})
    )


def explain(error: BaseException) -> str:
    """An error of the Hub in one line, without addresses, which may be signed, and without tokens."""
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # of one of several files
        error = error.__cause__
    status = _status(error)
    if isinstance(error, RepositoryNotFoundError):
        return "the Hub has no such repository, or this token does not see it"
    if isinstance(error, RevisionNotFoundError):
        return "the Hub has no such branch"
    known = {
        401: "the Hub does not know this token (401)",
        403: f"this token may not write there (403): get one from {constants.ENDPOINT}/settings/tokens",
        409: "the repository changed meanwhile (409)",
        412: "the repository changed meanwhile (412)",
        429: "the Hub asks to wait (429)",
    }
    if status in known:
        return known[status]
    if status is not None:
        said = getattr(error, "server_message", None) or ""
        return f"the Hub answered {status}" + (f" ({_plain(said)})" if said else "")
    if is_transient(error) or _of_client(error):
        return f"the connection to the Hub failed ({type(error).__name__})"
    return _plain(f"{type(error).__name__}: {error}")


def _plain(text: str) -> str:
    token = get_token()
    text = SECRET_VALUE.sub("***", re.sub(r"https?://\S+", "(address)", " ".join(text.split())))
    return (text.replace(token, "***") if token else text)[:300]
