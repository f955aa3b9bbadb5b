"""The Hub's real clients publish to a Hub on the loopback interface and load from it, and see it fail.

huggingface_hub reads its constants when it is called, so it runs in the test's own process. transformers,
sentence-transformers and datasets read the address of the Hub when they are imported, so they run in others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hub_server
import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tiny import SENTENCES

from hf_robustcse.evaluation.attacked_sets import save_attacked_set
from hf_robustcse.model import RobustCSEModel

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = bytes(range(256)) * 400


# huggingface_hub's own call of its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(constants, name, value)
    with hub_server.hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def api(server: hub_server.Hub) -> HfApi:
    return HfApi(endpoint=server.url, token=hub_server.WRITE_TOKEN)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that clients wait before they try again, which then do not pass."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def add(**files: bytes) -> list[CommitOperationAdd]:
    return [CommitOperationAdd(name.replace("__", "."), content) for name, content in files.items()]


def test_the_life_of_a_repository(server: hub_server.Hub, api: HfApi, tmp_path: Path) -> None:
    assert api.create_repo("org/name") == f"{server.url}/org/name"
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    files = {"model.safetensors": WEIGHTS, "config.json": b"{}", "1_Pooling/config.json": b"{ }", "empty.txt": b""}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    first = api.upload_folder(repo_id="org/name", folder_path=folder, commit_message="one", commit_description="all")
    api.create_tag("org/name", tag="v1.0")
    api.create_branch("org/name", branch="release/next", revision="v1.0")
    second = api.create_commit(
        "org/name",
        [*add(config__json=b'{"a": 1}'), CommitOperationDelete("1_Pooling/")],
        commit_message="two",
        parent_commit=first.oid,
    )
    third = api.create_commit("org/name", add(new=b"x"), commit_message="three", revision="release/next")

    refs = api.list_repo_refs("org/name")
    assert {ref.name: ref.target_commit for ref in refs.branches} == {"main": second.oid, "release/next": third.oid}
    assert {ref.name: ref.target_commit for ref in refs.tags} == {"v1.0": first.oid}
    commits = api.list_repo_commits("org/name")
    assert [(c.title, c.message) for c in commits] == [("two", ""), ("one", "all"), ("initial commit", "")]
    assert len({*(c.commit_id for c in commits), third.oid}) == 4 and len(third.oid) == 40
    assert {*api.list_repo_files("org/name")} == {".gitattributes", "model.safetensors", "config.json", "empty.txt"}
    assert {*api.list_repo_files("org/name", revision="release/next")} == {".gitattributes", "new", *files}
    about = {entry.path: entry for entry in api.get_paths_info("org/name", [*files, "none"], expand=True)}
    assert {*about} == {"model.safetensors", "config.json", "empty.txt"}
    assert about["model.safetensors"].lfs.size == len(WEIGHTS) and about["config.json"].lfs is None
    assert about["model.safetensors"].last_commit.oid == first.oid and about["config.json"].last_commit.title == "two"

    for revision, config in {"v1.0": b"{}", first.oid: b"{}", first.oid[:8]: b"{}", "main": b'{"a": 1}'}.items():
        found = Path(api.snapshot_download("org/name", revision=revision, cache_dir=tmp_path / "cache"))
        assert (found / "config.json").read_bytes() == config
        assert (found / "model.safetensors").read_bytes() == WEIGHTS
    assert server.store.files("models", "org/name", "v1.0").items() >= files.items()
    # An object goes to and comes from another host, without the token; everything else comes with it.
    assert {r.path.split("/")[1] for r in server.requests if not r.with_token} == {"objects"}
    assert len(server.asked("PUT", "")) == 1 and len(server.asked("GET", "^/objects")) == 1
    assert hub_server.WRITE_TOKEN not in repr(server.requests)

    # The same again is no commit.
    assert api.create_commit("org/name", add(config__json=b'{"a": 1}'), commit_message="same").oid == second.oid
    api.delete_tag("org/name", tag="v1.0")
    api.delete_branch("org/name", branch="release/next")
    refs = api.list_repo_refs("org/name")
    assert [ref.name for ref in refs.branches + refs.tags] == ["main"]
    assert [model.id for model in api.list_models(author="org")] == ["org/name"]
    api.delete_repo("org/name")
    assert not api.repo_exists("org/name") and not [*api.list_models(author="org")]


def test_a_large_file_goes_in_parts_and_none_twice(server: hub_server.Hub, api: HfApi, tmp_path: Path) -> None:
    server.part_size = 40_000
    api.create_repo("org/name")
    server.fail("PUT", "^/objects", cut=True)
    api.create_commit("org/name", add(model__safetensors=WEIGHTS), commit_message="in three parts")
    assert len(server.asked("PUT", "^/objects")) == 4  # three, and the one that was cut
    found = api.hf_hub_download("org/name", "model.safetensors", cache_dir=tmp_path)
    assert Path(found).read_bytes() == WEIGHTS
    api.create_commit("org/name", add(copy__safetensors=WEIGHTS), commit_message="the same object")
    assert len(server.asked("PUT", "^/objects")) == 4


def test_who_may_do_what(server: hub_server.Hub, api: HfApi, tmp_path: Path) -> None:
    assert api.whoami()["auth"]["accessToken"]["role"] == "write"
    assert api.whoami(hub_server.READ_TOKEN)["auth"]["accessToken"]["role"] == "read"
    fine = api.whoami(hub_server.FINE_GRAINED_TOKEN)["auth"]["accessToken"]
    assert fine["role"] == "fineGrained" and fine["fineGrained"]["scoped"][0]["entity"]["name"] == "org"
    api.create_repo("org/secret", private=True)
    api.create_commit("org/secret", add(file=b"x"), commit_message="one")

    def status(code: int, call: str, *arguments: object, token: str | bool, **options: object) -> HfHubHTTPError:
        with pytest.raises(HfHubHTTPError) as caught:
            getattr(api, call)(*arguments, token=token, **options)
        assert caught.value.response.status_code == code, caught.value
        assert "hf_" not in str(caught.value)
        return caught.value

    for token, code in {False: 401, "hf_unknown": 401, hub_server.READ_TOKEN: 403}.items():
        status(code, "create_repo", "org/other", token=token)
        status(code, "create_tag", "org/secret", tag="v1", token=token)
        status(code, "create_commit", "org/secret", add(f=b"y"), commit_message="no", token=token)
        status(code, "update_repo_settings", "org/secret", private=False, token=token)
        status(code, "delete_repo", "org/secret", token=token)
        status(code, "auth_check", "org/secret", write=True, token=token)
    assert "write token" in str(status(403, "create_repo", "org/other", token=hub_server.READ_TOKEN))
    assert "'readers'" in str(status(403, "create_repo", "readers/x", token=hub_server.WRITE_TOKEN))
    status(403, "create_repo", "tester/x", token=hub_server.FINE_GRAINED_TOKEN)
    api.create_repo("org/x", token=hub_server.FINE_GRAINED_TOKEN)
    for token in (False, "hf_unknown"):
        error = status(401, "hf_hub_download", "org/secret", "file", token=token, cache_dir=tmp_path)
        assert isinstance(error, RepositoryNotFoundError) == (token is False)
    api.hf_hub_download("org/secret", "file", token=hub_server.READ_TOKEN, cache_dir=tmp_path)
    api.update_repo_settings("org/secret", private=False)
    api.hf_hub_download("org/secret", "file", token=False, cache_dir=tmp_path / "another")


def test_what_is_not_there_or_in_the_way(server: hub_server.Hub, api: HfApi, tmp_path: Path) -> None:
    api.create_repo("org/name")
    first = api.create_commit("org/name", add(file=b"1"), commit_message="one")
    for missing, where in (
        (RepositoryNotFoundError, ("org/none", "file", "main")),
        (RepositoryNotFoundError, ("gpt2", "file", "main")),
        (RevisionNotFoundError, ("org/name", "file", "v9")),
        (EntryNotFoundError, ("org/name", "none", "main")),
    ):
        with pytest.raises(missing):
            api.hf_hub_download(where[0], where[1], revision=where[2], cache_dir=tmp_path)
    with pytest.raises(RepositoryNotFoundError):
        api.create_commit("org/none", add(file=b"1"), commit_message="to no repository")
    with pytest.raises(RevisionNotFoundError):
        api.create_commit("org/name", add(file=b"2"), commit_message="to no branch", revision="v9")
    with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
        api.create_commit("org/name", [CommitOperationDelete("none")], commit_message="nothing to delete")
    second = api.create_commit("org/name", add(file=b"2"), commit_message="two", parent_commit=first.oid)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as caught:
        api.create_commit("org/name", add(file=b"3"), commit_message="late", parent_commit=first.oid)
    assert caught.value.response.status_code == 412
    assert api.model_info("org/name").sha == second.oid

    for call, arguments in {
        "create_repo": {}, "create_tag": {"tag": "v1"}, "create_branch": {"branch": "dev"},
    }.items():  # fmt: skip
        getattr(api, call)("org/name", exist_ok=True, **arguments)
        with pytest.raises(HfHubHTTPError) as caught:
            getattr(api, call)("org/name", **arguments)
        assert caught.value.response.status_code == 409
    for card in (b"---\nlicense: [\n---\n", b"---\ntags: one\n---\n", b"---\nmodel-index:\n- name: x\n---\n"):
        with pytest.raises(ValueError, match="Invalid metadata in README.md"):
            api.create_commit("org/name", add(README__md=card), commit_message="card")
    api.create_commit("org/name", add(README__md=b"---\ntags: [one]\nlicense: mit\n---\n# Card"), commit_message="card")
    about = api.model_info("org/name", files_metadata=True)
    assert about.tags == ["one"] and about.card_data.license == "mit" and not about.private


def test_collections(server: hub_server.Hub, api: HfApi) -> None:
    api.create_repo("org/name")
    made = api.create_collection("A family", namespace="org", description="All of it")
    assert made.slug.startswith("org/a-family-") and not made.items
    assert api.create_collection("A family", namespace="org", exists_ok=True).slug == made.slug
    filled = api.add_collection_item(made.slug, "org/name", "model", note="the first")
    assert [(item.item_id, item.item_type, item.note) for item in filled.items] == [("org/name", "model", "the first")]
    api.add_collection_item(made.slug, "org/name", "model", exists_ok=True)
    with pytest.raises(HfHubHTTPError):
        api.add_collection_item(made.slug, "org/none", "model")
    api.update_collection_item(made.slug, filled.items[0].item_object_id, note="changed")
    assert api.update_collection_metadata(made.slug, title="Renamed").title == "Renamed"
    assert [(c.title, c.items[0].note) for c in api.list_collections(owner="org")] == [("Renamed", "changed")]
    for token in (False, hub_server.READ_TOKEN):
        with pytest.raises(HfHubHTTPError):
            api.delete_collection(made.slug, token=token)
    api.delete_collection_item(made.slug, filled.items[0].item_object_id)
    assert not api.get_collection(made.slug).items
    api.delete_collection(made.slug)
    assert not [*api.list_collections(owner="org")]


def test_too_many_requests_and_broken_servers(server: hub_server.Hub, api: HfApi, waits: list[float]) -> None:
    api.create_repo("org/name")
    server.fail("POST", "/preupload/", status=429, retry_after=7)
    server.fail("POST", "/objects/batch", status=503, times=2)
    api.create_commit("org/name", add(model__safetensors=WEIGHTS), commit_message="in the end")
    assert waits == [8, 1, 2]  # one second more than Retry-After says, then one and two of the client's own
    assert server.store.files("models", "org/name")["model.safetensors"] == WEIGHTS

    # A commit is asked for once: whether it was made is not known. What was uploaded before stays.
    more = WEIGHTS[::-1]
    server.fail("POST", "/commit/", status=500)
    uploads = len(server.asked("PUT", ""))
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_commit("org/name", add(model__safetensors=more), commit_message="again")
    assert caught.value.response.status_code == 500
    assert server.store.files("models", "org/name")["model.safetensors"] == WEIGHTS
    api.create_commit("org/name", add(model__safetensors=more), commit_message="again")
    assert len(server.asked("PUT", "")) == uploads + 1
    assert server.store.files("models", "org/name")["model.safetensors"] == more

    waits.clear()
    server.fail("POST", "/preupload/", status=429, times=6)
    with pytest.raises(HfHubHTTPError, match="429 Too Many Requests"):
        api.create_commit("org/name", add(new=b"x"), commit_message="never")
    assert waits == [1, 2, 4, 8, 8]


def test_an_upload_that_is_cut(server: hub_server.Hub, api: HfApi, waits: list[float]) -> None:
    api.create_repo("org/name")
    server.fail("PUT", "^/objects", cut=True)
    api.create_commit("org/name", add(model__safetensors=WEIGHTS), commit_message="at the second try")
    assert (
        len(server.asked("PUT", "")) == 2 and server.store.files("models", "org/name")["model.safetensors"] == WEIGHTS
    )

    # The network stays away: nothing is published, and the next call sends only what is missing.
    one, two = WEIGHTS[::-1], WEIGHTS[::2]
    operations = {"one__safetensors": one, "two__safetensors": two}
    api.preupload_lfs_files("org/name", add(one__safetensors=one), free_memory=False)
    server.fail("PUT", "^/objects", cut=True, times=6)
    before = api.model_info("org/name").sha
    with pytest.raises(RuntimeError, match=r"Error while uploading 'two\.safetensors'"):
        api.create_commit("org/name", add(**operations), commit_message="cut")
    assert api.model_info("org/name").sha == before
    server.requests.clear()
    api.create_commit("org/name", add(**operations), commit_message="resumed")
    assert len(server.asked("PUT", "")) == 1
    assert server.store.files("models", "org/name")["two.safetensors"] == two

    server.fail("POST", "/commit/", cut=True)
    with pytest.raises(Exception, match="[Dd]isconnected|reset by peer|[Bb]roken pipe"):
        api.create_commit("org/name", add(file=b"x" * 1000), commit_message="cut")
    assert "file" not in api.list_repo_files("org/name")


def test_a_download_that_is_cut_or_too_short(
    server: hub_server.Hub, api: HfApi, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # bytes; what is less than one is asked for again
    api.create_repo("org/name")
    api.create_commit("org/name", add(model__safetensors=WEIGHTS, vocab__txt=WEIGHTS[:5000]), commit_message="one")
    for name, address in {"model.safetensors": "^/objects", "vocab.txt": "/resolve/.*vocab.txt"}.items():
        server.requests.clear()
        server.fail("GET", address, cut=True)
        found = Path(api.hf_hub_download("org/name", name, cache_dir=tmp_path / "cut"))
        assert found.read_bytes() == server.store.files("models", "org/name")[name]
        assert [r.range for r in server.requests if r.method == "GET"] == [
            None,
            f"bytes={found.stat().st_size // 2 // 1000 * 1000}-",
        ]

        server.fail("GET", address, short=True)
        with pytest.raises(OSError, match="Consistency check failed: file should be of size"):
            api.hf_hub_download("org/name", name, cache_dir=tmp_path / "short")
        assert not [*(tmp_path / "short").rglob("*.incomplete")]
        found = Path(api.hf_hub_download("org/name", name, cache_dir=tmp_path / "short"))
        assert found.read_bytes() == server.store.files("models", "org/name")[name]


PROGRAM = """
import sys
sys.modules["hf_robustcse"] = None  # importing it fails
import json, numpy, torch
from datasets import load_dataset
from huggingface_hub import HfApi
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
bert, attacked, want, sentences = *sys.argv[1:4], json.loads(sys.argv[4])

# Ours, private, by sentence-transformers and transformers alone; another pooler was published after v1.0.
for revision in ("v1.0", "main"):
    model = SentenceTransformer("org/ours", revision=revision, device="cpu", trust_remote_code=False)
    error = numpy.abs(model.encode(sentences) - numpy.load(want)).max()
    assert (error <= 1e-6) == (revision == "v1.0"), (revision, error)
AutoModel.from_pretrained("org/ours", revision="v1.0")

# One of transformers' own, pushed twice.
model, tokenizer = AutoModel.from_pretrained(bert), AutoTokenizer.from_pretrained(bert)
model.push_to_hub("org/theirs", commit_message="one")
tokenizer.push_to_hub("org/theirs")
api = HfApi()
api.create_tag("org/theirs", tag="v1.0")
old = {name: value.clone() for name, value in model.state_dict().items()}
with torch.no_grad():
    for parameter in model.parameters():
        parameter += 1
model.push_to_hub("org/theirs", commit_message="two")
for revision, add in {"v1.0": 0, "main": 1}.items():
    loaded = AutoModel.from_pretrained("org/theirs", revision=revision).state_dict()
    assert all(torch.equal(loaded[name], old[name] + add) for name, _ in model.named_parameters())
assert AutoTokenizer.from_pretrained("org/theirs").get_vocab() == tokenizer.get_vocab()
assert [commit.title for commit in api.list_repo_commits("org/theirs")][::3] == ["two", "initial commit"]

# An attacked set, pushed by datasets, and its folder as it is.
rows = load_dataset(attacked, split="test")
rows.push_to_hub("org/advsts", split="test")
for name in ("org/advsts", "org/folder"):
    loaded = load_dataset(name, split="test", revision="main")
    assert loaded.to_list() == rows.to_list() and loaded.column_names == rows.column_names

# Ours, by us.
del sys.modules["hf_robustcse"]
from hf_robustcse.model import RobustCSEModel
model = RobustCSEModel.from_pretrained("org/ours", revision="v1.0")
assert numpy.abs(model.encode(sentences).numpy() - numpy.load(want)).max() <= 1e-6
"""


def test_transformers_and_sentence_transformers_and_datasets(
    server: hub_server.Hub, api: HfApi, bert: Path, tmp_path: Path
) -> None:
    model = RobustCSEModel.from_encoder(bert, method="vadv", pooler="first-last")
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "want.npy", model.eval().encode(SENTENCES).numpy())
    api.create_repo("org/ours", private=True)
    api.upload_folder(repo_id="org/ours", folder_path=tmp_path / "model")
    api.create_tag("org/ours", tag="v1.0")
    RobustCSEModel.from_encoder(bert, pooler="cls").save_pretrained(tmp_path / "another")
    api.upload_folder(repo_id="org/ours", folder_path=tmp_path / "another", delete_patterns="*")

    rows = [
        {"row": i, "sentence1": text, "perturbed_sentence1": text[::-1], "sentence2": text, "gold": i / 10}
        for i, text in enumerate(SENTENCES)
    ]
    save_attacked_set(rows, tmp_path / "attacked", about={"title": "AdvSTS", "recipe": "none"})
    api.create_repo("org/folder", repo_type="dataset")
    api.upload_folder(repo_id="org/folder", repo_type="dataset", folder_path=tmp_path / "attacked")

    env = server.env(tmp_path / "home", hub_server.WRITE_TOKEN)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    words = (bert, tmp_path / "attacked", tmp_path / "want.npy", json.dumps(SENTENCES))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "data/test-00000-of-00001.parquet" in server.store.files("datasets", "org/advsts")
    assert server.store.files("models", "org/theirs", "v1.0")["config.json"]
