"""The demo: what it computes, and its page used in a browser as a visitor would."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser import BROWSER, DRIVER, OPENER, free_port, opened, wait_for
from huggingface_hub import metadata_load
from sentence_transformers import SentenceTransformer

from hf_robustcse.demo import views
from hf_robustcse.demo.compute import LONGEST, TOP, Demo, Step
from hf_robustcse.demo.run import load, main, parser
from hf_robustcse.errors import UserError

ROOT = Path(__file__).parents[1]
SPACE = ROOT / "examples" / "space"
SENTENCE = "The committee will publish the annual report next Tuesday."


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of synonyms."""
    path = tmp_path_factory.mktemp("words") / "words.tsv"
    path.write_text("report\tstudy\npublish\tissue\tprint\nannual\tyearly\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def demo(words: Path) -> Demo:
    """Two poolings of the embedded encoder."""
    return load(max_corpus=60, synonyms=str(words), device="cpu")


def test_figures_are_those_of_sentence_transformers(demo, bert, tmp_path):
    plain = SentenceTransformer(str(bert), device="cpu")
    corpus = ["the dog runs .", "a cat sleeps", "the old man reads a book", "a small red bird"]
    (tmp_path / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    mine = load(str(bert), pooling="mean", corpus=str(tmp_path / "corpus.txt"), device="cpu")
    rows = plain.encode(corpus, normalize_embeddings=True)
    cosines = rows @ rows.T
    assert mine.similarity(corpus[0], corpus[1])[0][0] == pytest.approx(cosines[0, 1], abs=1e-5)
    found, notes = mine.search(corpus[2])
    assert found[0][0][1] == corpus[2] and found[0][0][0] == pytest.approx(1, abs=1e-5)
    assert [sentence for _, sentence in found[0]] == [corpus[i] for i in np.argsort(-cosines[2])]
    assert mine.models[0].level == pytest.approx(cosines[~np.eye(4, dtype=bool)].mean(), abs=1e-5)
    assert notes[0] == "4 of 4 sentences are found by both models."


@pytest.mark.parametrize("attack", ["typos", "synonyms", "deepwordbug", "pwws"])
def test_an_attack_changes_one_word_at_a_time_and_repeats(demo, attack):
    steps = list(demo.attack(SENTENCE, attack=attack, edits=3))
    assert steps[0].text == SENTENCE and steps[0].similarities == pytest.approx((1, 1)) and steps[0].kept == (TOP, TOP)
    assert [step.edits for step in steps] == [0, 1, 2, 3]
    for before, after in zip(steps, steps[1:], strict=False):
        olds = {old for _, old in before.pieces if old} - {old for _, old in after.pieces if old}
        assert not olds and "".join(piece if old is None else old for piece, old in after.pieces) == SENTENCE
    assert steps == list(demo.attack(SENTENCE, attack=attack, edits=3))
    if attack in ("deepwordbug", "pwws"):  # each edit is kept because it lowers the similarity of the model asked
        falls = [step.similarities[0] for step in steps]
        assert falls == sorted(falls, reverse=True)
        assert steps != list(demo.attack(SENTENCE, attack="deepwordbug", edits=3, seed=1))
    if attack == "typos":
        assert steps != list(demo.attack(SENTENCE, attack=attack, edits=3, seed=1))


def test_a_second_text_is_what_is_compared(demo):
    steps = list(demo.attack(SENTENCE, "The yearly study comes out.", attack="deepwordbug", edits=2, target=1))
    expected = demo.similarity(SENTENCE, "The yearly study comes out.")[0]
    assert steps[0].similarities == pytest.approx(expected, abs=1e-6)
    assert steps[2].similarities[1] < steps[0].similarities[1]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"text": "  "}, "type a sentence: the sentence to attack is empty"),
        ({"text": "a" * (LONGEST + 1)}, f"has {LONGEST + 1} characters; the demo takes {LONGEST} at most"),
        ({"text": "?! 🙂"}, "no word to change"),
        ({"text": SENTENCE, "other": "b" * 9999}, "the text to compare with has 9999 characters"),
        ({"text": SENTENCE, "attack": "x"}, "unknown attack 'x'; known: typos"),
        ({"text": SENTENCE, "edits": 0}, "edits must be between 1 and 20, not 0"),
        ({"text": SENTENCE, "attack": "textbugger"}, "the attack textbugger needs --word_neighbours"),
        ({"text": "Никто не знает.", "attack": "synonyms"}, "finds no word to change"),
    ],
)
def test_bad_input_to_an_attack_is_told_in_a_line(demo, settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        list(demo.attack(**settings))


def test_without_wordnet_the_choice_says_what_to_install(demo, monkeypatch, tmp_path):
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    without = Demo(demo.models, demo.corpus)
    assert "apt install wordnet-base" in without.missing("synonyms") and without.missing("typos") is None


def test_a_text_in_another_script_is_attacked_and_the_reader_is_warned(demo):
    text = "ᚠᚢᚦᚨᚱᚲ ᚷᚹᚺᚾᛁ"
    steps = list(demo.attack(text))
    assert steps[-1].edits == 2 and "does not know 100% of the tokens" in demo.similarity(text, text)[1][0]
    assert demo.notes(SENTENCE) == []


def test_nothing_that_is_typed_becomes_markup(demo):
    step = Step([("<b>", None), ("<i>", "<s>")], (0.5, -0.5), (1, 2), (True, False))
    shown = views.edited(step) + views.hits(demo, [[(0.5, "<b>")], []]) + views.notes(["<b>"])
    assert "<b>&lt;" not in shown.replace("<b>untrained", "") and "&lt;i&gt;" in shown and shown.count("&lt;b&gt;") == 3
    assert "<i>" not in shown and "-1.00" in views.plot(demo, [step], 4)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--model", "./absent"], "there is no model folder ./absent"),
        (["--corpus", "absent.txt"], "absent.txt"),
        (["--synonyms", "absent.tsv"], "absent.tsv"),
        (["--pooling", "cls"], "--model and --compare_with are the same model"),
        (["--max_corpus", "0"], "--max_corpus must be at least 2, not 0"),
        (["--device", "tpu"], "--device tpu is not there"),
        (["--port", "99999"], "choose another --port"),
        (["--word_neighbours", "absent.txt"], "absent.txt"),
    ],
)
def test_bad_options_end_with_one_line(argv, message, capsys):
    pytest.importorskip("gradio")
    with pytest.raises(SystemExit) as stop:
        main([*argv, *([] if "--port" in argv else ["--port", "0"])])
    error = capsys.readouterr().err.strip().split("\n")[-1]
    assert stop.value.code == 2 and error.startswith("error: ") and message in error


def test_without_gradio_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().err == "error: the demo's page is made with Gradio: pip install hf_robustcse[demo]\n"


@contextmanager
def served(script: Path, folder: Path, *argv: str, **variables: str) -> Iterator[subprocess.Popen]:
    """A script of the demo in a process of its own, without a network, in an empty folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths), "NO_PROXY": "127.0.0.1", **variables}
    process = subprocess.Popen(
        [sys.executable, str(script), *argv], cwd=folder, env=os.environ | more, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
        process.stdout.close()


def test_the_space_is_complete_and_its_variables_are_options(monkeypatch):
    about = metadata_load(SPACE / "README.md")
    assert about["sdk"] == "gradio" and (SPACE / about["app_file"]).is_file() and about["license"] == "apache-2.0"
    assert "hf_robustcse[demo" in (SPACE / "requirements.txt").read_text(encoding="utf-8")
    monkeypatch.setenv("ROBUSTCSE_MODEL", "org/a")
    options = runpy.run_path(str(SPACE / "app.py"))["options"]()
    assert vars(parser().parse_args(options)) | {"model": "org/a", "host": "0.0.0.0", "port": 7860} == vars(
        parser().parse_args(options)
    )


@pytest.mark.slow
def test_the_space_starts(tmp_path):
    pytest.importorskip("gradio")
    (tmp_path / "corpus.txt").write_text("A dog runs.\nA cat sleeps.\n", encoding="utf-8")
    port = free_port()
    variables = {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "ROBUSTCSE_CORPUS": "corpus.txt"}
    with served(SPACE / "app.py", tmp_path, **variables):
        wait_for(lambda: OPENER.open(f"http://127.0.0.1:{port}/", timeout=5).close())
        with OPENER.open(f"http://127.0.0.1:{port}/config", timeout=5) as answer:
            assert "Which of 2 sentences are nearest" in answer.read().decode()


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH")
def test_a_visitor_compares_searches_and_attacks(tmp_path, words):
    pytest.importorskip("gradio")
    folder = tmp_path / "empty"
    folder.mkdir()
    argv = ["--port", "0", "--max_corpus", "100", "--synonyms", str(words)]
    with served(ROOT / "examples" / "demo.py", folder, *argv) as process:
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        wait_for(lambda: OPENER.open(url, timeout=5).close())
        with opened(tmp_path / "profile", "--window-size=1280,940") as page:
            page.go(url)
            page.wait("document.querySelector('#compare')")
            _compares(page)
            _searches(page)
            _attacks(page)
            asked = page.ask("performance.getEntriesByType('resource').map(e => e.name)")
            assert asked and all(name.startswith((url, "data:", "blob:")) for name in asked)
            assert [entry for entry in page.console() if entry["level"] == "SEVERE"] == []
        for path in ("/etc/passwd", str(ROOT / "setup.cfg"), str(words)):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                OPENER.open(f"{url}/gradio_api/file={path}", timeout=5)
        files = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nmany bytes\r\n--x--\r\n'
        upload = urllib.request.Request(
            f"{url}/gradio_api/upload", files, {"Content-Type": "multipart/form-data; boundary=x"}
        )
        with pytest.raises(urllib.error.HTTPError, match="413"):
            OPENER.open(upload, timeout=5)
        assert not list(folder.iterdir())


def _tab(page, name):
    page.ask(f"[...document.querySelectorAll('button[role=tab]')].find(b => b.innerText == '{name}').click()")


def _compares(page):
    figures = "[...document.querySelectorAll('.figure')].map(e => e.innerText)"
    page.click("#compare")
    page.wait("document.querySelectorAll('.figure').length == 2")
    before = page.ask(figures)
    page.type("#second textarea", "The committee will publish the annual report on Tuesday.")
    page.click("#compare")
    page.wait(f"({figures}).join() == '1.000,1.000'")
    assert before != ["1.000", "1.000"] and all(0 < float(value) < 1 for value in before)
    page.type("#second textarea", "")
    page.click("#compare")
    page.wait("document.body.innerText.includes('type a sentence: the second text is empty')")
    assert page.ask(figures) == ["1.000", "1.000"]  # what stood there stays
    page.fill("#second textarea", "x" * 600)
    page.click("#compare")
    page.wait("document.body.innerText.includes('600 characters; the demo takes 500 at most')")


def _searches(page):
    first = "document.querySelector('.hits td:last-child').innerText"
    _tab(page, "Search")
    page.click("#find")
    page.wait("document.querySelectorAll('.hits tr').length == 20")
    before = page.ask(first)
    page.type("#query textarea", "The treatment was not as safe as the operation.")
    page.click("#find")
    page.wait(f"{first} == 'The treatment was not as safe as the operation.'")
    assert before != page.ask(first)
    assert page.ask("document.querySelector('.hits td').innerText") == "1.000"


def _attacks(page):
    rows = "document.querySelectorAll('.steps tr').length - 1"
    _tab(page, "Attack it")
    page.ask(
        "(window.seen = new Set(), new MutationObserver(() => seen.add(document.querySelectorAll('.steps tr').length))"
        ".observe(document.querySelector('#shown'), {childList: true, subtree: true}))"
    )
    page.click("#go")
    page.wait("document.querySelector('#shown').innerText.includes('After 7 changed words')")
    assert page.ask("seen.size") >= 3  # it could be watched, step by step
    assert page.ask(rows) == 8 and page.ask("document.querySelectorAll('.edited mark').length") == 7
    assert page.ask("document.querySelectorAll('svg.plot circle').length") == 16
    # Synonyms of the list, then a search that asks one of the models, which may be chosen then.
    page.click("#kind input[value=synonyms]")
    page.click("#go")
    page.wait("[...document.querySelectorAll('.edited mark')].some(m => m.innerText == 'yearly')")
    assert not page.ask("document.querySelector('#target input')")
    page.click("#kind input[value=deepwordbug]")
    page.wait("document.querySelectorAll('#target input').length == 2")
    page.type("#text textarea", "A dog sleeps outside.")
    page.click("#go")
    page.wait("document.querySelector('#shown').innerText.includes('After 3 changed words')")
    shown = page.ask("[...document.querySelectorAll('.steps td:nth-child(2)')].map(e => Number(e.innerText))")
    assert shown == sorted(shown, reverse=True) and shown[0] == 1
