"""README.md and docs/: links lead somewhere, figures are those of the result files, options those of the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import PAGES, ROOT

from hf_robustcse.methods import METHODS

RESULTS = ROOT / "benchmarks" / "results"
COMING = {f"docs/{name}.md" for name in ("publishing", "deployment", "demo", "importing")}
ATTACKS = ("textfooler", "textbugger", "pwws", "bae", "bert-attack")
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
    lines = PAGES[page].read_text(encoding="utf-8").splitlines()
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
        if not path.exists() and str(path.relative_to(ROOT)) in COMING:
            continue
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


def test_the_figures_of_the_methods():
    """results.md, README.md and the page of each method agree with the sweep."""
    cells, before = result("methods_wiki_embedded")["cells"], result("untrained_embedded_first-last")["tasks"]
    geometry = [f"{before['geometry']['alignment']:.3f}", f"{before['geometry']['uniformity']:.2f}"]

    def row(tasks: dict, names: tuple[str, ...]) -> list[str]:
        end = tasks["stsb_dev"]
        return [mean_std(tasks[name]["spearman"]) for name in names] + [
            f"{end['alignment']['mean']:.3f}", f"{end['uniformity']['mean']:.2f}",
        ]  # fmt: skip

    whole, short = ("stsb_dev", "sts12", "sts13", "sts15", "stsb", "sickr"), ("stsb_dev", "stsb", "sickr")
    untrained = {key.lower(): f"{task['spearman']:.2f}" for key, task in before.items() if "spearman" in task}
    expected = [["untrained", *(untrained[name] for name in whole), *geometry]]
    expected += [[f"`{name}`", *row(cell["tasks"], whole)] for name, cell in cells.items()]
    rows = table_rows("docs/results.md")
    assert len(cells) == 9 and all(line in rows for line in expected)
    for name in METHODS:
        rows = table_rows(f"docs/methods/{name}.md")
        assert ["untrained", *(untrained[task] for task in short), *geometry] in rows, name
        assert [f"`{name}`", *row(cells[name]["tasks"], short)] in rows, name
        assert [f"`{name}`", *row(cells[name]["tasks"], ("stsb", "sickr"))[:2]] in [
            line[:3] for line in table_rows("README.md")
        ], name


def test_the_figures_of_the_attacks():
    rows, overall = table_rows("docs/results.md"), {}
    names = {"MR": "MR", "SNLI": "SNLI", "MNLI_mismatched": "MNLI-mm", "IMDB": "IMDB"}
    for method in ("simcse", "vadv", "robustsentembed", "dclr"):
        attacked = result(f"attacks_embedded_{method}")["attacks"]
        for task, name in (*names.items(), ("STSB", "AdvSTS-B"), ("SICKR", "AdvSICK-R")):
            figures = [f"{attacked[task][attack]['success_rate']:.1f}" for attack in ATTACKS]
            found = next(line for line in rows if line[:2] == [name, f"`{method}`"])
            assert found[3:] == [str(attacked[task]["pwws"]["attempted"]), *figures], (name, method)
        cells = [attacked[task][attack] for task in CLASSIFICATION for attack in ATTACKS]
        overall[method] = 100 * sum(cell["succeeded"] for cell in cells) / sum(cell["attempted"] for cell in cells)
        short = next(line for line in table_rows("README.md") if line[0] == f"`{method}`")
        assert short[4] == f"{overall[method]:.1f} %"
    text = " ".join(PAGES["docs/results.md"].read_text(encoding="utf-8").split())
    assert "succeed on {simcse:.1f} % of".format(**overall) in text
    assert "{vadv:.1f} for `vadv`, {robustsentembed:.1f} for `robustsentembed`".format(**overall) in text


def test_the_figures_of_the_encoder_that_was_not_trained():
    rows = table_rows("docs/results.md")
    for name, label in (("mean", "mean, as published"), ("cls", "[CLS]"), ("first-last", "first-last")):
        tasks = result(f"sts_all-MiniLM-L6-v2_{name}")["tasks"]
        scores = [tasks[task]["spearman"] for task in ("STS12", "STS13", "STS15", "STSB", "SICKR")]
        assert [label, *(f"{score:.2f}" for score in (*scores, sum(scores) / 5))] in rows


def test_the_figures_of_fine_tuning():
    rows = {line[0]: line for line in table_rows("docs/results.md")}
    for name, task, label in (
        ("rte", "RTE", "RTE dev"),
        ("cola", "CoLA", "CoLA dev"),
        ("imdb", "IMDB", "IMDB, a part"),
    ):
        found = json.dumps(result(f"finetune_embedded_{name}"))
        for figure in rows[label][2:4]:
            assert any(
                abs(float(figure) - float(number)) < 0.00501 for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", found)
            ), (task, figure)


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
