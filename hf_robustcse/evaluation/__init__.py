"""Evaluation of any `encode` callable: a list of n strings in, an (n, d) array or tensor out.

`sts`, `transfer` and `geometry` score embeddings, `embedders` loads a model as such a callable, `run` is the whole
command, and `results` writes `results.json`. Import from the modules: this package loads nothing by itself.
"""
