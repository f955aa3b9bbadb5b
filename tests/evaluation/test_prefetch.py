"""`hf-robustcse prefetch` against a stand-in for the Hub, and what works without a network afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import hub_server
import pytest

from hf_robustcse import cli
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts, transfer
from hf_robustcse.evaluation.hub import HubLines, MissingData
from hf_robustcse.files import sha256_file

ROOT = Path(__file__).resolve().parents[2]
WORDS = "tree house river cloud stone bird lamp chair horse apple train road door glass paper song".split()
NEGATIVE, POSITIVE = "bad", "good"

# Whatever is neither loopback nor a local socket is a test failure, in every process that Python starts.
GUARD = """
import socket

def guard(function):
    def guarded(*arguments, **options):
        host = arguments[1][0] if function.__name__ == "connect" and arguments[0].family != socket.AF_UNIX else (
            arguments[0] if function.__name__ == "getaddrinfo" else "localhost")
        if host not in (None, "localhost", "127.0.0.1", "::1", socket.gethostname()):
            raise RuntimeError(f"the network was used: {host}")
        return function(*arguments, **options)
    return guarded

socket.getaddrinfo = guard(socket.getaddrinfo)
socket.socket.connect = guard(socket.socket.connect)
"""


def sentence(number: int) -> str:
    return " ".join(WORDS[number // len(WORDS) ** place % len(WORDS)] for place in range(4)) + f" {number}"


def pairs(n: int, start: int = 0) -> list[dict]:
    return [
        {"sentence1": sentence(start + i), "sentence2": sentence(start + 7 * i + 1), "score": 1 + i % 13 / 3}
        for i in range(n)
    ]


def without_source(record: dict) -> dict:
    """A record but for where its rows are from, which is also said of the probes."""
    parts = {name: without_source(value) if isinstance(value, dict) else value for name, value in record.items()}
    return parts | {"source": None}


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def fill(root: Path, *, phrases: bool) -> None:
    """Every repository that the tables of STS and transfer name first for a split, with as many rows as theirs."""
    for task in sts.TASKS.values():
        for place, (split, n) in enumerate(task.rows.items() if task.hub else ()):
            (part,) = task.hub[0].splits[split]
            write_jsonl(root / "datasets" / task.hub[0].name / f"{part}.jsonl", pairs(n, 20000 * place))
    for task in transfer.TASKS.values():
        for source in task.hub:
            if "rahulsikder" in source.name:
                continue
            folder = root / "datasets" / source.name
            folder.mkdir(parents=True, exist_ok=True)
            for place, (file, parts) in enumerate(source.splits.items()):
                n = max(task.rows[file]) if phrases or file != "train_phrases" else 10
                labels = [i % task.classes for i in range(n)]
                texts = [
                    f"{POSITIVE if label else NEGATIVE} {sentence(20000 * place + i)}" for i, label in enumerate(labels)
                ]
                if isinstance(source, HubLines):
                    for label, name in enumerate(parts):
                        lines = [text for text, other in zip(texts, labels, strict=True) if other == label]
                        if label == 1 and task.name == "CR":
                            lines = [*lines[:-4], "", " ", "", ""]  # as in the real one
                        path = folder / name
                        path.parent.mkdir(exist_ok=True)
                        path.write_bytes(
                            "".join(f"{line} caf\xe9 \n" if line.strip() else "\n" for line in lines).encode("latin-1")
                        )
                    if source.archive:
                        with tarfile.open(folder / source.archive, "w") as archive:
                            for name in parts:
                                archive.add(folder / name, f"./{name}")
                    continue
                columns = {name: source.columns.get(name, name) for name in task.header}
                rows = [
                    {columns["label"]: label, **{columns[name]: f"{name} {text}" for name in task.header[1:]}}
                    for label, text in zip(labels, texts, strict=True)
                ]
                step = -(-n // len(parts))
                for number, part in enumerate(parts):
                    write_jsonl(folder / f"{part}.jsonl", rows[number * step : (number + 1) * step])


@pytest.fixture
def server(tmp_path: Path, bert: Path) -> Iterator[ThreadingHTTPServer]:
    root = tmp_path / "hub"
    fill(root, phrases=False)
    shutil.copytree(bert, root / "models" / "org" / "tiny")
    (root / "models" / "org" / "tiny" / "tf_model.h5").write_bytes(b"of another framework")
    with hub_server.hub(root) as running:
        yield running


def start(*words: str | Path, home: Path, server: ThreadingHTTPServer | None = None) -> subprocess.CompletedProcess:
    """Run Python with that server as the Hub, or offline with every other address blocked."""
    home.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "TOKENIZERS_PARALLELISM": "0",
    }
    path = [str(ROOT)]
    if server is None:
        environment["HF_HUB_OFFLINE"] = "1"
        (home / "sitecustomize.py").write_text(GUARD)
        path.append(str(home))
    else:
        environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    environment["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=900, cwd=home
    )


COMMAND = ("-c", "import sys; from hf_robustcse.cli import main; main(sys.argv[1:])", "prefetch")


@pytest.mark.slow
def test_fetch_resume_and_evaluate_without_a_network(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    words = (*COMMAND, "--tasks", "STSB_dev", "sts13", "CR", "MPQA", "trec", "--model", "org/tiny", "--to", data)
    archive = server.root / "datasets" / "princeton-nlp" / "datasets-for-simcse"
    shutil.move(archive, tmp_path / "elsewhere")
    done = start(*words, home=home, server=server)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "[1/6] STS13", "[2/6] stsb_dev", "[3/6] CR", "[4/6] MPQA", "[5/6] TREC", "[6/6] org/tiny",
    ]  # fmt: skip
    assert "FAILED: MPQA all cannot be had from the Hub (princeton-nlp/datasets-for-simcse senteval.tar" in lines[3]
    assert (
        "rahulsikder223/SentEval-MPQA cannot be loaded" in lines[3] and "FAILED" not in lines[0] + lines[4] + lines[5]
    )
    assert "1 of 6 not fetched: MPQA" in done.stderr.splitlines()[-1] and f"--to {data}" in done.stderr.splitlines()[-1]

    shutil.move(tmp_path / "elsewhere", archive)
    server.requests.clear()
    done = start(*words, home=tmp_path / "another", server=server)
    assert done.returncode == 0, done.stderr
    asked = {re.sub("^(/api)?/(datasets/)?", "", request.path) for request in server.requests}
    assert not [
        path for path in asked if path.startswith(("mteb", "SetFit", "org", "models"))
    ]  # what was there is kept
    assert done.stdout.count("passes its checks") == 4 and "MPQA: from hub:princeton-nlp" in done.stdout
    assert (
        f"run_eval.py --model_name_or_path {data}/models/org/tiny" in done.stdout
        and f"--data_dir {data}" in done.stdout
    )

    manifest = json.loads((data / "MANIFEST.json").read_text(encoding="utf-8"))
    files = {path.relative_to(data).as_posix() for path in data.rglob("*.tsv")}
    assert files == {*manifest["files"]} == {
        "sts/STS13/all.tsv", "sts/STSB/dev.tsv", "transfer/CR/all.tsv", "transfer/MPQA/all.tsv",
        "transfer/TREC/train.tsv", "transfer/TREC/test.tsv",
    }  # fmt: skip
    for path, record in manifest["files"].items():
        assert record["sha256"] == sha256_file(data / path) and record["source"].startswith("hub:")
        assert record["rows"] == len((data / path).read_text(encoding="utf-8").splitlines()) - 1
    assert manifest["files"]["sts/STS13/all.tsv"]["source"] == "hub:" + "@".join(
        (sts.TASKS["STS13"].hub[0].name, sts.TASKS["STS13"].hub[0].revision)
    )
    assert (
        manifest["files"]["transfer/TREC/test.tsv"]["source"] == f"hub:SetFit/TREC-QC@{hub_server.HEAD}"
    )  # not pinned
    assert manifest["models"]["org/tiny"]["revision"] == hub_server.HEAD
    assert (data / "models/org/tiny/config.json").is_file() and not (data / "models/org/tiny/tf_model.h5").exists()

    # The Hub and the folder hold the same rows.
    code = "from hf_robustcse.evaluation import sts, transfer\n"
    code += "for n in ('STS13', 'stsb_dev'): print(sts.load_sts(n, None).sha256)\n"
    code += "for n in ('CR', 'MPQA', 'TREC'): print(transfer.load_transfer(n, None).sha256)"
    expected = [sts.load_sts(name, data).sha256 for name in ("STS13", "stsb_dev")]
    expected += [transfer.load_transfer(name, data).sha256 for name in ("CR", "MPQA", "TREC")]
    assert start("-c", code, home=home, server=server).stdout.split() == expected
    assert not sts.load_sts("STS13", data).subsets_known
    assert transfer.load_transfer("CR", data).splits["all"][0] == (0, (f"{NEGATIVE} {sentence(0)} café",))

    # Without a network: evaluation and training from the folder.
    out = tmp_path / "out.json"
    script = ROOT / "examples" / "run_eval.py"
    model = ("--model_name_or_path", data / "models" / "org" / "tiny", "--pooling", "cls")
    done = start(
        script, *model, "--tasks", "STS13", "geometry", "--data_dir", data, "--output_json", out, home=tmp_path / "off"
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text(encoding="utf-8"))
    assert results["tasks"]["STS13"]["sha256"] == expected[0] and results["tasks"]["STS13"]["spearman_mean"] is None
    assert "tokenised" in results["protocol"]["text"]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{sentence(i)}\n" for i in range(64)), encoding="utf-8")
    options = ("--max_steps", "2", "--per_device_train_batch_size", "8", "--use_cpu", "--max_train_samples", "64")
    done = start(
        ROOT / "examples" / "run_unsup.py", "--method", "simcse", "--train_file", corpus, "--eval_data_dir", data,
        "--output_dir", tmp_path / "run", *options, home=tmp_path / "off",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").is_file()
    done = start(script, *model, "--tasks", "sts", home=tmp_path / "off")
    assert done.returncode == 2 and "network was used" not in done.stderr
    assert "hf-robustcse prefetch --tasks sts --to DIR" in done.stderr and "--data_dir DIR" in done.stderr


def test_what_was_fetched_and_changed_is_refused_and_fetched_again(
    tmp_path: Path, write_tsv: Callable, pairs: list, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    many = (pairs * 13)[:1500]
    rows = [{"sentence1": first, "sentence2": second, "score": score} for first, second, score in many]
    import datasets

    loads = []

    def load_dataset(name: str, split: str, revision: str) -> datasets.Dataset:
        loads.append(name)
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    words = ["prefetch", "--tasks", "STS13", "--to", str(tmp_path / "data")]
    cli.main(words)
    file = tmp_path / "data" / "sts" / "STS13" / "all.tsv"
    first = file.read_bytes()
    file.write_bytes(first.replace(b"\n0.5\t", b"\n4.5\t", 1))
    with pytest.raises(
        UserError, match="all.tsv is not as hf-robustcse prefetch wrote it .*delete it and fetch it again"
    ):
        sts.load_sts("STS13", tmp_path / "data")
    for broken in (file.read_bytes(), first[:-200], b""):
        file.write_bytes(broken)
        cli.main(words)
        assert file.read_bytes() == first
    assert len(loads) == 4
    # A file of the user's own stays, right or wrong.
    (tmp_path / "data" / "MANIFEST.json").unlink()
    file.write_bytes(first[:-200])
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 1 and file.read_bytes() == first[:-200]
    printed = capsys.readouterr()
    assert "STS13: FAILED" in printed.out and "a file is cut off" in printed.out and "move it away" in printed.out
    assert "1 of 1 not fetched" in printed.err
    (tmp_path / "data" / "MANIFEST.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2 and "MANIFEST.json is damaged: delete it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "x"], "nothing to fetch: add --tasks sts transfer"),
        (["--tasks", "stsx", "--to", "x"], "unknown task 'stsx'; known: sts (STS12"),
        (["--tasks", "sts"], "--to"),
        (["--tasks", "sts", "--to", "FILE"], "is a file: name a folder"),
        (["--tasks", "sts", "--to", "FILE/x"], "cannot be made"),
    ],
)
def test_refusals(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "FILE").write_text("")
    words = [str(tmp_path / word) if word.startswith(("x", "FILE")) else word for word in words]
    with pytest.raises(SystemExit) as caught:
        cli.main(["prefetch", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and line.startswith("error: ") and message in line
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_everything_is_the_same_from_the_hub_and_without_a_network(tmp_path: Path, bert: Path) -> None:
    root = tmp_path / "hub"
    fill(root, phrases=True)
    data, home = tmp_path / "data", tmp_path / "home"
    script = ROOT / "examples" / "run_eval.py"
    shared = (
        script,
        "--model_name_or_path",
        bert,
        "--pooling",
        "cls",
        "--strict",
        "--output_json",
        tmp_path / "out.json",
    )
    code = "import sys, json; from pathlib import Path; from hf_robustcse.evaluation import sts, transfer\n"
    code += (
        "where = Path(sys.argv[1]) if sys.argv[1:] else None; sets = sts.prefetch_sets() | transfer.prefetch_sets()\n"
    )
    code += "print(json.dumps({name: load(where).sha256 for name, load in sets.items()}))"

    def evaluate(*words: str | Path, **where: object) -> dict:
        done = start(*shared, *words, **where)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))

    # The same tasks in both: other sentences make other batches, whose padding moves the last bits of an embedding.
    tasks = ("--tasks", "sts", "geometry", "MRPC", "TREC")
    with hub_server.hub(root) as server:
        done = start(*COMMAND, "--tasks", "sts", "transfer", "--to", data, home=home, server=server)
        assert done.returncode == 0, done.stdout + done.stderr
        hashes = start("-c", code, home=home, server=server)
        online = evaluate(*tasks, home=home, server=server)
    assert json.loads(hashes.stdout) == json.loads(start("-c", code, data, home=tmp_path / "off").stdout)
    offline = evaluate(*tasks, "--data_dir", data, home=tmp_path / "off")
    assert offline["averages"] == online["averages"] and offline["averages"]["sts"] is not None
    assert list(offline["tasks"]) == list(online["tasks"])
    for name, record in online["tasks"].items():
        assert without_source(record) == without_source(offline["tasks"][name]), name


def test_missing_data_keep_their_reason_apart() -> None:
    error = MissingData("what", "how")
    assert str(error) == "what: how" and error.reason == "what"
