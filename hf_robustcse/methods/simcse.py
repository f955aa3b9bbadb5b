"""SimCSE (Gao et al. 2021): the baseline under every other method."""

from __future__ import annotations

from hf_robustcse.methods.base import Method, Paper


class SimCSE(Method):
    """Contrast a sentence with itself under another dropout mask, SimCSE eq. 1 (supervised: eq. 5).

    The in-batch InfoNCE loss is what every contrastive method here shares, so nothing is left to add. Paper: head
    Linear-Tanh on [CLS] while training, temperature 0.05, length 32, one epoch of 10^6 Wikipedia sentences; BERT-base
    batch 64 and lr 3e-5, BERT-large 64 and 1e-5, RoBERTa-base 512 and 1e-5, RoBERTa-large 512 and 3e-5. Supervised:
    batch 512, lr 5e-5 (base), 3 epochs.
    """

    name = "simcse"
    head = "tanh"
    paper = Paper(
        title="SimCSE: Simple Contrastive Learning of Sentence Embeddings",
        arxiv="2104.08821",
        bibtex="""@inproceedings{gao2021simcse,
  title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2021}
}""",
        reported={
            "bert-base-uncased": {"sts_avg": 76.25},
            "roberta-base": {"sts_avg": 76.57},
            "roberta-large": {"sts_avg": 78.90},
        },
    )
