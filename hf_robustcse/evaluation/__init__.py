"""Evaluation of any `encode` callable: a list of n strings in, an (n, d) array or tensor out.

`sts` and `geometry` score embeddings, `uncertainty` says how sure a score is, `embedders` loads a model as such a
callable, `baselines` word vectors and whitening, `run` is the whole command, `compare` that for two models, and
`results` writes `results.json`. Import from the modules: this package loads nothing by itself.
"""
