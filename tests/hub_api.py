"""The addresses of the stand-in for the Hub (`hub_server`): one function for each, from the request to the answer."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from hub_store import KINDS, USER, Blob, Commit, HubError, Repository, Store, Token, card_errors


@dataclass
class Asked:
    """A request on its way to the function that answers it."""

    store: Store
    url: str  # of the Hub
    key: str  # that signs addresses of objects
    part_size: int  # bytes; larger objects are uploaded in parts
    token: Token | None
    query: dict[str, list[str]]
    headers: Any
    body: bytes
    groups: dict[str, str]  # of the route

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    def repository(self, *, write: bool = False) -> Repository:
        return self.store.repository(self.groups["kind"], self.groups["name"], self.token, write=write)


@dataclass
class Answer:
    """Status, body and headers; a body that is not bytes becomes JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


ROUTES: list[tuple[str, re.Pattern, Callable[[Asked], Answer]]] = []
REPO = r"/api/(?P<kind>models|datasets|spaces)/(?P<name>[^/]+/[^/]+)"
ONE_OR_TWO = r"(?P<name>[^/]+(?:/[^/]+)?)"  # some old repositories have no owner


def route(method: str, path: str) -> Callable:
    def add(function: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        ROUTES.append((method, re.compile(path), function))
        return function

    return add


# --- who, and repositories ---


@route("GET", "/api/whoami-v2")
def whoami(asked: Asked) -> Answer:
    if asked.token is None:
        raise HubError(401, "Invalid username or password.")
    return Answer(asked.token.whoami())


@route("GET", REPO + r"/auth-check(?P<write>/write)?")
def auth_check(asked: Asked) -> Answer:
    asked.repository(write=bool(asked.groups["write"]))
    return Answer({})


def is_private(wanted: dict[str, Any]) -> bool:
    return wanted.get("visibility") == "private" or bool(wanted.get("private"))  # of the client since 2.0, and before


@route("POST", "/api/repos/create")
def create(asked: Asked) -> Answer:
    kind, name, namespace = KINDS[asked.json.get("type", "model")], asked.json["name"], asked.json.get("organization")
    namespace = namespace or USER
    asked.store.authorise(asked.token, namespace, f"create a {kind.removesuffix('s')}")
    name = f"{namespace}/{name}"
    url = f"{asked.url}/{'' if kind == 'models' else kind + '/'}{name}"
    try:
        asked.store.create(kind, name, private=is_private(asked.json))
    except HubError as error:
        if error.status == 409:
            error.extra = {"url": url}
        raise
    return Answer({"url": url, "name": name, "id": name})


@route("DELETE", "/api/repos/delete")
def delete(asked: Asked) -> Answer:
    kind, owner = KINDS[asked.json.get("type", "model")], asked.json.get("organization") or USER
    name = f"{owner}/{asked.json['name']}"
    asked.store.repository(kind, name, asked.token, write=True)
    del asked.store.repositories[kind, name]
    return Answer({})


@route("PUT", REPO + "/settings")
def settings(asked: Asked) -> Answer:
    repository = asked.repository(write=True)
    if "visibility" in asked.json or "private" in asked.json:
        repository.private = is_private(asked.json)
    repository.gated = asked.json.get("gated", repository.gated)
    return Answer({"private": repository.private, "gated": repository.gated})


@route("GET", "/api/(?P<kind>models|datasets|spaces)")
def listing(asked: Asked) -> Answer:
    owner, word = (asked.query.get(name, [""])[0] for name in ("author", "search"))
    found = []
    for kind, name in asked.store.repositories:
        if kind == asked.groups["kind"] and word in name and name.startswith(f"{owner}/" if owner else ""):
            try:
                repository = asked.store.repository(kind, name, asked.token)
            except HubError:
                continue  # private
            found.append(repository.about(repository.resolve("main")))
    return Answer(found)


@route("GET", f"/api/(?P<kind>models|datasets|spaces)/{ONE_OR_TWO}(?:/revision/(?P<revision>[^/]+))?")
def about(asked: Asked) -> Answer:
    repository = asked.repository()
    return Answer(repository.about(repository.resolve(asked.groups["revision"] or "main")))


@route("POST", "/api/validate-yaml")
def validate(asked: Asked) -> Answer:
    text = asked.json["content"]
    if errors := card_errors(text, asked.json["repoType"]):
        raise HubError(400, "Invalid metadata", errors=[{"message": line} for line in errors], warnings=[])
    warnings = [] if text.lstrip().startswith("---") else [{"message": "empty or missing yaml metadata in repo card"}]
    return Answer({"errors": [], "warnings": warnings})


# --- reading ---


@route("GET", REPO + r"/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
def tree(asked: Asked) -> Answer:
    commit = asked.repository().resolve(asked.groups["revision"])
    folder = (asked.groups["path"] or "").strip("/")
    return Answer(commit.tree(folder, recursive=asked.flag("recursive"), expand=asked.flag("expand")))


@route("POST", REPO + r"/paths-info/(?P<revision>[^/]+)")
def paths_info(asked: Asked) -> Answer:
    form = parse_qs(asked.body.decode())
    paths = [path.strip("/") for path in form.get("paths", [])]
    commit = asked.repository().resolve(asked.groups["revision"])
    return Answer(commit.entries(paths, expand=form.get("expand", [""])[0].lower() == "true"))


@route("GET", f"/(?:(?P<kind>datasets|spaces)/)?{ONE_OR_TWO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
def resolve(asked: Asked) -> Answer:
    asked.groups["kind"] = asked.groups["kind"] or "models"
    commit = asked.repository().resolve(asked.groups["revision"])
    headers = {"X-Repo-Commit": commit.id}
    blob = commit.files.get(asked.groups["path"])
    if blob is None:
        return Answer({"error": "Entry not found"}, 404, headers | {"X-Error-Code": "EntryNotFound"})
    if not blob.lfs:
        return part_of(blob.content, asked, headers | {"ETag": f'"{blob.oid}"'})
    # Another host, as with the Hub, so that no token goes there.
    where = asked.url.replace("127.0.0.1", "localhost") + f"/objects/{blob.sha256}?key={asked.key}"
    headers |= {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"', "Location": where}
    return Answer(b"", 302, headers)


@route("GET", "/objects/(?P<oid>[0-9a-f]{64})")
def download(asked: Asked) -> Answer:
    if asked.query.get("key") != [asked.key] or asked.groups["oid"] not in asked.store.objects:
        raise HubError(403, "AccessDenied")
    oid = asked.groups["oid"]
    return part_of(asked.store.objects[oid], asked, {"ETag": f'"{oid}"'})


def part_of(content: bytes, asked: Asked, headers: dict[str, str]) -> Answer:
    """The content, or the range of it that was asked for."""
    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    wanted = re.fullmatch(r"bytes=(?!-$)(\d*)-(\d*)", asked.headers.get("Range") or "")
    if not wanted:
        return Answer(content, 200, headers)
    first, last = wanted[1], wanted[2]
    start = int(first) if first else max(0, len(content) - int(last))
    stop = min(int(last) + 1, len(content)) if first and last else len(content)
    if start >= stop:
        return Answer(b"", 416, headers | {"Content-Range": f"bytes */{len(content)}"})
    return Answer(content[start:stop], 206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})


# --- publishing ---


@route("POST", REPO + r"/preupload/(?P<revision>[^/]+)")
def preupload(asked: Asked) -> Answer:
    repository = asked.repository(write=True)
    commit = repository.resolve(asked.groups["revision"])
    files = []
    for file in asked.json["files"]:
        path = file["path"]
        mode = "lfs" if repository.wants_lfs(commit, path, file["size"]) else "regular"
        there = commit.files.get(path)
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": there and there.etag})
    return Answer({"files": files})


@route("POST", r"/(?:(?P<kind>datasets|spaces)/)?(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
def lfs_batch(asked: Asked) -> Answer:
    asked.groups["kind"] = asked.groups["kind"] or "models"
    asked.repository(write=True)
    objects = []
    for item in asked.json["objects"]:
        oid, size = item["oid"], item["size"]
        answer = {"oid": oid, "size": size}
        if oid not in asked.store.objects:
            asked.store.announced[oid] = size
            href, header = f"{asked.url}/objects/{oid}?key={asked.key}", {}
            if size > asked.part_size:
                header = {"chunk_size": str(asked.part_size)}
                header |= {str(i + 1): f"{href}&part={i + 1}" for i in range(-(-size // asked.part_size))}
            verify = {"href": f"{asked.url}/objects/{oid}/verify"}
            answer["actions"] = {"upload": {"href": href, "header": header}, "verify": verify}
        objects.append(answer)
    return Answer({"transfer": "basic", "objects": objects})


@route("PUT", "/objects/(?P<oid>[0-9a-f]{64})")
def upload(asked: Asked) -> Answer:
    oid = asked.groups["oid"]
    if asked.query.get("key") != [asked.key] or oid not in asked.store.announced:
        raise HubError(403, "AccessDenied")
    if "part" in asked.query:
        asked.store.parts.setdefault(oid, {})[int(asked.query["part"][0])] = asked.body
    else:
        asked.store.upload(oid, asked.body)
    return Answer(headers={"ETag": f'"{hashlib.md5(asked.body).hexdigest()}"'})


@route("POST", "/objects/(?P<oid>[0-9a-f]{64})")
def complete(asked: Asked) -> Answer:
    parts = asked.store.parts.get(asked.groups["oid"], {})
    content = b"".join(parts[part["partNumber"]] for part in asked.json["parts"])
    asked.store.upload(asked.groups["oid"], content)
    return Answer({})


@route("POST", "/objects/(?P<oid>[0-9a-f]{64})/verify")
def verify(asked: Asked) -> Answer:
    if len(asked.store.objects.get(asked.groups["oid"], b"")) != asked.json["size"]:
        raise HubError(404, "The object was not uploaded")
    return Answer({})


@route("POST", REPO + r"/commit/(?P<revision>[^/]+)")
def commit(asked: Asked) -> Answer:
    repository = asked.repository(write=True)
    branch = asked.groups["revision"]
    if asked.flag("create_pr"):
        raise HubError(400, "Pull requests are not made here")
    before = repository.resolve(branch)
    if branch not in repository.branches:
        raise HubError(400, f"{branch} is not a branch")
    lines = [json.loads(line) for line in asked.body.splitlines() if line.strip()]
    header = lines[0]["value"]
    if header.get("parentCommit") not in (None, before.id):
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    files = changed(before, lines[1:], asked.store)
    made = repository.commit(branch, files, header["summary"], header.get("description", ""))
    kind = "" if repository.kind == "models" else f"{repository.kind}/"
    where = f"{asked.url}/{kind}{repository.name}/commit/{made.id}"
    return Answer({"success": True, "commitOid": made.id, "commitUrl": where, "hookOutput": ""})


def changed(before: Commit, operations: list[dict[str, Any]], store: Store) -> dict[str, Blob]:
    """The files after the operations of a commit."""
    files = dict(before.files)
    for operation in operations:
        key, value = operation["key"], operation["value"]
        path = value["path"].strip("/")
        if any(part in ("", ".", "..", ".git") for part in path.split("/")):
            raise HubError(400, f"Invalid path {path!r}")
        if key == "file":
            files[path] = Blob(base64.b64decode(value["content"], validate=True))
        elif key == "lfsFile":
            if value["oid"] not in store.objects:
                raise HubError(400, f"The object of {path} was not uploaded")
            files[path] = Blob(store.objects[value["oid"]], lfs=True)
        else:
            gone = [name for name in files if name == path or (key == "deletedFolder" and name.startswith(f"{path}/"))]
            if not gone:
                raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
            for name in gone:
                del files[name]
    return files


# --- revisions ---


@route("GET", REPO + "/refs")
def refs(asked: Asked) -> Answer:
    repository = asked.repository()

    def described(kind: str, names: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": id} for name, id in names.items()]

    return Answer(
        {"branches": described("heads", repository.branches), "tags": described("tags", repository.tags),
         "converts": [], "pullRequests": []}
    )  # fmt: skip


@route("GET", REPO + r"/commits/(?P<revision>[^/]+)")
def commits(asked: Asked) -> Answer:
    history = asked.repository().resolve(asked.groups["revision"]).history()
    return Answer(
        [{"id": c.id, "title": c.title, "message": c.message, "authors": [{"user": USER}], "date": c.date}
         for c in history]
    )  # fmt: skip


@route("POST", REPO + r"/(?P<what>branch|tag)/(?P<revision>[^/]+)")
def add_reference(asked: Asked) -> Answer:
    """A branch is named by the address and starts at what the body says; with a tag it is the other way round."""
    repository = asked.repository(write=True)
    if asked.groups["what"] == "branch":
        known, name, start = repository.branches, asked.groups["revision"], asked.json.get("startingPoint", "main")
    else:
        known, name, start = repository.tags, asked.json["tag"], asked.groups["revision"]
    if name in known:
        raise HubError(409, f"The {asked.groups['what']} {name} exists already")
    known[name] = repository.resolve(start).id
    return Answer({}, 201)


@route("DELETE", REPO + r"/(?P<what>branch|tag)/(?P<revision>[^/]+)")
def remove_reference(asked: Asked) -> Answer:
    repository = asked.repository(write=True)
    known = repository.branches if asked.groups["what"] == "branch" else repository.tags
    if asked.groups["revision"] == "main" or asked.groups["revision"] not in known:
        raise HubError(404, f"{asked.groups['revision']} cannot be deleted", "RevisionNotFound")
    del known[asked.groups["revision"]]
    return Answer({})


# --- collections ---

COLLECTION = r"/api/collections/(?P<slug>[^/]+/[^/]+)"


def collection_of(asked: Asked, *, write: bool = False) -> dict[str, Any]:
    slug = asked.groups["slug"]
    found = asked.store.collections.get(slug)
    if found is None or (found["private"] and asked.token is None):
        raise HubError(404, "Collection not found")
    if write:
        asked.store.authorise(asked.token, slug.split("/")[0], "change this collection")
    return found


@route("GET", "/api/collections")
def list_collections(asked: Asked) -> Answer:
    owner = asked.query.get("owner", [None])[0]
    known = asked.store.collections.values()
    # The position is the client's own to say where the collection stands in this list.
    return Answer(
        [{k: v for k, v in c.items() if k != "position"} for c in known
         if owner in (None, c["owner"]["name"]) and (asked.token or not c["private"])]
    )  # fmt: skip


@route("POST", "/api/collections")
def create_collection(asked: Asked) -> Answer:
    title, namespace = asked.json["title"], asked.json["namespace"]
    asked.store.authorise(asked.token, namespace, "create a collection")
    if len(asked.json.get("description", "")) > 150 or not 0 < len(title) < 60:
        raise HubError(400, "The title has up to 59 characters, the description up to 150")
    for slug, other in asked.store.collections.items():
        if (other["owner"]["name"], other["title"]) == (namespace, title):
            raise HubError(409, "This collection exists already", slug=slug)
    slug = f"{namespace}/{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}-{secrets.token_hex(12)}"
    asked.store.collections[slug] = made = {
        "slug": slug, "title": title, "owner": {"name": namespace, "type": "org"}, "items": [], "position": 0,
        "lastUpdated": "2026-01-01T00:00:00.000Z", "private": bool(asked.json.get("private")), "theme": "blue",
        "upvotes": 0, "description": asked.json.get("description"),
    }  # fmt: skip
    return Answer(made)


@route("GET", COLLECTION)
def get_collection(asked: Asked) -> Answer:
    return Answer(collection_of(asked))


@route("PATCH", COLLECTION)
def update_collection(asked: Asked) -> Answer:
    found = collection_of(asked, write=True)
    found |= {key: asked.json[key] for key in ("title", "description", "private", "theme") if key in asked.json}
    return Answer({"success": True, "data": found})


@route("DELETE", COLLECTION)
def delete_collection(asked: Asked) -> Answer:
    collection_of(asked, write=True)
    del asked.store.collections[asked.groups["slug"]]
    return Answer({})


@route("POST", COLLECTION + "/items")
def add_item(asked: Asked) -> Answer:
    found = collection_of(asked, write=True)
    item = asked.json["item"]
    if item["type"] in KINDS:
        asked.store.repository(KINDS[item["type"]], item["id"], asked.token)
    if any((known["id"], known["type"]) == (item["id"], item["type"]) for known in found["items"]):
        raise HubError(409, "This item is in the collection already")
    note = {"note": {"text": asked.json["note"], "html": ""}} if "note" in asked.json else {}
    found["items"].append({"_id": secrets.token_hex(12), **item, "position": len(found["items"]), **note})
    return Answer(found)


@route("PATCH", COLLECTION + "/items/(?P<item>[^/]+)")
@route("DELETE", COLLECTION + "/items/(?P<item>[^/]+)")
def change_item(asked: Asked) -> Answer:
    items = collection_of(asked, write=True)["items"]
    (item,) = [item for item in items if item["_id"] == asked.groups["item"]] or [None]
    if item is None:
        raise HubError(404, "Item not found")
    if asked.body:
        if "note" in asked.json:
            item["note"] = {"text": asked.json["note"], "html": ""}
        item["position"] = asked.json.get("position", item["position"])
    else:
        items.remove(item)
    return Answer({})
