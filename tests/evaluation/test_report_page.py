"""The report's page in a browser: what it shows, that nothing is complained of, requested or missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from browser import BROWSER, DRIVER, QUIET, opened
from test_report import PNG, Page, result, save, sts

from hf_robustcse.report import run

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a bold value, a footnote, a hostile name, charts and a picture."""
    folder = tmp_path_factory.mktemp("page")
    shape = {"alignment": 0.2, "uniformity": -2.0, "set": "stsb_dev", "split": "dev", "sha256": "g"}
    save(folder / "a.json", result("a", {"STSB": sts(70.0), "geometry": shape}))
    save(folder / "b.json", result("<script>document.title='taken'</script>", {"STSB": sts(71.5)}))
    save(folder / "c.json", result("c", {"STSB": sts(72.0, sha256="f" * 64), "SICKR": sts(50.0)}, method="vadv"))
    (folder / "a_negatives.png").write_bytes(PNG)
    (folder / "a_map.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'></svg>")
    return run([folder], folder / "report", title="A title")["html"]


def test_a_browser_shows_the_table_and_complains_of_nothing(page, tmp_path):
    done = subprocess.run(
        [BROWSER, *QUIET, f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, encoding="utf-8", timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    dom = Page(done.stdout)
    names = [row[0] for row in dom.rows[2:]]
    assert names == ["a", "<script>document.title='taken'</script>", "c"] and "script" not in dom.tags
    assert [row[4] for row in dom.rows[2:]] == ["70.00(a)", "71.50(a)", "72.00(b)"] and dom.best == ["71.50"]
    assert all(link.startswith("data:") for link in dom.links)


@pytest.mark.skipif(DRIVER is None, reason="no chromedriver on PATH")
def test_every_picture_loads_and_nothing_is_requested(page, tmp_path):
    with opened(tmp_path, "--window-size=500,900") as window:
        window.go(page.as_uri())
        ask = window.ask
        widths = ask("[...document.images].map(i => i.complete ? i.naturalWidth : 0)")
        assert len(widths) >= 2 and all(widths)
        asked = ask("performance.getEntriesByType('resource').map(e => e.name)")
        assert all(name.startswith("data:") for name in asked)
        assert ask("document.title") == "A title"
        assert window.console() == []
        # On a narrow screen the table scrolls, not the page, and the first column stays.
        assert ask("document.documentElement.scrollWidth <= innerWidth")
        assert ask("(b => (b.scrollLeft = 300, b.scrollLeft > 0))(document.querySelector('.scroll'))")
        stays = "document.querySelector('tbody th').getBoundingClientRect().left"
        assert ask(f"{stays} >= document.querySelector('.scroll').getBoundingClientRect().left")
