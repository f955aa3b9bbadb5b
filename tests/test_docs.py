"""README.md and docs/: links lead somewhere, figures are those of the result files, options those of the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from snippets import PAGES, ROOT

from hf_robustcse.methods import METHODS

sys.path.insert(0, str(ROOT))
from benchmarks.study_pages import MARK, filled  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
ATTACKS = ("textfooler", "textbugger", "pwws", "bae", "bert-attack")
ATTACKED = ("simcse", "vadv", "robustsentembed", "dclr")
CLASSIFICATION = ("MR", "SNLI", "MNLI_mismatched", "IMDB")


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def prose(page: str) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", PAGES[page].read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]+`", lambda code: code[0] if "](" not in code[0] else "", text)


def anchors(path: Path) -> set[str]:
    """What the headings of a file are called behind #."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def table_rows(page: str) -> list[list[str]]:
    """The cells of every line of a table."""
    lines = MARK.sub("", PAGES[page].read_text(encoding="utf-8")).splitlines()  # those of studies have their own test
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def mean_std(cell: dict, digits: int = 2) -> str:
    return f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        assert path.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(path), f"{page}: {target}"


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for path in PAGES.values():
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.M | re.S):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    listed |= {str(found.relative_to(ROOT)) for found in path.parent.glob(f"{line}.md")}
    assert {page for page in PAGES if page not in ("README.md", "docs/index.md")} - listed == set()


def sweep_row(tasks: dict, names: tuple[str, ...]) -> list[str]:
    """Scores on sets, alignment and uniformity of a method in the sweep."""
    dev = tasks["stsb_dev"]
    scores = [mean_std(tasks[name]["spearman"]) for name in names]
    return [*scores, f"{dev['alignment']['mean']:.3f}", f"{dev['uniformity']['mean']:.2f}"]


def untrained_row(names: tuple[str, ...]) -> list[str]:
    tasks = {key.lower(): task for key, task in result("untrained_embedded_first-last")["tasks"].items()}
    geometry = tasks["geometry"]
    scores = [f"{tasks[name]['spearman']:.2f}" for name in names]
    return ["untrained", *scores, f"{geometry['alignment']:.3f}", f"{geometry['uniformity']:.2f}"]


def wiki_rows() -> Iterator[list[str]]:
    """600 steps of simcse and vadv."""
    before = {}
    for name, label in (("simcse", "`simcse`"), ("vadv", "`vadv`, default options")):
        found = result(f"embedded_wiki_{name}")
        before = found["before"]
        scores = [found["tasks"][task] for task in ("stsb_dev", "stsb")]
        yield [label, *(f"{score['spearman']:.2f} ± {score['spearman_std']:.2f}" for score in scores)]
    test = result("untrained_embedded_first-last")["tasks"]["STSB"]
    yield ["untrained, first-last", f"{before['stsb_dev']['spearman']:.2f}", f"{test['spearman']:.2f}"]


def sweep_rows() -> Iterator[list[str]]:
    """Six methods and three stacks."""
    names = ("stsb_dev", "sts12", "sts13", "sts15", "stsb", "sickr")
    yield untrained_row(names)
    for name, cell in result("methods_wiki_embedded")["cells"].items():
        yield [f"`{name}`", *sweep_row(cell["tasks"], names)]


def pooling_rows() -> Iterator[list[str]]:
    """all-MiniLM-L6-v2 under four poolings."""
    labels = {
        "mean": "mean, as published", "cls": "[CLS]", "first-last": "first-last",
        "first-last-whitening": "first-last, whitened on the scored sentences",
    }  # fmt: skip
    for name, label in labels.items():
        tasks = result(f"sts_all-MiniLM-L6-v2_{name}")["tasks"]
        scores = [tasks[task]["spearman"] for task in ("STS12", "STS13", "STS15", "STSB", "SICKR")]
        yield [label, *(f"{score:.2f}" for score in (*scores, sum(scores) / 5))]


def fine_tuning_rows() -> Iterator[list[str]]:
    """Eight tasks, as they are and perturbed."""
    for file, task, label, metric in (
        ("rte", "RTE", "RTE dev", "accuracy"),
        ("cola", "CoLA", "CoLA dev", "Matthews"),
        ("snli", "SNLI", "SNLI test, a sample", "accuracy"),
        ("mnli", "MNLI", "MNLI matched, a sample", "accuracy"),
        ("anli", "ANLI_dev", "ANLI dev, all rounds, trained on parts of SNLI and MNLI", "accuracy"),
        ("squad", "SQuAD", "SQuAD, a part", "F1 / EM"),
        ("dialogre", "DialogRE", "DialogRE test", "F1"),
        ("imdb", "IMDB", "IMDB, a part", "accuracy"),
    ):
        found = result(f"finetune_embedded_{file}")["tasks"][task]
        keys = ("f1", "exact_match") if metric == "F1 / EM" else (metric.lower(),)
        scores = [" / ".join(f"{one[key]:.2f}" for key in keys) for one in (found, found["robust"])]
        yield [label, metric, *scores, f"{found['invariance']:.2f}", str(found["n"])]


def attack_rows() -> Iterator[list[str]]:
    """Five attacks on four methods and six tasks."""
    labels = dict(zip(CLASSIFICATION, ("MR", "SNLI", "MNLI-mm", "IMDB"), strict=True))
    for method in ATTACKED:
        attacked = result(f"attacks_embedded_{method}")["attacks"]
        for task, label in {**labels, "STSB": "AdvSTS-B", "SICKR": "AdvSICK-R"}.items():
            cells = [attacked[task][attack] for attack in ATTACKS]
            before = cells[0].get("accuracy_before", cells[0].get("spearman_before"))
            counts = [f"{before:.1f}", str(cells[0]["attempted"])]
            yield [label, f"`{method}`", *counts, *(f"{cell['success_rate']:.1f}" for cell in cells)]


def memory_rows() -> Iterator[list[str]]:
    """Peak memory of every method, in MiB and in that of simcse, and in chunks."""
    cells, batches = result("memory_cpu_methods_embedded")["cells"], (64, 512, 2048)

    def peak(name: str) -> str:
        return f"{cells[name]['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in cells[name] else "not run"

    for method in ("simcse", "vadv", "dcl", "robustsentembed", "gs_infonce", "dclr"):
        ratios = [cells[f"{method} {n}"]["peak_bytes"] / cells[f"simcse {n}"]["peak_bytes"] for n in batches]
        whole, chunks = ([peak(f"{method} {n}{how}") for n in batches] for how in ("", " in chunks of 64"))
        yield [f"`{method}`", *whole, *(f"{ratio:.2f}" for ratio in ratios), *chunks]


def test_every_figure_in_a_table_of_the_results_is_that_of_its_file():
    made = [*wiki_rows(), *sweep_rows(), *pooling_rows(), *fine_tuning_rows(), *attack_rows(), *memory_rows()]
    found = [row for row in table_rows("docs/results.md") if any(re.search(r"\d\.\d", cell) for cell in row)]
    assert sorted(found) == sorted(made) and len(found) == 3 + 10 + 4 + 8 + 24 + 6


def test_the_tables_of_the_studies_are_those_of_their_files():
    texts = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
    assert all(filled(text) == text for text in texts.values()), "run: python -m benchmarks.study_pages"
    marked = {name: [(of, part) for _, of, part, _ in MARK.findall(text)] for name, text in texts.items()}
    studies = ("study_embedded_cpu", "study_minilm_cpu")
    assert {(of, part) for of in studies for part in ("all", "trials")} <= set(marked["docs/results.md"])
    assert sorted(marked["README.md"]) == [(of, "readme") for of in studies]
    for name in METHODS:
        trained = [of for of in studies if any(name in system.split("+") for system in methods_of(of))]
        assert marked[f"docs/methods/{name}.md"] == [(of, name) for of in trained]


def methods_of(study: str) -> list[str]:
    """The methods of the systems that a study judged."""
    record = json.loads((RESULTS / f"{study}.json").read_text(encoding="utf-8"))
    return [record["study"]["systems"][system]["options"]["method"] for system in record["summary"]["steps"]]


def test_figures_of_the_claims_are_those_of_the_results():
    claims, *results = (
        PAGES[f"docs/{name}.md"].read_text(encoding="utf-8") for name in ("claims", "results", "ablations")
    )
    quoted = set(re.findall(r"\d+\.\d+ ± \d+\.\d+", claims))
    assert len(quoted) > 5 and all(figure in "".join(results) for figure in quoted)


def options_in(text: str) -> dict[str, str]:
    """The options of a command line, with their values."""
    return {name: " ".join(values.split()) for name, values in re.findall(r"--(\w+)((?: (?!--)\S+)*)", text)}


def test_every_grid_that_was_trained_is_on_the_page_of_grids_with_its_picture_and_its_options():
    page = PAGES["docs/ablations.md"].read_text(encoding="utf-8")
    trained = sorted(path.stem for path in RESULTS.glob("ablation_*.json"))
    assert trained and sorted(name for _, name, part, _ in MARK.findall(page) if part == "grid") == trained
    command = re.search(r"^python examples/run_ablation.py GRID (.*?)^```$", page, flags=re.M | re.S)[1]
    shared = options_in(" ".join(command.replace("\\", "").split()))
    for name in trained:
        record = result(name)
        section = next(part for part in page.split("\n## ") if f"<!-- study: {name} grid -->" in part)
        assert f"(../benchmarks/results/{name}.png)" in section and (RESULTS / f"{name}.png").is_file(), name
        given, varied = options_in(record["command"]), record["varied"]
        assert {key: value for key, value in shared.items() if key not in varied}.items() <= given.items(), name
        for option in given.keys() - shared.keys() - {"output_dir", "seeds", "disable_tqdm", "cells"}:
            assert f"`--{option}" in section, (name, option)


def test_the_figures_on_the_page_of_a_method():
    cells, overall = result("methods_wiki_embedded")["cells"], {}
    for method in ATTACKED:
        attacked = result(f"attacks_embedded_{method}")["attacks"]
        counts = [attacked[task][attack] for task in CLASSIFICATION for attack in ATTACKS]
        overall[method] = 100 * sum(c["succeeded"] for c in counts) / sum(c["attempted"] for c in counts)
    for name in (name for name in METHODS if name in cells):
        page, names = table_rows(f"docs/methods/{name}.md"), ("stsb_dev", "stsb", "sickr")
        assert untrained_row(names) in page, name
        assert [f"`{name}`", *sweep_row(cells[name]["tasks"], names)] in page, name
    text = " ".join(PAGES["docs/results.md"].read_text(encoding="utf-8").split())
    assert "succeed on {simcse:.1f} % of the attempted".format(**overall) in text
    assert "{vadv:.1f} for `vadv`, {robustsentembed:.1f} for `robustsentembed`".format(**overall) in text


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_its_options(name):
    """Every option, with its default."""
    rows = {line[0].split("`")[1]: line for line in table_rows(f"docs/methods/{name}.md") if line[0].startswith("`--")}
    fields = {f"--{field.name}": field.default for field in dataclasses.fields(METHODS[name].Options)}
    assert set(rows) == set(fields)
    for option, default in fields.items():
        shown = rows[option][1]
        if isinstance(default, bool):
            assert shown == ("yes" if default else "no"), option
        elif isinstance(default, (int, float)):
            top, _, bottom = shown.partition("/")
            assert float(top) / float(bottom or 1) == pytest.approx(default), option
        else:
            assert shown == str(default).lower(), option


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path):
    for needed in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}: pip install hf_robustcse[docs]")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "api" / "functional.html").read_text(encoding="utf-8")
    assert "hf_robustcse.functional.info_nce" in page
