"""Freeze outcomes of TextAttack's PWWS on hand-made texts with the victim of near_free.py, for tests/attacks.

    NLTK_DATA=nltk_data python benchmarks/make_golden_attacks.py --textattack_python ta/bin/python

The test replays them through hf_robustcse.attacks with the synonyms frozen here, so it needs no WordNet.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attack_peer import TextAttack
from near_free import near_free

from hf_robustcse.attacks.resources import wordnet_lemmas
from hf_robustcse.attacks.text import Document
from hf_robustcse.errors import Parser, command
from hf_robustcse.files import atomic_write_text

OUTPUT = Path(__file__).parents[1] / "tests" / "attacks" / "golden_pwws.json"
TEXTS = [
    "a gripping film , played with quiet charm and touching honesty .",
    "The plot is thin, the jokes are stale; nothing works!",
    "Superb!",
    "dull",
    "of the and to",
    "xyzzy plugh",
    "She can't believe the actor's well-known, old-fashioned manner.",
    "boring, boring, boring movie: a boring movie for bored people",
    "The THE the Film FILM film",
    'He said "wonderful" (twice) -- and then he left...',
    "rock 'n' roll never dies, y'all",
    "Mr. O'Neil's mother-in-law bought 3 cheap tickets at 9.50 each",
    "email me @ home * or_call me-later - okay",
    "  spaces   everywhere ,\u00a0odd ones too  ",
    "caf\u00e9 owners na\u00efvely served a d\u00e9j\u00e0 vu dessert",
    "The quick brown fox jumps over the lazy dog",
    "Terrible service, cold soup and a rude waiter; we shall never return.",
    "A warm, funny and clever little story that my whole family enjoyed",
    "I can not say that it was good , but I did not hate it either .",
    "Good good Good",
    "what a waste of time and money",
    "brilliant direction cannot rescue a script this poor",
    "The museum opens at noon/midnight & closes late.",
    "An honest, thoughtful portrait of a difficult man (and his patient wife).",
    "state-of-the-art effects, second-rate acting",
    "It is what it is",
]
PAIRS = [
    ("A man is playing a guitar on the street .", "A person makes music outside ."),
    ("Two dogs run through the snow.", "The animals sleep."),
    ("The old woman reads a newspaper", "She's reading; nobody is watching TV."),
    ("I left .", "I stayed ."),
]
WRONG = {1, 16}  # texts whose label is made wrong: attacks skip them


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--textattack_python", required=True, help="interpreter of an environment with TextAttack")
    parser.add_argument("--output_json", type=Path, default=OUTPUT)
    args = parser.parse_args()
    examples = []
    for columns in [*({"text": text} for text in TEXTS), *({"premise": a, "hypothesis": b} for a, b in PAIRS)]:
        first, second = near_free([" ".join(columns.values())])[0]
        examples.append({"columns": columns, "label": int(second > first) ^ (len(examples) in WRONG)})
    with TextAttack(args.textattack_python) as worker:
        outcomes = worker.attack("near_free", examples)["outcomes"]
    stopwords = sorted(worker.about["stopwords"])
    lemmas = wordnet_lemmas()
    words = {word for example in examples for word in Document(example["columns"]).words} - set(stopwords)
    versions = worker.about["versions"]
    record = {
        "about": f"Outcomes of PWWSRen2019 of TextAttack {versions['textattack']} with the victim of "
        "benchmarks/near_free.py, made by benchmarks/make_golden_attacks.py. Both columns of a pair may change. The "
        "synonyms are lemmas of WordNet 3.0 (Princeton University).",
        "versions": {name: versions[name] for name in ("textattack", "nltk", "numpy", "torch")},
        "stopwords": " ".join(stopwords),
        "synonyms": {word: " ".join(found) for word in sorted(words) if (found := lemmas(word))},
        "examples": [{**example, "outcome": outcome} for example, outcome in zip(examples, outcomes, strict=True)],
    }
    atomic_write_text(args.output_json, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for example, outcome in zip(examples, outcomes, strict=True):
        print(outcome["status"], outcome["queries"], *example["columns"].values(), "->", *outcome["columns"].values())


if __name__ == "__main__":
    main()
