"""The release that the repository keeps: the tiny encoder trained with `vadv`, to try without training or the Hub."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer

from hf_robustcse import RobustCSEModel
from hf_robustcse.cards import card_text, validate
from hf_robustcse.files import read_json
from hf_robustcse.publish.folder import check_release
from hf_robustcse.publish.scrub import Scrubber

FOLDER = Path(__file__).parents[2] / "model_cards" / "vadv-tiny"


def test_it_is_small_and_tells_nothing():
    check_release(FOLDER, Scrubber())
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 6_000_000


def test_it_loads_and_embeds_as_its_card_says():
    check = read_json(FOLDER / "manifest.json")["release"]["check"]
    model = SentenceTransformer(str(FOLDER), device="cpu")
    vectors = model.encode(check["sentences"], convert_to_tensor=True)
    assert abs(float(model.similarity(vectors, vectors)[0, 1]) - check["cosine"]) < 1e-4
    assert f"{check['cosine']:.4f}" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert RobustCSEModel.from_pretrained(FOLDER).method.name == "vadv"


def test_its_card_is_the_one_that_is_rendered_today():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    results = sorted((FOLDER / "results").glob("*.json"))
    about = {"license": "apache-2.0", "language": "en"}
    assert text == card_text(FOLDER, repo_id="ORG/vadv-tiny", results=results, **about)
    validate(text)
