"""The pre-flight and the upload against a Hub on the loopback interface, by the real client."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import FINE_GRAINED_TOKEN, READ_TOKEN, WRITE_TOKEN, Hub
from test_release_folder import run_example

from hf_robustcse.errors import PushFailed, UserError
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.publish import build_release, preflight, upload
from hf_robustcse.publish import hub as client


@pytest.fixture(scope="module")
def release(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release folder; tests must not change it."""
    return build_release(checkpoint, tmp_path_factory.mktemp("releases") / "simcse", repo_id="org/simcse").folder


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WAITS", (0.01, 0.02))


def commits(hub: Hub, name: str, revision: str = "main") -> list[str]:
    """Titles, the newest first."""
    return [c.title for c in huggingface_hub.HfApi().list_repo_commits(name, revision=revision)]


def published(hub: Hub, name: str, revision: str = "main") -> dict[str, bytes]:
    return {k: v for k, v in hub.store.files("models", name, revision).items() if k != ".gitattributes"}


def local(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_release_is_one_commit_and_replaces_the_former_one(hub, release, tmp_path):
    upload(release, "org/simcse", message="Release of simcse")
    assert published(hub, "org/simcse") == local(release)
    assert commits(hub, "org/simcse")[0] == "Release of simcse" and len(commits(hub, "org/simcse")) == 2
    second = shutil.copytree(release, tmp_path / "second")
    (second / "robustcse" / "config.json").write_text("{}")
    shutil.rmtree(second / "1_Pooling")
    hub.requests.clear()
    upload(second, "org/simcse", message="Again")
    assert published(hub, "org/simcse") == local(second) and len(commits(hub, "org/simcse")) == 3
    assert not hub.asked("PUT", "/objects/")  # the weights are there
    upload(second, "org/simcse", message="The same")
    assert len(commits(hub, "org/simcse")) == 3  # nothing new is no commit


def test_a_branch_a_tag_and_a_private_repository(hub, release):
    upload(release, "org/simcse", private=True, message="one")
    assert huggingface_hub.HfApi().repo_info("org/simcse").private
    upload(release, "org/simcse", private=True, revision="half", tag="v1", message="two")
    assert published(hub, "org/simcse", "half") == published(hub, "org/simcse", "v1") == local(release)
    upload(release, "org/open")
    with pytest.raises(PushFailed, match="org/open is there and is public"):  # the Hub would ignore it
        upload(release, "org/open", private=True)


def test_a_model_that_is_not_there_is_one_line(hub, release):
    upload(release, "org/simcse", private=True)
    for name, revision, token, message in (
        ("org/none", None, WRITE_TOKEN, "cannot find 'org/none': org/none is not a local folder"),
        ("org/simcse", "nope", WRITE_TOKEN, "cannot find 'org/simcse': nope is not a valid git identifier"),
        ("org/simcse", None, "hf_nobody_has_this_token", "or cannot be reached with this token"),
    ):
        with pytest.raises(UserError, match=message) as error:
            RobustCSEModel.from_pretrained(name, revision=revision, token=token)
        assert "\n" not in str(error.value) and token not in str(error.value)
    assert RobustCSEModel.from_pretrained("org/simcse", revision="main", token=WRITE_TOKEN).config.method == "simcse"


def test_what_is_no_release_is_not_replaced(hub, release):
    api = huggingface_hub.HfApi()
    for name in ("LICENSE", "notes/mine.md"):
        api.create_repo("org/theirs", exist_ok=True)
        api.upload_file(path_or_fileobj=b"...", path_in_repo=name, repo_id="org/theirs")
    message = "org/theirs holds notes/mine.md, which are no release of this package and would be deleted"
    for revision in (None, "new"):
        with pytest.raises(UserError, match=message):  # before a training of days
            preflight("org/theirs", revision=revision)
        with pytest.raises(PushFailed, match=message):
            upload(release, "org/theirs", revision=revision)
    api.delete_file("notes/mine.md", "org/theirs")
    upload(release, "org/theirs")
    assert published(hub, "org/theirs") == local(release) | {"LICENSE": b"..."}


def test_the_command_to_retry_may_set_the_tag_that_it_has_set(hub, release, tmp_path):
    hub.fail("POST", "/collections", status=403)
    with pytest.raises(PushFailed, match="the files are on org/simcse, but this token may not write there"):
        upload(release, "org/simcse", tag="v1", collection="org/T")
    upload(release, "org/simcse", tag="v1", collection="org/T")
    second = shutil.copytree(release, tmp_path / "second")
    (second / "results.json").write_text("{}")
    with pytest.raises(PushFailed, match="the tag v1 is that of the release before: choose another --tag"):
        upload(second, "org/simcse", tag="v1")
    with pytest.raises(PushFailed, match="has a tag v1 already"):
        upload(second, "org/simcse", tag="v1")


def test_collections_are_made_once(hub, release):
    for name in ("org/one", "org/two", "org/two"):
        upload(release, name, collection="org/Robust encoders")
    api = huggingface_hub.HfApi()
    found = [api.get_collection(c.slug) for c in api.list_collections(owner="org")]
    assert [c.title for c in found] == ["Robust encoders"]
    assert [item.item_id for item in found[0].items] == ["org/one", "org/two"]
    upload(release, "org/three", collection=found[0].slug)
    assert len(api.get_collection(found[0].slug).items) == 3


@pytest.mark.parametrize("method, path, status", [
    ("POST", "/commit/", 500), ("POST", "/commit/", 429), ("POST", "/commit/", 412), ("POST", "/repos/create", 503),
    ("GET", "/revision/next", 502),
])  # fmt: skip
def test_errors_that_pass_are_waited_for(hub, release, method, path, status, capsys):
    hub.fail(method, path, status=status, times=2)
    upload(release, "org/simcse", revision="next", message="one")
    assert published(hub, "org/simcse", "next") == local(release)
    assert commits(hub, "org/simcse", "next").count("one") == 1
    assert capsys.readouterr().err.count("trying again in") == 2


def test_an_answer_that_was_lost_makes_no_second_commit(hub, release, capsys):
    hub.fail("POST", "/commit/", cut=True)
    upload(release, "org/simcse", message="one")
    assert "the connection to the Hub failed" in capsys.readouterr().err
    assert commits(hub, "org/simcse").count("one") == 1 and published(hub, "org/simcse") == local(release)


def test_errors_that_stay_end_in_one_line_with_the_command(hub, release):
    hub.fail("POST", "/commit/", status=500, times=9)
    with pytest.raises(PushFailed) as error:
        upload(release, "org/simcse", private=True, revision="r", token=WRITE_TOKEN)
    assert str(error.value).endswith(
        f"{release} is kept; again: python examples/publish.py --model {release} --repo_id org/simcse --private "
        "--revision r"
    )
    assert "the Hub answered 500" in str(error.value) and WRITE_TOKEN not in str(error.value)
    assert release.is_dir() and not published(hub, "org/simcse", "r")


def test_an_interrupted_upload_goes_on_where_it_was(hub, release):
    sizes = {name: len(content) for name, content in local(release).items() if name.endswith(".safetensors")}
    assert len(sizes) == 2
    hub.fail("PUT", "/objects/", status=400)  # one of the two large files
    with pytest.raises(PushFailed):
        upload(release, "org/simcse")
    assert len(hub.asked("PUT", "/objects/")) == 2 and not published(hub, "org/simcse")
    hub.requests.clear()
    upload(release, "org/simcse")
    assert len(hub.asked("PUT", "/objects/")) == 1  # only the one that was not there
    assert published(hub, "org/simcse") == local(release)


def test_preflight_names_the_owner_and_creates_only_when_asked(hub, monkeypatch):
    assert preflight("simcse") == "tester/simcse"
    assert preflight("org/simcse", token=FINE_GRAINED_TOKEN) == "org/simcse"
    assert not hub.asked("POST", "/repos/create")
    assert preflight("simcse", create=True, private=True) == "tester/simcse"
    assert huggingface_hub.HfApi().repo_info("tester/simcse").private
    hub.fail("GET", "/whoami", status=429, times=2)
    assert preflight("simcse") == "tester/simcse"


@pytest.mark.parametrize("name, token, message", [
    ("org/simcse", None, "there is no token to push to org/simcse with: log in with `hf auth login`"),
    ("org/simcse", "hf_nobody_has_this_token", "the Hub does not know this token"),
    ("org/simcse", READ_TOKEN, "the token of tester is read-only"),
    ("stranger/simcse", WRITE_TOKEN, "tester is no member of stranger"),
    ("tester/simcse", FINE_GRAINED_TOKEN, "the fine-grained token of tester has no write access to tester/simcse"),
    ("org/a b", WRITE_TOKEN, "'org/a b' is no name of a repository"),
    ("a/b/c", WRITE_TOKEN, "'a/b/c' is no name of a repository"),
])  # fmt: skip
def test_preflight_refuses_in_one_line(hub, monkeypatch, name, token, message):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match=re.escape(message)) as error:
        preflight(name, token=token, create=True, retry="run_unsup.py --push_to_hub")
    assert "\n" not in str(error.value) and (token is None or token not in str(error.value))
    assert not hub.asked("POST", "/repos/create")
    if "no name" not in message:
        assert str(error.value).endswith("; then again: run_unsup.py --push_to_hub")


def test_preflight_of_revisions_and_without_a_network(hub, monkeypatch):
    for revision in ("../x", "a b", "x/", "0" * 40):
        with pytest.raises(UserError, match="--revision"):
            preflight("simcse", revision=revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        preflight("simcse")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot push to simcse: the connection to the Hub failed"):
        preflight("simcse")


def test_the_command_refuses_a_read_only_token_before_it_builds(hub, checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with pytest.raises(SystemExit) as stop:
        run_example("--model", checkpoint, "--repo_id", "org/simcse", "--tag", "v1")
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and READ_TOKEN not in error
    assert "read-only" in error and f"--model {checkpoint} --repo_id org/simcse --tag v1" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow  # each release is loaded in a process of its own
def test_the_command_publishes_a_family(hub, checkpoint, tmp_path, capsys):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    config = json.loads((other / "robustcse" / "config.json").read_text())
    (other / "robustcse" / "config.json").write_text(json.dumps({**config, "method": "vadv"}))
    words = ["--repo_id", "org/{method}-tiny", "--output_dir", tmp_path / "out", "--tag", "v1", "--collection", "org/T"]
    run_example("--model", checkpoint, other, *words)
    for name in ("simcse-tiny", "vadv-tiny"):
        assert published(hub, f"org/{name}", "v1") == local(tmp_path / "out" / name)
    assert 'SentenceTransformer("org/vadv-tiny")' in capsys.readouterr().out
