"""The metrics of fine-tuning as metrics of `evaluate`, here so that none is fetched from the Hub. All are x 100."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


class _Metric(evaluate.Metric):
    """A metric whose inputs stay in memory."""

    features: datasets.Features
    citation = ""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "", citation=self.citation, inputs_description="", features=self.features
        )


class Classification(_Metric):
    """Accuracy, Matthews' correlation, and the F1 of class 1 where there are two classes (0 without it in either)."""

    features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        scores = {
            "accuracy": 100 * float(accuracy_score(references, predictions)),
            "matthews": 100 * float(matthews_corrcoef(references, predictions)),
        }
        if {*predictions, *references} <= {0, 1}:
            scores["f1"] = 100 * float(f1_score(references, predictions, zero_division=0))
        return scores


class Regression(_Metric):
    """Pearson's and Spearman's correlation; None where all predictions are equal."""

    features = datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("float64")})

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float | None]:
        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            return {"spearman": None, "pearson": None}
        return {
            "spearman": 100 * float(stats.spearmanr(predictions, references).statistic),
            "pearson": 100 * float(stats.pearsonr(predictions, references).statistic),
        }


class Squad(_Metric):
    """SQuAD 1.1 (Rajpurkar et al. 2016): exact match, and the F1 of the words, each the best over the gold answers."""

    features = datasets.Features(
        {"predictions": datasets.Value("string"), "references": datasets.List(datasets.Value("string"))}
    )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        exact, f1 = [], []
        for prediction, answers in zip(predictions, references, strict=True):
            words = answer_words(prediction)
            gold = [answer_words(answer) for answer in answers]
            exact.append(any(words == answer for answer in gold))
            f1.append(max(_overlap(words, answer) for answer in gold))
        return {"f1": 100 * float(np.mean(f1)), "exact_match": 100 * float(np.mean(exact))}


def answer_words(text: str) -> list[str]:
    """The words of an answer that count: in lower case, without punctuation and articles."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


class Relations(_Metric):
    """DialogRE (Yu et al. 2020): micro-averaged precision, recall and F1 of the relations of all argument pairs."""

    features = datasets.Features(
        {"predictions": datasets.List(datasets.Value("int32")), "references": datasets.List(datasets.Value("int32"))}
    )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        right = sum(len({*a} & {*b}) for a, b in zip(predictions, references, strict=True))
        said, true = sum(len({*a}) for a in predictions), sum(len({*b}) for b in references)
        precision, recall = right / said if said else 0.0, right / true if true else 0.0
        f1 = 2 * right / (said + true) if said + true else 0.0
        return {"f1": 100 * f1, "precision": 100 * precision, "recall": 100 * recall}
