"""The report: what is read, what may share a column, what is best, what is missing, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.methods import METHODS
from hf_robustcse.report import run
from hf_robustcse.report.read import Column, collect

ROOT = Path(__file__).parents[2]
STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
EVIL = "a|b<script>alert('x')</script>**c**\x1b[31m\u202e"


def result(model: str = "my-model", tasks: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What run_eval writes."""
    return {
        "model": model, "revision": None, "method": None, "library_versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": "cpu", "seed": 0, "command": f"run_eval.py --model_name_or_path {model} --tasks sts",
        "protocol": {
            "text": "raw, cased", "aggregation": "all", "metric": "Spearman of cosine similarity x 100",
            "pooling": "cls", "max_seq_length": 128, "dtype": "float32",
        },
        "tasks": tasks if tasks is not None else {"STSB": sts(70.0)},
        "averages": {"sts": None, "transfer": None, "transfer_6": None}, "missing": [],
    } | changes  # fmt: skip


def sts(score: float, split: str = "test", sha256: str = "a" * 64, **more: Any) -> dict[str, Any]:
    return {"spearman": score, "n": 100, "split": split, "source": "data", "sha256": sha256, **more}


def save(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


class Page(HTMLParser):
    """The cells of the first table, and the links of the whole page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.best: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.alts: list[str | None] = []
        self.scopes: list[str | None] = []
        self.text = ""
        self._cell = self._table = self._strong = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href", "srcset", "action", "data") if name in given]
        if tag == "img":
            self.alts.append(given.get("alt"))
        if tag == "th":
            self.scopes.append(given.get("scope"))
        if tag == "table":
            self._table += 1
        elif tag == "tr" and self._table == 1:
            self.rows.append([])
        elif tag in ("th", "td") and self._table == 1:
            self.rows[-1].append("")
            self._cell = 1
        self._strong += tag == "strong"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._cell = 0
        self._strong -= tag == "strong"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self.rows[-1][-1] += data
            if self._strong:
                self.best.append(data)


def report(tmp_path: Path, *paths: Path, **options: Any) -> tuple[str, list[list[str]], Page]:
    """Markdown, CSV rows and page of a report."""
    made = run(list(paths), tmp_path / "report", **options)
    rows = list(csv.reader(io.StringIO(made["csv"].read_text(encoding="utf-8"))))
    return made["md"].read_text(encoding="utf-8"), rows, Page(made["html"].read_text(encoding="utf-8"))


def test_columns_follow_the_canonical_order_and_never_mix_splits(tmp_path):
    scores = {task: sts(60.0 + number) for number, task in enumerate(reversed(STS))}
    scores |= {"stsb_dev": sts(80.0, "dev", "b" * 64), "sickr_dev": sts(75.0, "dev", "c" * 64)}
    record = {"accuracy": 81.0, "dev_accuracy": 82.0, "folds": 10, "penalty": [0.1], "n": 9, "split": "all", "seed": 0}
    scores |= {task: record | {"sha256": task} for task in ("MRPC", "SST2", "MPQA", "SUBJ", "CR", "MR", "TREC")}
    scores["geometry"] = {
        "alignment": 0.2,
        "uniformity": -2.5,
        "set": "stsb_dev",
        "split": "dev",
        "n": 4,
        "sha256": "d",
    }
    scores["ANLI_R1"] = {"accuracy": 50.0, "n": 10, "split": "test", "robust": {"accuracy": 40.0}, "invariance": 91.5}
    attacks = {"MR": {"pwws": {"attempted": 90, "skipped": 10, "success_rate": 45.0, "accuracy_after": 49.5}}}
    _, rows, page = report(tmp_path, save(tmp_path / "a.json", result(tasks=scores, attacks=attacks)))
    assert page.rows[1] == [
        *(f"{task} (test)" for task in ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")),
        "average of 7 (test)", "STS-B (dev)", "SICK-R (dev)",
        *(f"{task} (cross-validation)" for task in ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")),
        "average of 7", "average of 6, without TREC", "alignment", "uniformity", "ANLI_R1 (test) accuracy",
        "ANLI_R1 (test) accuracy", "ANLI_R1 (test) invariance", "MR, pwws success rate", "MR, pwws accuracy after",
    ]  # fmt: skip
    groups = page.rows[0][4:]
    assert groups[:3] == ["STS, test, Spearman x 100, all", "STS, dev, Spearman x 100, all", "transfer, accuracy x 100"]
    assert groups[3:] == [
        "geometry, STS-B dev", "fine-tuning, normal set", "fine-tuning, robust set", "fine-tuning, invariance",
        "attacks",
    ]  # fmt: skip
    assert page.rows[2][4:14] == ["66.00", "65.00", "64.00", "63.00", "62.00", "61.00", "60.00", "63.00", "80.00",
                                  "75.00"]  # fmt: skip
    assert len(rows[0]) == len(rows[1]) == 5 + 3 * len(page.rows[1]) and page.rows[2][-5:] == [
        "50.00",
        "40.00",
        "91.50",
        "45.00",
        "49.50",
    ]


def test_an_average_only_when_complete(tmp_path):
    six = {task: sts(60.0) for task in STS if task != "STS14"}
    missing = [{"task": "STS14", "reason": "STS14 test is not under data"}]
    # The file claims an average that its tasks do not make: it is not believed.
    claims = {"sts": 99.0, "transfer": None}
    path = save(tmp_path / "six.json", result(tasks=six, missing=missing, averages=claims))
    text, _, page = report(tmp_path, path)
    assert not any("average" in head for head in page.rows[1]) and "99.00" not in text
    assert "STS14 test is not under data" in text and "No STS average" in text
    seven = save(tmp_path / "seven.json", result("other", {task: sts(70.0) for task in STS}))
    text, _, page = report(tmp_path, path, seven)
    place = page.rows[1].index("average of 7 (test)") + 4
    assert [row[place] for row in page.rows[2:]] == ["-", "70.00"]
    assert "average of 7 (test, all): not formed without STS14" in text


def test_one_model_in_several_files_is_one_row_and_a_contradiction_two(tmp_path):
    first = save(tmp_path / "a.json", result(tasks={"STSB": sts(70.0)}))
    second = save(tmp_path / "b.json", result(tasks={"SICKR": sts(60.0), "STSB": sts(70.0)}, seed=4))
    found = collect([first, second])
    (row,) = found.rows
    assert len(row.scores) == 2 and row.evaluated == (0, 4) and row.sources == [0, 1]
    save(second, result(tasks={"STSB": sts(71.0)}))
    assert len(collect([first, second]).rows) == 2


def test_seeds_are_mean_and_deviation_never_best(tmp_path, capsys):
    scores = (70.0, 72.0, 77.0)
    for seed, score in enumerate(scores):
        model = f"runs/vadv/seed-{seed}"
        save(tmp_path / f"{seed}.json", result(model, {task: sts(score) for task in STS}, method="vadv"))
    text, rows, page = report(tmp_path, tmp_path)
    shown = f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f} (3)"
    assert page.rows[2][:4] == ["runs/vadv", "vadv", "cls", "0 1 2 (n = 3)"] and page.rows[2][4:12] == [shown] * 8
    assert shown in text and "77.00" not in text and len(page.rows) == 3
    assert float(rows[1][5]) == statistics.fmean(scores) and float(rows[1][6]) == statistics.stdev(scores)


def test_trainings_that_differ_in_the_seed_only_are_seeds_of_one_setting(tmp_path):
    for seed, lr in ((0, 1), (1, 1), (2, 9)):
        command = f"run_unsup.py --method vadv --seed {seed} --lr {lr} --output_dir r{seed}"
        save(tmp_path / f"r{seed}/results.json",
             result(f"r{seed}", seed=seed, method="vadv", training={"steps": 1}, command=command))  # fmt: skip
    found = collect([tmp_path])
    assert [(row.model, row.seeds) for row in found.rows] == [("r0, r1", (0, 1)), ("r2", (2,))]
    value = found.rows[0].scores[Column("sts", "STSB", "test", "spearman")]
    assert value.seeds == 2 and value.std == 0


def test_a_summary_stands_for_its_seeds(tmp_path, capsys):
    summary = result("run", {"stsb_dev": sts(66.0, "dev", spearman_std=0.9, seeds=2)}, seed=None, seeds=[0, 1],
                     training={"runs": []}, method="simcse", before={"stsb_dev": {"spearman": 60.0}},
                     command="run_unsup.py --model_name_or_path bert-base-uncased --pooler cls")  # fmt: skip
    save(tmp_path / "run/results.json", summary)
    for seed in (0, 1):
        save(tmp_path / f"run/seed-{seed}/results.json", result(f"run/seed-{seed}", seed=seed, training={}))
    save(tmp_path / "run/config.json", {"hidden_size": 3})
    _, _, page = report(tmp_path, tmp_path / "run")
    assert [row[:5] for row in page.rows[2:]] == [
        ["run", "simcse", "cls", "0 1 (n = 2)", "66.00 ± 0.90 (2)"],
        ["bert-base-uncased, before training", "-", "cls", "-", "60.00"],
    ]
    assert "left out: 1 JSON files that are no results; 2 seeds that a summary holds already" in capsys.readouterr().out
    assert page.rows[2][-1] == "76.25" and page.rows[1][-1] == "reported: STS average of 7, BERT-base"


def test_bold_only_among_comparable_values(tmp_path):
    files = [
        save(tmp_path / "a.json", result("a", {"STSB": sts(70.0)})),
        save(tmp_path / "b.json", result("b", {"STSB": sts(75.0)})),
        save(tmp_path / "c.json", result("c", {"STSB": sts(90.0, sha256="f" * 64)})),
        save(tmp_path / "d.json", result("d", {"STSB": sts(91.0, sha256=None)})),
    ]
    text, _, page = report(tmp_path, *files)
    assert page.best == ["75.00"] and "**75.00** (a)" in text
    assert [row[4] for row in page.rows[2:]] == ["70.00(a)", "75.00(a)", "90.00(b)", "91.00(c)"]
    assert "(b) data ffffffffffff, text: raw, cased" in page.text and "(c) no checksum of the data" in page.text
    other = result("e", {"STSB": sts(99.0)})
    other["protocol"]["text"] = "tokenised, lower-cased"
    _, _, page = report(tmp_path, *files[:2], save(tmp_path / "e.json", other))
    assert page.best == ["75.00"] and page.rows[4][4] == "99.00(b)"


def test_what_was_chosen_on_a_test_set_is_marked_and_never_best(tmp_path):
    tested = result("x", {"STSB": sts(99.0)}, training={}, method="simcse",
                    selection={"metric": "eval_stsb_spearman", "step": 9, "on_test_set": True})  # fmt: skip
    files = [
        save(tmp_path / f"{name}.json", result(name, {"STSB": sts(score)})) for name, score in (("a", 1), ("b", 2))
    ]
    text, _, page = report(tmp_path, *files, save(tmp_path / "x.json", tested))
    assert page.best == ["2.00"] and page.rows[4][0] == "x [1]" and "ON A TEST SET by eval_stsb_spearman" in page.text
    assert r"\[1\] checkpoint chosen ON A TEST SET" in text


def test_attacks_are_best_when_they_fail_and_geometry_has_no_best(tmp_path):
    for name, rate in (("a", 60.0), ("b", 40.0)):
        attack = {"MR": {"pwws": {"attempted": 9, "skipped": 1, "success_rate": rate, "sha256": "m"}}}
        shape = {"alignment": rate / 100, "uniformity": -1.0, "set": "stsb_dev", "split": "dev", "sha256": "g"}
        save(tmp_path / f"{name}.json", result(name, {"geometry": shape}, attacks=attack))
    _, _, page = report(tmp_path, tmp_path)
    assert page.best == ["40.00"]


def test_labels_tell_whitening_and_intervals(tmp_path):
    whitened = result(tasks={"STSB": sts(70.0, spearman_low=65.4, spearman_high=73.9)})
    whitened["protocol"]["whitening"] = {"fitted_on": "a file of text"}
    _, _, page = report(tmp_path, save(tmp_path / "w.json", whitened), save(tmp_path / "p.json", result()))
    assert [row[0] for row in page.rows[2:]] == ["my-model, whitened, fitted on a file of text", "my-model"]
    assert page.rows[2][4] == "70.00 [65.40, 73.90]"


def test_a_comparison_is_two_rows_and_a_table_of_its_own(tmp_path):
    line = {"a": 70.0, "b": 72.0, "a_std": None, "b_std": 0.5, "difference": 2.0, "low": -0.1, "high": 4.2,
            "verdict": "cannot be told", "n": 9, "split": "test", "sha256": "a" * 64}  # fmt: skip
    sides = {
        "model": "A",
        "revision": None,
        "method": None,
        "pooling": "cls",
        "max_seq_length": 128,
        "dtype": "float32",
    }
    base = {key: result()[key] for key in ("library_versions", "device", "seed", "command", "protocol")}
    data = base | {"a": [sides], "b": [sides | {"model": f"B/seed-{seed}", "method": "dclr"} for seed in (3, 4)],
                   "tasks": {"STSB": line, "SICKR": line}, "mean": line, "missing": []}  # fmt: skip
    text, _, page = report(tmp_path, save(tmp_path / "c.json", data))
    assert [row[:5] for row in page.rows[2:]] == [
        ["A", "-", "cls", "-", "70.00"],
        ["B", "dclr", "cls", "3 4 (n = 2)", "72.00 ± 0.50 (2)"],
    ]
    assert "| A | B | STS-B (test, all) | 70.00 | 72.00 ± 0.50 | +2.00 | -0.10 to +4.20 | cannot be told |" in text
    assert "mean of 2" in page.text
    data["noise"] = {"tasks": {"STSB typos": line, "STSB synonyms": line}, "mean": {**line, "split": None}}
    text, _, _ = report(tmp_path, save(tmp_path / "n.json", data))
    assert "| STS-B typos (test, all) | 70.00 |" in text and "| mean of 2 under noise | 70.00 |" in text
    data["tasks"] = {}  # --compare A B --tasks noise
    text, _, _ = report(tmp_path, save(tmp_path / "o.json", data))
    assert "| STS-B typos (test, all) | 70.00 |" in text


def test_a_sweep_has_a_row_a_cell_and_its_reported_figures_in_columns_of_their_own(tmp_path):
    spread = {"mean": 66.0, "std": 1.0, "min": 65.0, "max": 67.0, "values": [65.0, 67.0]}
    cell = {"options": {}, "method": "gs_infonce", "seeds": [0, 1], "failed": {"2": "embeddings collapsed"},
            "tasks": {"stsb_dev": {"n": 9, "split": "dev", "sha256": "a", "spearman": spread}}}  # fmt: skip
    sweep = {"grid": "gs-multiple", "command": "run_ablation.py gs-multiple", "cells": {"3": cell, "4": cell},
             "library_versions": {}, "reported": {"STS average, BERT-base": {"3": 77.63}}, "before": {}}  # fmt: skip
    text, _, page = report(tmp_path, save(tmp_path / "sweep/results.json", sweep))
    assert page.rows[1] == ["STS-B (dev)", "reported: STS average, BERT-base"]
    assert page.rows[2][0] == "gs-multiple: 3 [1]" and page.rows[2][3:] == ["0 1 (n = 2)", "66.00 ± 1.00 (2)", "77.63"]
    assert page.rows[3][-1] == "-"
    assert "seed 2 failed: embeddings collapsed" in text


def test_reported_figures_never_stand_in_a_measured_column(tmp_path):
    method = {"training": {}, "method": "robustsentembed"}
    command = "run_unsup.py --model_name_or_path org/roberta-base"
    save(tmp_path / "a.json", result("m", {task: sts(60.0) for task in STS}, command=command, **method))
    _, _, page = report(tmp_path, tmp_path)
    measured = page.rows[1].index("average of 7 (test)") + 4
    assert page.rows[2][measured] == "60.00"
    assert page.rows[1][-1] == "reported: STS average of 7, RoBERTa-base" and page.rows[2][-1] == "77.57"
    assert page.rows[0][-1] == "reported by the papers, other settings" and "not measured here" in page.text


def test_every_method_says_what_its_paper_reports():
    for name, method in METHODS.items():
        assert all(method.paper.reported.values()), name
        for figures in method.paper.reported.values():
            seven = [figures[task] for task in STS if task in figures]
            if len(seven) == 7:
                assert abs(statistics.fmean(seven) - figures["sts_avg"]) < 0.006, name
    assert METHODS["robustsentembed"].paper.table_of("attack_pwws") == "Tables 1 and 2"
    assert METHODS["dcl"].paper.table_of("CoLA_pwws") == "Table 3" and METHODS["dcl"].paper.table_of("CoLA") == ""


def test_nothing_untrusted_gets_through(tmp_path):
    evil = result(EVIL, {"=HYPERLINK(1)": {"accuracy": 1.0, "split": EVIL}}, method="=cmd|' /C calc'!A0", command=EVIL)
    evil["missing"] = [{"task": EVIL, "reason": EVIL}]
    text, rows, page = report(tmp_path, save(tmp_path / "<b>x.json", evil), title="<script>1</script>|")
    assert "script" not in page.tags and "b" not in page.tags and "alert('x')" in page.text
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert text.splitlines()[0] == r"# &lt;script&gt;1&lt;/script&gt;\|"
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {6}
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "@")), cell
    assert rows[1][1].startswith("'=cmd")


def test_the_page_stands_alone_and_is_accessible(tmp_path):
    save(tmp_path / "out.json", result(tasks={"STSB": sts(70.0)}))
    (tmp_path / "out_negatives.png").write_bytes(PNG)
    (tmp_path / "out_map.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/></svg>")
    (tmp_path / "out_cut.png").write_bytes(PNG[:40])
    (tmp_path / "holiday.png").write_bytes(PNG)
    made = run([tmp_path], tmp_path / "report", argv=["hf-robustcse", "report", "x"])
    page = Page(made["html"].read_text(encoding="utf-8"))
    assert page.links and all(link.startswith("data:") for link in page.links)
    assert not {"script", "iframe", "object", "embed", "base"} & set(page.tags) and "caption" in page.tags
    assert all(page.alts) and all(scope in ("col", "row", "colgroup") for scope in page.scopes)
    assert sum("out_negatives.png" in str(alt) for alt in page.alts) == 1
    assert sum("out_map.svg" in str(alt) for alt in page.alts) == 1
    assert not any("holiday" in str(alt) for alt in page.alts)
    assert "out_cut.png, no whole PNG" in page.text and "hf-robustcse report x" in page.text
    assert "3.11.7" in page.text and "sha256" in page.text and "@import" not in made["html"].read_text()


def test_the_same_files_give_the_same_bytes(tmp_path):
    for name, score in (("a", 70.0), ("b", 71.0)):
        shape = {"alignment": 0.2, "uniformity": -score / 70, "set": "stsb_dev", "split": "dev", "sha256": "g"}
        save(tmp_path / "in" / f"{name}.json", result(name, {"STSB": sts(score), "geometry": shape}))
    once = {name: path.read_bytes() for name, path in run([tmp_path / "in"], tmp_path / "one").items()}
    (tmp_path / "in" / "a.json").touch()
    again = {name: path.read_bytes() for name, path in run([tmp_path / "in"], tmp_path / "two").items()}
    assert once == again


def test_without_matplotlib_there_is_a_page_and_a_hint(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_robustcse.evaluation.pictures.has_matplotlib", lambda: False)
    _, _, page = report(tmp_path, save(tmp_path / "a.json", result()))
    assert "img" not in page.tags and "pip install hf_robustcse[plots]" in page.text
    assert "pip install hf_robustcse[plots]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, reason",
    [
        ("{", "it is no JSON, or only a part of it"),
        ('{"model": "x", "tasks": {"STSB": {"spear', "it is no JSON, or only a part of it"),
        ("[1, 2]", "it has no tasks"),
        ('{"hidden_size": 24}', "it has no tasks"),
        ('{"tasks": {}}', "it does not record the command"),
        ('{"tasks": {}, "command": "x"}', "it has no tasks"),
        ("\xff\xfe", "it is not UTF-8 text"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(result(tasks={})), "it holds no score"),
        (json.dumps(result(tasks={"STSB": 5})), "the task STSB is no mapping"),
        (json.dumps(result(tasks={"STSB": sts(float("nan"))})), "STSB.spearman is nan"),
        (json.dumps(result(tasks={"STSB": sts("high")})), "the spearman of STSB is no number"),
        (json.dumps(result(tasks={"A": {"accuracy": 10**400}})), "A.accuracy is too large"),
        (json.dumps(result(missing=["STS14"])), "it is malformed"),
        (json.dumps(result(protocol="all")), "it is malformed"),
    ],
)
def test_a_named_file_that_cannot_be_used_is_an_error_and_one_in_a_folder_is_not(content, reason, tmp_path, capsys):
    bad = tmp_path / "in" / "bad.json"
    bad.parent.mkdir()
    bad.write_bytes(content.encode("latin-1" if content.startswith("\xff") else "utf-8"))
    with pytest.raises(UserError, match="no result of hf_robustcse|cannot be read") as raised:
        run([bad], tmp_path / "report")
    assert str(bad) in str(raised.value) and reason in str(raised.value)
    with pytest.raises(UserError, match="there is no result of hf_robustcse in"):
        run([tmp_path / "in"], tmp_path / "report")
    assert not (tmp_path / "report").exists()
    save(tmp_path / "in" / "good.json", result())
    run([tmp_path / "in"], tmp_path / "report")
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert len(said) == 1 and ("1 JSON files" in said[0] or str(bad) in said[0])


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    path = save(tmp_path / "a.json", result())
    with pytest.raises(UserError, match="is a file: name a folder"):
        run([path], path)


def test_the_committed_results_are_read(tmp_path, capsys):
    text, rows, page = report(tmp_path, ROOT / "benchmarks" / "results")
    printed = capsys.readouterr().out
    assert text in printed and "open " in printed and "needs no network" in printed
    by_model = {row[0]: row for row in page.rows[2:]}
    heads = ["model", "method", "pooling", "seeds", *page.rows[1]]
    assert by_model["wiki-vadv"][heads.index("STS-B (dev)")].startswith("66.63 ± 1.12 (3)")  # as in the README
    assert by_model["methods: dcl"][heads.index("alignment")].startswith("0.104 ±")
    assert by_model["methods: simcse+dcl"][heads.index("SICK-R (test)")].startswith("54.44 ± 0.17 (3)")
    assert "embedded, before training" in by_model and "dcl-norm: power" in by_model
    assert len({len(row) for row in rows}) == 1


def test_a_row_for_each_fine_tuned_task_and_none_for_a_benchmark(tmp_path):
    text, rows, page = report(tmp_path, ROOT / "benchmarks" / "results")
    names = [row[0] for row in page.rows[2:]]
    assert len([name for name in names if name.startswith("embedded, fine-tuned on ")]) == 8
    assert names.count("embedded") == 1
    assert not any("changed" in head and not head.endswith("words changed") for head in page.rows[1])  # an attack's


def test_sentences_with_typos_have_columns_of_their_own(tmp_path):
    probes = {"n": 50, "source": "text.txt", "perturbed": {"noise": 0.2, "accuracy": 91.25, "cosine": 0.875}}
    watched = {"score": 93.0, "retrieval": 90.5, "cosine": 0.75, "split": "dev", "sha256": "t", "n": 20}
    tasks = {"geometry": {"set": None, "probes": probes}, "dev_text": watched}
    [row] = collect([save(tmp_path / "a.json", result(tasks=tasks))]).rows
    assert {(column.task, column.metric): value.mean for column, value in row.scores.items()} == {
        ("probe", "retrieval"): 91.25, ("probe", "cosine"): 0.875,
        ("dev_text", "retrieval"): 90.5, ("dev_text", "cosine"): 0.75,
    }  # fmt: skip
    _, rows, _ = report(tmp_path, tmp_path / "a.json")
    assert "probe (split not recorded) retrieval, sentences with typos" in rows[0]
