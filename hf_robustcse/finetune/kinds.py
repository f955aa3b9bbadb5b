"""The four kinds of task: what the model sees, what its outputs say, and how that is scored.

The models are transformers' own ``AutoModelFor...`` classes with a new head on the encoder of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    default_data_collator,
)

from hf_robustcse.errors import UserError
from hf_robustcse.finetune import metrics
from hf_robustcse.finetune.tasks import RELATIONS, Source, Task

TOLERANCE = 0.5
"""A predicted score that moves by at most this (on the scale of the gold scores, 0 to 5) counts as unchanged."""
_BEST, _LONGEST_ANSWER = 20, 30


class Kind:
    """What a kind of task needs around the stock trainer; this one is classification into one of several classes.

    Args:
        task: the task.
        tokenizer: of the encoder.
        max_length: tokens of an input.
    """

    auto: Any = AutoModelForSequenceClassification
    perturbed: tuple[str, ...] | None = None  # the columns that a robust set changes; None for all of the text

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.task, self.tokenizer, self.max_length = task, tokenizer, max_length
        self.source: Source = task.source

    def config(self) -> dict[str, Any]:
        """What the configuration of the model says of the task."""
        names = dict(enumerate(self.source.labels))
        return {
            "num_labels": len(names),
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": "single_label_classification",
        }

    def collator(self) -> Any:
        """Pads features to a batch."""
        return DataCollatorWithPadding(self.tokenizer)

    def train_features(self, rows: Dataset) -> Dataset:
        """The model's inputs of training rows."""
        return self.features(rows)

    def features(self, rows: Dataset) -> Dataset:
        """The model's inputs of rows that are scored, with what `predictions` needs."""
        return rows.map(self._encode, batched=True, remove_columns=rows.column_names, desc="tokenising")

    def _encode(self, rows: dict[str, list]) -> dict[str, Any]:
        texts = [rows[column] for column in self.source.columns]
        return {**self.tokenizer(*texts, truncation=True, max_length=self.max_length), "labels": rows["label"]}

    def calibrate(self, outputs: Any, rows: Dataset) -> None:
        """Choose whatever `predictions` needs on a dev set; most kinds need nothing."""

    def predictions(self, outputs: Any, features: Dataset, rows: Dataset) -> list[Any]:
        """What the model says of each row.

        Args:
            outputs: the trainer's, an array (F, C) or a tuple of arrays, F being the number of features.
            features: of the rows.
            rows: as loaded.
        """
        return outputs.argmax(-1).tolist()

    def scores(self, predictions: Sequence[Any], rows: Dataset) -> dict[str, float]:
        """The task's metrics, x 100, in its order."""
        found = self._metric().compute(predictions=list(predictions), references=self._gold(rows))
        return {name: found[name] for name in self.task.metrics}

    def _metric(self) -> Any:
        return metrics.Classification()

    def _gold(self, rows: Dataset) -> list[Any]:
        return list(rows["label"])

    def same(self, first: Any, second: Any) -> bool:
        """Whether two predictions say the same."""
        return first == second

    def protected(self, row: dict[str, Any]) -> list[str]:
        """What a perturbation must leave as it is."""
        return []


class Scores(Kind):
    """Regression of a score, as for STS-B."""

    def config(self) -> dict[str, Any]:
        """As for `Kind`."""
        return {"num_labels": 1, "problem_type": "regression"}

    def predictions(self, outputs: Any, features: Dataset, rows: Dataset) -> list[float]:
        """As for `Kind`."""
        return outputs.reshape(-1).astype(float).tolist()

    def _metric(self) -> Any:
        return metrics.Regression()

    def same(self, first: float, second: float) -> bool:
        """As for `Kind`."""
        return abs(first - second) <= TOLERANCE


class Relations(Kind):
    """DialogRE: all relations of two arguments in a dialogue, each on its own (Yu et al. 2020, the setting of BERT).

    The input is the dialogue, cut at its end, and behind it the two arguments. Relations of a probability above a half
    are predicted; where there is none, the most probable one if it is above a threshold, which is chosen on dev.
    """

    perturbed = ("dialogue",)
    threshold = 0.5

    def config(self) -> dict[str, Any]:
        """As for `Kind`."""
        return {"num_labels": RELATIONS, "problem_type": "multi_label_classification"}

    def _encode(self, rows: dict[str, list]) -> dict[str, Any]:
        separator = self.tokenizer.sep_token or " "
        arguments = [f"{x} {separator} {y}" for x, y in zip(rows["x"], rows["y"], strict=True)]
        # The arguments are the second text, of which nothing is cut off.
        encoded = self.tokenizer(rows["dialogue"], arguments, truncation="only_first", max_length=self.max_length)
        labels = np.zeros((len(arguments), RELATIONS), dtype=np.float32)
        for number, relations in enumerate(rows["label"]):
            labels[number, relations] = 1
        return {**encoded, "labels": labels.tolist()}

    def calibrate(self, outputs: Any, rows: Dataset) -> None:
        """Choose the threshold that gives the best F1."""
        candidates = np.arange(0, 51) / 100

        def f1(threshold: float) -> float:
            found = metrics.Relations().compute(predictions=_relations(outputs, threshold), references=self._gold(rows))
            return found["f1"]

        self.threshold = float(max(candidates, key=f1))

    def predictions(self, outputs: Any, features: Dataset, rows: Dataset) -> list[list[int]]:
        """As for `Kind`."""
        return _relations(outputs, self.threshold)

    def _metric(self) -> Any:
        return metrics.Relations()

    def protected(self, row: dict[str, Any]) -> list[str]:
        """The arguments, the words that show the relation, and the names of the speakers."""
        speakers = {line.split(":", 1)[0] for line in row["dialogue"].split("\n") if ":" in line}
        return [row["x"], row["y"], *row["triggers"], *sorted(speakers)]


def _relations(logits: Any, threshold: float) -> list[list[int]]:
    """(n, RELATIONS) logits -> the predicted relations of each row."""
    logits = np.asarray(logits, dtype=np.float64)
    chosen = [np.flatnonzero(row > 0).tolist() for row in logits]
    lowest = -np.inf if threshold <= 0 else np.log(threshold / (1 - threshold))
    best = logits.argmax(1)
    return [
        found or ([int(top)] if row[top] > lowest else []) for found, top, row in zip(chosen, best, logits, strict=True)
    ]


class Spans(Kind):
    """SQuAD: the span of the context that answers the question; long contexts are cut into overlapping pieces."""

    auto = AutoModelForQuestionAnswering
    perturbed = ("question",)

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        super().__init__(task, tokenizer, max_length)
        if not tokenizer.is_fast:
            raise UserError("--task squad needs a fast tokenizer, which says where in the text a token is")

    def config(self) -> dict[str, Any]:
        """As for `Kind`."""
        return {}

    def collator(self) -> Any:
        """As for `Kind`: the features are padded already."""
        return default_data_collator

    def _pieces(self, rows: dict[str, list]) -> Any:
        """The tokenised pieces of all contexts; a question takes at most half of the tokens."""
        room = self.max_length // 2
        questions = []
        for question in rows["question"]:
            offsets = self.tokenizer(question, return_offsets_mapping=True, add_special_tokens=False).offset_mapping
            questions.append(question[: offsets[room - 1][1]] if len(offsets) > room else question)
        return self.tokenizer(
            questions,
            rows["context"],
            truncation="only_second",
            max_length=self.max_length,
            stride=min(128, self.max_length // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )

    def train_features(self, rows: Dataset) -> Dataset:
        """Each piece with the first and last token of the answer; twice 0 if the answer is not in it."""

        def encode(batch: dict[str, list]) -> dict[str, Any]:
            pieces = self._pieces(batch)
            starts, ends = [], []
            for number, row in enumerate(pieces.pop("overflow_to_sample_mapping")):
                answer = batch["label"][row]
                first = answer["answer_start"][0]
                start, end = _token_span(pieces, number, first, first + len(answer["text"][0]))
                starts.append(start)
                ends.append(end)
            pieces.pop("offset_mapping")
            return {**pieces, "start_positions": starts, "end_positions": ends}

        return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="tokenising")

    def features(self, rows: Dataset) -> Dataset:
        """Each piece with its row and the characters of the context that its tokens are."""

        def encode(batch: dict[str, list], numbers: list[int]) -> dict[str, Any]:
            pieces = self._pieces(batch)
            of = pieces.pop("overflow_to_sample_mapping")
            spans = [
                [
                    list(span) if part == 1 else [-1, -1]
                    for span, part in zip(offsets, pieces.sequence_ids(i), strict=True)
                ]
                for i, offsets in enumerate(pieces.pop("offset_mapping"))
            ]
            return {**pieces, "row": [numbers[i] for i in of], "spans": spans}

        return rows.map(encode, batched=True, with_indices=True, remove_columns=rows.column_names, desc="tokenising")

    def predictions(self, outputs: Any, features: Dataset, rows: Dataset) -> list[str]:
        """The text of the most probable span within one piece, of at most 30 tokens."""
        best: list[tuple[float, int, int]] = [(-np.inf, 0, 0)] * len(rows)
        for start, end, row, spans in zip(*outputs[:2], features["row"], features["spans"], strict=True):
            offsets = np.asarray(spans)
            inside = offsets[:, 0] >= 0
            start, end = np.where(inside, start, -np.inf), np.where(inside, end, -np.inf)
            starts, ends = (np.argsort(-values)[:_BEST] for values in (start, end))
            sums = start[starts][:, None] + end[ends][None, :]
            length = ends[None, :] - starts[:, None] + 1
            sums[(length < 1) | (length > _LONGEST_ANSWER)] = -np.inf
            i, j = np.unravel_index(sums.argmax(), sums.shape)
            if sums[i, j] > best[row][0]:
                best[row] = (float(sums[i, j]), int(offsets[starts[i], 0]), int(offsets[ends[j], 1]))
        return [context[start:end] for (_, start, end), context in zip(best, rows["context"], strict=True)]

    def _metric(self) -> Any:
        return metrics.Squad()

    def _gold(self, rows: Dataset) -> list[list[str]]:
        return [label["text"] for label in rows["label"]]

    def same(self, first: str, second: str) -> bool:
        """As for `Kind`; articles, case and punctuation do not count."""
        return metrics.answer_words(first) == metrics.answer_words(second)

    def protected(self, row: dict[str, Any]) -> list[str]:
        """The answers."""
        return list(row["label"]["text"])


def _token_span(pieces: Any, number: int, first: int, last: int) -> tuple[int, int]:
    """The first and last token of characters first to last (exclusive) of the context; (0, 0) if not all are there."""
    tokens = [
        token
        for token, (span, part) in enumerate(
            zip(pieces["offset_mapping"][number], pieces.sequence_ids(number), strict=True)
        )
        if part == 1 and span[0] < last and span[1] > first
    ]
    if not tokens:
        return 0, 0
    offsets = pieces["offset_mapping"][number]
    if offsets[tokens[0]][0] > first or offsets[tokens[-1]][1] < last:
        return 0, 0
    return tokens[0], tokens[-1]


def make_kind(task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Kind:
    """The kind of a task."""
    kinds: dict[str, type[Kind]] = {"squad": Spans, "dialogre": Relations}
    kind = kinds.get(task.source.kind) or (Kind if task.source.labels else Scores)
    return kind(task, tokenizer, max_length)
