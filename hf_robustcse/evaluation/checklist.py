"""CheckList's suites (Ribeiro et al. 2020) on a frozen encoder, under the classifier of the transfer tasks.

A suite has invariance tests, groups of an original (variant 0) and perturbed variants whose label is the same, and
minimum functionality tests, simple labelled cases. The sentiment suite is classified by SST2's classifier, that of
question pairs by MRPC's: a logistic regression on frozen embeddings (`transfer`). MRPC's pairs are of news, not
questions, so the accuracy on the second suite says less than its invariance. What needs no classifier stands beside it:
how similar an original and its variants are to the encoder itself.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import MissingData
from hf_robustcse.evaluation.known_sets import KNOWN_SETS, KnownRobustSet, group_invariance, load_known_robust_set
from hf_robustcse.evaluation.probes import find_again
from hf_robustcse.evaluation.sts import Embeddings, Encode
from hf_robustcse.evaluation.transfer import Classify, TransferData, load_transfer, train_classifier

SUITES = {"sentiment": "SST2", "qqp": "MRPC"}
"""A suite -> the transfer task whose classifier it gets."""
NAMES = {"sentiment": "sentiment", "qqp": "question pairs"}
# The labels of CheckList's cases that the classifier has, and what it calls them; it knows no neutral.
_LABELS = {"sentiment": {0: 0, 2: 1}, "qqp": {0: 0, 1: 1}}


@dataclass(frozen=True)
class Suite:
    """The tests of one suite, and what its classifier is trained on.

    Attributes:
        name: a key of `SUITES`.
        invariance: the groups.
        functionality: the labelled cases.
        training: the transfer task.
    """

    name: str
    invariance: KnownRobustSet
    functionality: KnownRobustSet
    training: TransferData

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences of tests and training."""
        texts = [text for tests in (self.invariance, self.functionality) for row in rows_of(tests) for text in row]
        return list(dict.fromkeys([*texts, *self.training.sentences]))


def rows_of(tests: KnownRobustSet) -> list[tuple[str, ...]]:
    """The texts of each row, one or two."""
    return list(zip(*(tests.dataset[name] for name in tests.text_columns), strict=True))


def load_suites(data_dir: str | Path | None, *, sst2_train: str = "auto", cases: int | None = None) -> list[Suite]:
    """Load both suites with the training sets of their classifiers.

    Files: `DIR/attack/CheckList/{sentiment_inv,sentiment_mft,qqp_inv,qqp_mft}.tsv` (`known_sets`) and
    `DIR/transfer/{SST2,MRPC}/*.tsv` (`transfer`). Suites of any number of cases are taken.

    Args:
        data_dir: the folder.
        sst2_train: what SST2 trains on, see `transfer.load_transfer`.
        cases: at most so many groups or labelled cases of each test, always the same ones; None for all.

    Raises:
        MissingData: if a file is not there, or there is no folder; the message says what to put where.
        UserError: for a malformed row (file and line named), or a wrong training set.
    """
    if cases is not None and cases < 1:
        raise UserError(f"--checklist_cases must be at least 1, not {cases}")
    if data_dir is None:
        listed = "; ".join(
            f"{file}.tsv ({' '.join(known.header)})"
            for known in KNOWN_SETS.values() if known.group == ("attack", "CheckList")
            for file in known.rows["test"]
        )  # fmt: skip
        raise MissingData(
            "CheckList is on no data set of the Hub that could serve here",
            "convert sentiment_suite.tar.gz and qqp_suite.tar.gz of github.com/marcotcr/checklist (release_suites) "
            f"into DIR/attack/CheckList: {listed}, tab-separated with that header; then pass --data_dir DIR, "
            "which also holds transfer/SST2 and transfer/MRPC (hf-robustcse prefetch --tasks SST2 MRPC --to DIR)",
        )
    suites = []
    for name, task in SUITES.items():
        tests = [f"CheckList_{name}_{kind}" for kind in ("INV", "MFT")]
        loaded = [load_known_robust_set(test, data_dir, check_rows=False) for test in tests]
        if cases is not None:
            loaded = [_sample(tests, cases) for tests in loaded]
        suites.append(Suite(name, *loaded, load_transfer(task, data_dir, sst2_train=sst2_train)))
    return suites


def _sample(tests: KnownRobustSet, most: int) -> KnownRobustSet:
    """At most so many groups, or labelled cases, of each test."""
    units: dict[str, dict[int, None]] = {}
    keys = tests.dataset["group"] if "group" in tests.dataset.column_names else range(tests.n)
    named = list(zip(tests.dataset["test"], keys, strict=True))
    for test, key in named:
        units.setdefault(test, {})[key] = None
    kept = {
        (test, key)
        for test, all_of in units.items()
        for key in random.Random(f"CheckList {test}").sample(list(all_of), min(most, len(all_of)))
    }
    rows = [row for row, name in enumerate(named) if name in kept]
    return dataclasses.replace(tests, dataset=tests.dataset.select(rows))


def evaluate_suite(encode: Encode, suite: Suite, *, seed: int = 0) -> dict[str, Any]:
    """Score one suite.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not; an `Embeddings` that holds all sentences of the
            suite is used as it is.
        suite: of `load_suites`.
        seed: of the classifier's folds.

    Returns:
        `classifier`: its task, what it was `train`ed on (SST2), `accuracy` on its own test set x 100, `penalty`,
        `seed`. `invariance`: `invariance`, the share x 100 of groups in which no variant changes the prediction of the
        original; `positive`, the share x 100 of originals that get the label 1 (a classifier that always says one thing
        is invariant); `cosine`, the mean over the variants of their cosine to their original; `retrieval`, the share x
        100 of variants whose most similar original of the same test is their own (None with one original); for pairs
        `similarity_change`, the mean of |cos(a', b') - cos(a, b)|; `groups`, `variants`; and `tests`, the same of
        each. A pair is as similar to another as the mean cosine of their sentences, in the order that gives more.
        `functionality`: `accuracy` x 100, `n` cases, `left_out` cases of a label that the classifier has not, `tests`.
        Each with the source and the checksum of the whole file.

    Raises:
        UserError: if embeddings are not finite, or no case can be scored.
    """
    embeddings = Embeddings.of(encode, suite.sentences)
    classify, about = train_classifier(embeddings, suite.training, seed=seed)
    kept = [key for key in ("train", "accuracy", "penalty", "seed") if key in about]
    return {
        "classifier": {"task": suite.training.task, **{key: about[key] for key in kept}},
        "invariance": _origin(suite.invariance) | _invariance(embeddings, suite.invariance, classify),
        "functionality": _origin(suite.functionality) | _functionality(embeddings, suite, classify),
    }


def _origin(tests: KnownRobustSet) -> dict[str, str]:
    return {"source": tests.source, "sha256": tests.sha256}


def _invariance(embeddings: Embeddings, tests: KnownRobustSet, classify: Classify) -> dict[str, Any]:
    rows = rows_of(tests)
    predictions = classify(embeddings, rows)
    same = group_invariance(tests.dataset, predictions.tolist())
    members: dict[str, list[int]] = {}
    for row, test in enumerate(tests.dataset["test"]):
        members.setdefault(test, []).append(row)
    groups, variants = (np.array(tests.dataset[name]) for name in ("group", "variant"))
    total: dict[str, list[np.ndarray]] = {}
    records = {}
    for test, inside in members.items():
        original = {groups[row]: row for row in inside if variants[row] == 0}
        changed = [row for row in inside if variants[row] > 0]
        measured = _similarities(embeddings, rows, changed, [original[groups[row]] for row in changed])
        measured["positive"] = predictions[list(original.values())]
        for name, values in measured.items():
            total.setdefault(name, []).append(values)
        counts = {"groups": len(original), "variants": len(changed)}
        records[test] = {"invariance": same[test], **_means(measured), **counts}
    counts = {name: sum(record[name] for record in records.values()) for name in ("groups", "variants")}
    means = _means({name: np.concatenate(values) for name, values in total.items()})
    return {"invariance": same["all"], **means, **counts, "tests": records}


def _means(measured: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """The mean of each, x 100 where it is a share."""
    scale = {"retrieval": 100, "positive": 100}
    return {
        name: scale.get(name, 1) * float(values.mean()) if len(values) else None for name, values in measured.items()
    }


def _similarities(
    embeddings: Embeddings, rows: Sequence[tuple[str, ...]], changed: Sequence[int], own: Sequence[int]
) -> dict[str, np.ndarray]:
    """Of the variants of one test: `cosine` to their originals, `retrieval`, and for pairs `similarity_change`.

    Args:
        embeddings: of all sentences.
        rows: the texts of all rows of the suite.
        changed: the variants.
        own: the original of each.
    """
    distinct = {texts: place for place, texts in enumerate(dict.fromkeys(rows[row] for row in own))}
    target = np.array([distinct[rows[row]] for row in own])
    originals, queries = list(distinct), [rows[row] for row in changed]
    known, asked = (
        [embeddings(side) for side in zip(*texts, strict=True)] for texts in (originals, queries)
    )  # one or two (n, d)
    if len(known) == 1:
        found, near = find_again(known[0], asked[0], target)
    else:
        # The mean of two cosines is the cosine of the two sentences side by side.
        side_by_side = np.hstack(known) / np.sqrt(2)
        ways = [np.hstack(way) / np.sqrt(2) for way in (asked, asked[::-1])]
        cosines = np.maximum(*(way @ side_by_side.T for way in ways)).round(12)
        place = np.arange(len(cosines)), target
        near = cosines[place]
        cosines[place] = -np.inf
        found = near > cosines.max(axis=1)
    measured = {"cosine": near, "retrieval": found if len(distinct) > 1 else found[:0]}
    if len(known) == 2:
        before, after = (np.einsum("nd,nd->n", *sides) for sides in (known, asked))
        measured["similarity_change"] = np.abs(after - before[target])
    return measured


def _functionality(embeddings: Embeddings, suite: Suite, classify: Classify) -> dict[str, Any]:
    tests, labels = suite.functionality, _LABELS[suite.name]
    dataset = tests.dataset
    scored = [row for row, label in enumerate(dataset["label"]) if label in labels]
    if not scored:
        raise UserError(f"no case of {tests.name} has a label that {suite.training.task}'s classifier has")
    rows, gold = rows_of(tests), dataset["label"]
    predictions = classify(embeddings, [rows[row] for row in scored])
    right: dict[str, list[bool]] = {}
    for row, predicted in zip(scored, predictions, strict=True):
        right.setdefault(dataset["test"][row], []).append(bool(predicted == labels[gold[row]]))
    everything = [one for values in right.values() for one in values]
    return {
        "accuracy": 100 * float(np.mean(everything)),
        "n": len(everything),
        "left_out": len(rows) - len(scored),
        "tests": {test: {"accuracy": 100 * float(np.mean(values)), "n": len(values)} for test, values in right.items()},
    }


def checklist_lines(suites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The tables of the suites, as lines of text."""
    lines = []
    for name, record in suites.items():
        classifier, invariance, cases = (record[key] for key in ("classifier", "invariance", "functionality"))
        trained = classifier["task"] + (f" {classifier['train']}" if "train" in classifier else "")
        lines += ["", f"CheckList, {NAMES[name]}; classifier of {trained} (accuracy {classifier['accuracy']:.2f})"]
        pairs = "similarity_change" in invariance
        heads = ["same %", "cosine", "found %", *(["change"] if pairs else []), "groups"]
        lines.append(f"{'invariance':<44}" + "".join(f"{head:>9}" for head in heads))
        for test, values in [*invariance["tests"].items(), ("all", invariance)]:
            cells = [f"{values['invariance']:.2f}", f"{values['cosine']:.3f}"]
            cells.append("-" if values["retrieval"] is None else f"{values['retrieval']:.2f}")
            cells += [f"{values['similarity_change']:.3f}"] if pairs else []
            lines.append(f"{_short(test):<44}" + "".join(f"{cell:>9}" for cell in [*cells, values["groups"]]))
        lines.append(f"label 1 for {invariance['positive']:.1f} % of the originals")
        lines.append(f"{'minimum functionality':<44}{'acc':>9}{'n':>9}")
        for test, values in [*cases["tests"].items(), ("all", cases)]:
            lines.append(f"{_short(test):<44}{values['accuracy']:>9.2f}{values['n']:>9}")
        if cases["left_out"]:
            lines.append(f"left out: {cases['left_out']} cases with a label that {classifier['task']} has not")
    return lines


def _short(test: str) -> str:
    return test if len(test) <= 43 else f"{test[:42]}…"
