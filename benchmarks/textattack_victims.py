"""Our victims as TextAttack's model wrappers: run by the interpreter of an environment with TextAttack.

    PYTHONPATH=. NLTK_DATA=nltk_data ta/bin/python benchmarks/textattack_victims.py --victim MODEL \
        --dataset_file data/attack/MR/test1k.tsv

TextAttack's PWWS attacks a `Classifier` as it stands, and must end as with a wrapper of its own that pads to the
longest text of a batch; then an `EncoderWithHead`, whose head is fitted to the first examples. (The package as a whole
needs a newer transformers than TextAttack allows; these two classes do not.)
"""

from __future__ import annotations

import argparse

import torch
from sklearn.linear_model import LogisticRegression
from textattack_worker import Dynamic, PWWSRen2019, outcome
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_robustcse.attacks.victims import Classifier, EncoderWithHead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victim", required=True, help="classifier of transformers")
    parser.add_argument("--dataset_file", required=True, help="tab-separated: label, text")
    parser.add_argument("--examples", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with open(args.dataset_file, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    labels, texts = [int(label) for label, _ in rows], [text for _, text in rows]
    model = AutoModelForSequenceClassification.from_pretrained(args.victim).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.victim)

    def encode(batch: list[str]) -> torch.Tensor:
        features = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            return model.base_model(**features).last_hidden_state[:, 0]

    head = LogisticRegression(max_iter=1000).fit(encode(texts[:200]).numpy(), labels[:200])
    victims = {
        "TextAttack's wrapper": Dynamic(model, tokenizer),
        "Classifier": Classifier(model, tokenizer),
        "EncoderWithHead": EncoderWithHead(encode, head),
    }
    found = {}
    for name, victim in victims.items():
        attack = PWWSRen2019.build(victim)
        found[name] = [outcome(attack.attack(texts[i], labels[i])) for i in range(args.examples)]
        print(name, *((one["status"], one["queries"]) for one in found[name]))
    same = [
        all(a[key] == b[key] for key in ("status", "columns", "queries"))
        for a, b in zip(found["TextAttack's wrapper"], found["Classifier"], strict=True)
    ]
    print(f"Classifier: {sum(same)} of {len(same)} outcomes are those of TextAttack's wrapper")


if __name__ == "__main__":
    main()
