"""Which words an embedding comes from: those that a typo may hit, or the rest.

    python -m benchmarks.what_is_kept simcse=embedded/steps/simcse simcse-typos=embedded/steps/simcse-typos \\
        --data_dir data --output_json out.json

A model trained to give a sentence with typos the embedding of the sentence can come to read what typos never touch:
`typos.add_typos` leaves words of fewer than four letters, numbers and punctuation alone. So each sentence of STS-B test
is cut in two, the long words and the rest, and each part alone is asked for the score of its pair and for its own
sentence: what cannot be found by its long words, but by the rest, is embedded by the rest.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.measuring import check_output, machine
from benchmarks.study import spread_over_seeds
from hf_robustcse.cards.text import mean_and_std
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import write_json
from hf_robustcse.typos import LEAST, pieces

PARTS = ("sentence", "long words", "the rest")


def cut(sentence: str) -> tuple[str, str, str]:
    """The sentence, its words of at least `typos.LEAST` letters, and everything else; "" for a part that is empty."""
    parts = [(piece, long) for piece, long in pieces(sentence) if not piece.isspace()]
    return sentence, *(" ".join(piece for piece, long in parts if long is wanted) for wanted in (True, False))


def measure(encode: Any, pairs: list[tuple[str, str, float]]) -> dict[str, float]:
    """Figures of a model, in percent.

    Args:
        encode: n strings -> (n, d) embeddings.
        pairs: with sentences of which no part is empty.

    Returns:
        For each of `PARTS` ``STS``: Spearman's correlation where both sentences are that part of themselves; and
        ``found``: how many of the sentences of `unlike` have, among them, the embedding that is most similar to that
        of their part.
    """
    from hf_robustcse.evaluation.probes import find_again
    from hf_robustcse.evaluation.sts import Embeddings, spearman

    sentences = list(dict.fromkeys(sentence for a, b, _ in pairs for sentence in (a, b)))
    embeddings = Embeddings(encode, [part for sentence in sentences for part in cut(sentence)])
    gold = np.array([score for *_, score in pairs])
    alone, found = unlike(sentences), {}
    whole = embeddings(alone)
    for number, part in enumerate(PARTS):
        of = [(cut(a)[number], cut(b)[number], score) for a, b, score in pairs]
        found[f"{part}, STS"] = 100 * spearman(embeddings.cosines(of), gold, name=part)
        if number:
            queries = embeddings([cut(sentence)[number] for sentence in alone])
            hits, _ = find_again(whole, queries, np.arange(len(alone)))
            found[f"{part}, found"] = 100 * float(hits.mean())
    return found


def unlike(sentences: list[str]) -> list[str]:
    """The sentences of which no other one has the long words or the rest, so that each part can tell them apart."""
    parts = [cut(sentence.lower())[1:] for sentence in sentences]
    counts = [Counter(part[number] for part in parts) for number in (0, 1)]
    return [
        sentence for sentence, (long, rest) in zip(sentences, parts, strict=True)
        if counts[0][long] == counts[1][rest] == 1
    ]  # fmt: skip


def folders(name: str, place: Path) -> dict[str, Path]:
    """The models of a system: its seeds, or itself.

    Raises:
        UserError: if there is none.
    """
    found = {path.name.removeprefix("seed-"): path for path in sorted(place.glob("seed-*"))} or {"": place}
    for path in found.values():
        if not any((path / file).is_file() for file in ("config.json", "modules.json")):
            raise UserError(f"{name}={path}: there is no model, nor folders seed-0, seed-1 and so on with one")
    return found


@command
def main() -> None:
    parser = Parser(prog="python -m benchmarks.what_is_kept", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="a model, or a folder of seed-0, seed-1, ...")
    parser.add_argument("--pooling", help="of plain encoders; what this package exports says it itself")
    parser.add_argument("--data_dir", type=Path, help="folder with sts/ (default: the Hub)")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    check_output(args)
    if wrong := [word for word in args.models if not all(word.partition("="))]:
        raise UserError(f"{wrong[0]!r} is not of the form NAME=FOLDER")
    names = [word.partition("=")[0] for word in args.models]
    if len(set(names)) < len(names):
        raise UserError("each NAME=FOLDER needs a name of its own")
    systems = {name: folders(name, Path(place)) for name, _, place in (word.partition("=") for word in args.models)}
    from hf_robustcse.evaluation.embedders import load_embedder  # takes seconds to import: mistakes are told before
    from hf_robustcse.evaluation.sts import load_sts

    data = load_sts("STSB", args.data_dir)
    pairs = [pair for pair in data.pairs if all(part for sentence in pair[:2] for part in cut(sentence))]
    rows: dict[str, dict[str, dict[str, float]]] = {name: {} for name in systems}
    for name, seed, folder in tqdm([(n, s, f) for n, seeds in systems.items() for s, f in seeds.items()], unit="model"):
        own = (folder / "modules.json").is_file()
        rows[name][seed] = measure(load_embedder(str(folder), pooling=None if own else args.pooling), pairs)
    summary = {name: spread_over_seeds(list(seeds.values())) for name, seeds in rows.items()}
    record = {
        **machine(),
        "command": shlex.join(["python", "-m", "benchmarks.what_is_kept", *sys.argv[1:]]),
        "task": data.key, "sha256": data.sha256, "pairs": len(pairs), "of_pairs": data.n,
        "sentences_found_among": len(unlike(list(dict.fromkeys(s for pair in pairs for s in pair[:2])))),
        "least": LEAST, "rows": rows, "summary": summary,
    }  # fmt: skip
    print(table(record))
    if args.output_json:
        write_json(args.output_json, record)


def table(record: dict[str, Any]) -> str:
    """The summary as Markdown."""
    summary = record["summary"]
    names = list(next(iter(summary.values())))
    lines = [f"| | {' | '.join(names)} | seeds |", "|---" * (len(names) + 2) + "|"]
    for system, row in summary.items():
        lines.append(f"| `{system}` | {' | '.join(mean_and_std(row[name]) for name in names)} | {row[names[0]]['n']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
