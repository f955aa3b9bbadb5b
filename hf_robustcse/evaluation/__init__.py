"""Evaluation of any `encode` callable: a list of n strings in, an (n, d) array or tensor out.

`sts`, `transfer`, `geometry` and `probes` score embeddings, `uncertainty` says how sure an STS score is, `pictures`
draws the probes, `noise_curves` and `checklist` judge robustness, `robust_sets` a perturbed test
set with the `operators` and their `word_lists`, `known_sets` loads published ones, `dev_file` reads a dev set of the
user's own, `embedders` loads a model as such a callable, `baselines` word vectors and whitening, `run` is the whole
command, `compare` that for two models, and `results` writes `results.json`. Import from the modules: this package loads
nothing by itself.
"""
