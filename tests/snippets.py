"""The snippets of README.md and docs/, and the folder with stand-ins in which they run."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hf_robustcse import RobustCSEModel
from hf_robustcse.evaluation.sts import TASKS as STS
from hf_robustcse.evaluation.transfer import TASKS as TRANSFER
from hf_robustcse.finetune.tasks import SOURCES

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "_build" not in path.parts
}
LANGUAGES = ("python", "sh", "bash")
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_WORDS = (
    "the a man woman dog cat plays eats sees guitar apple river old happy red small today in near good bad film".split()
)


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes:
        page: its file, from the root.
        line: where it begins.
        language: of the fence.
        code: what is in it.
        reason: why it is not run, or None.
    """

    page: str
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """The commands of a shell snippet, each on one line."""
        lines = re.sub(r"\s*\\\n\s*", " ", self.code).splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def snippets(page: str) -> Iterator[Snippet]:
    """The blocks of a page that are code to run."""
    reason, opened, code = None, None, []
    for number, line in enumerate(PAGES[page].read_text(encoding="utf-8").splitlines(), start=1):
        if opened is None and line.startswith("```"):
            opened, code = (number, line.removeprefix("```").strip()), []
        elif opened is not None and line == "```":
            if opened[1] in LANGUAGES:
                yield Snippet(page, opened[0], opened[1], "\n".join(code), reason)
            opened = reason = None
        elif opened is not None:
            code.append(line)
        elif line.strip():
            found = _NOT_RUN.fullmatch(line.strip())
            reason = found[1] if found else None


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_stand_ins(folder: Path) -> None:
    """What the snippets name: an encoder, a checkpoint, texts, and data with as many rows as the readers insist on."""
    draw = random.Random(0)
    texts = sorted({" ".join(draw.choices(_WORDS, k=draw.randint(4, 9))) for _ in range(600)})
    few = texts[:40]  # rows repeat them, and each distinct text is encoded once

    encoder = folder / "bert-base-uncased"
    shutil.copytree(ROOT / "hf_robustcse" / "assets" / "encoder", encoder)
    RobustCSEModel.from_encoder(str(encoder), method="simcse").save_pretrained(folder / "my-model")
    shutil.copytree(folder / "my-model", folder / "sentence-transformers" / "all-mpnet-base-v2")
    AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2).save_pretrained(folder / "my-classifier")
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder / "my-classifier")

    for method in ("simcse", "vadv"):
        RobustCSEModel.from_encoder(str(encoder), method=method).save_pretrained(folder / f"my-{method}")
    released = folder / "princeton-nlp" / "unsup-simcse-bert-base-uncased"  # the head is in BERT's own pooler there
    AutoModel.from_pretrained(encoder).save_pretrained(released)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(released)

    _write(folder / "sentences.txt", texts[:260])
    _write(folder / "triplets.csv", ["sent0,sent1,hard_neg", *(",".join(texts[i : i + 3]) for i in range(0, 240, 3))])
    _write(folder / "synonyms.tsv", ["\t".join(_WORDS[i : i + 4]) for i in range(0, 20, 4)])
    _write(
        folder / "counter-fitted-vectors.txt",
        (f"{word} " + " ".join(f"{draw.gauss(0, 1):.3f}" for _ in range(4)) for word in _WORDS),
    )
    _write(folder / "imdb.tsv", ["label\ttext", *(f"{i % 2}\t{text}" for i, text in enumerate(few))])

    def pairs(label: str, count: int, classes: int, lowest: int = 0) -> Iterator[str]:
        yield f"{label}\tsentence1\tsentence2"
        for i in range(count):
            yield f"{lowest + i % classes}\t{few[i % 40]}\t{few[(7 * i + 1 + i // 40) % 40]}"

    _write(folder / "dev.tsv", pairs("score", 30, 6))
    for split in ("dev", "test"):
        _write(folder / f"data/sts/STSB/{split}.tsv", pairs("score", STS["STSB"].rows[split], 6))
        _write(folder / f"data/nli/SNLI/{split}.tsv", pairs("label", SOURCES["SNLI"].rows[split], 3))
    _write(folder / "data/sts/SICKR/dev.tsv", pairs("score", STS["SICKR"].rows["dev"], 5, 1))
    _write(folder / "data/nli/SNLI/train.tsv", pairs("label", 30, 3))
    for split, count in TRANSFER["TREC"].rows.items():  # one text, because nothing is then left to fit
        rows = ["label	text", *(f"{i % 6}	good film" for i in range(count[0]))]
        _write(folder / f"data/transfer/TREC/{split}.tsv", rows)
    _write(
        folder / "data/attack/MR/test1k.tsv", ["label\ttext", *(f"{i % 2}\t{t}" for i, t in enumerate(texts[400:420]))]
    )

    for name in ("runs", "results"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "benchmarks/results/embedded_wiki_vadv.json", folder / "results")
    shutil.copy(ROOT / "benchmarks/results/embedded_wiki_simcse.json", folder / "runs")
    assert json.loads((folder / "results" / "embedded_wiki_vadv.json").read_text(encoding="utf-8"))
