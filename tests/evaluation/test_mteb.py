"""Our STS "all" is the cosine Spearman of `mteb` on the same pairs (`pip install "hf_robustcse[mteb]"`)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.runs import EMBEDDED_ENCODER

mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install 'hf_robustcse[mteb]'")


def by_mteb(model: SentenceTransformer, data: list[sts.Pair]) -> float:
    """mteb's score of its own STS task, x 100, on local pairs in place of a Hub data set."""
    about = dict.fromkeys(
        ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect",
         "sample_creation", "bibtex_citation")
    )  # fmt: skip

    class Local(mteb.abstasks.AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="LocalSTS", description="local pairs", dataset={"path": "local", "revision": "1"}, type="STS",
            category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="cosine_spearman", **about,
        )  # fmt: skip

        def load_data(self, *args: object, **kwargs: object) -> None:
            first, second, score = map(list, zip(*data, strict=True))
            rows = Dataset.from_dict({"sentence1": first, "sentence2": second, "score": score})
            self.dataset, self.data_loaded = DatasetDict({"test": rows}), True

    result = mteb.evaluate(model, Local(), cache=None, show_progress_bar=False)
    return 100 * result.task_results[0].scores["test"][0]["cosine_spearman"]


def model_of(folder: Path, pooling: str) -> SentenceTransformer:
    """In float64, so that what is compared is the definition of the score and not the order of rounding."""
    return load_embedder(str(folder), pooling=pooling, device="cpu").model.double()


def test_a_small_set_with_ties(bert: Path, sentences: list[str]) -> None:
    draw = random.Random(0)
    data = [(*draw.choices(sentences, k=2), float(draw.randint(0, 5))) for _ in range(90)]
    data += [(sentence, sentence, 5.0 - place % 2) for place, sentence in enumerate(sentences[:12])]  # cosine 1
    data += [(second, first, score) for first, second, score in data[:15]]  # equal cosines
    model = model_of(bert, "mean")
    assert sts.evaluate_pairs(model.encode, {"all": data})["spearman"] == pytest.approx(by_mteb(model, data), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["STSB", "STS15"])
def test_real_pairs(task: str, benchmark_data: Path) -> None:
    data = sts.load_sts(task, benchmark_data)
    model = model_of(EMBEDDED_ENCODER, "first-last")
    ours = sts.evaluate_pairs(model.encode, data.subsets)["spearman"]
    theirs = by_mteb(model, data.pairs)
    print(f"{task}: ours {ours:.8f}, mteb {theirs:.8f}")
    assert ours == pytest.approx(theirs, abs=1e-6)
