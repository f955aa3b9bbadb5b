"""How scores fall as more words are perturbed, by typos or synonyms (`hf_robustcse.typos`, `.synonyms`); no training.

The pairs of an STS set keep their gold scores while a part of the words of their sentences is perturbed. That is exact
for typos, which leave the meaning; a synonym of WordNet may be one of another sense, so that a fall under synonyms is
not the encoder's fault alone. Every model reads the same perturbed texts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.probes import find_again
from hf_robustcse.evaluation.results import task_record
from hf_robustcse.evaluation.sts import Embeddings, Encode, Pair, StsData, spearman
from hf_robustcse.synonyms import Synonyms, load_wordnet, read_word_list, replace_words
from hf_robustcse.typos import add_typos

RATES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
SEEDS = (1000, 1001, 1002)
"""None that a run would have: with `--augmentation typos` it makes its typos by the same function."""
PERTURBED = ("both", "second")
CURVES = ("spearman", "cosine", "retrieval")
Perturb = Callable[[str, float, int], str]
"""A sentence, the rate and the seed -> the perturbed sentence, always the same."""


def check_rates(rates: Sequence[float] | None) -> list[float]:
    """The rates in ascending order, 0 among them; None gives `RATES`.

    Raises:
        UserError: for a rate outside [0, 1], or none above 0.
    """
    if wrong := [rate for rate in rates or () if not 0 <= rate <= 1]:
        raise UserError(f"--noise_rates must be between 0 and 1, not {wrong[0]:g}")
    found = sorted({0.0, *(RATES if rates is None else map(float, rates))})
    if len(found) < 2:
        raise UserError("--noise_rates needs at least one rate above 0")
    return found


def perturbations(word_list: str | None = None, *, strict: bool = False) -> tuple[dict[str, Perturb], str | None]:
    """The kinds of noise that can be made here.

    Args:
        word_list: a file of synonyms (`synonyms.read_word_list`) in place of WordNet.
        strict: whether it is an error that there are no synonyms.

    Returns:
        `typos`, and `synonyms` if WordNet is here or a word list is given, each with its function; and None, or why
        there are no synonyms.

    Raises:
        UserError: for a word list that cannot be read; without any synonyms, if `strict`.
    """
    kinds: dict[str, Perturb] = {"typos": lambda text, rate, seed: add_typos(text, rate=rate, seed=seed)}
    try:
        synonyms = read_word_list(word_list) if word_list else load_wordnet(otherwise="pass --noise_word_list FILE")
    except UserError as error:
        if strict or word_list:
            raise
        return kinds, str(error)
    return kinds | {"synonyms": _replace(synonyms)}, None


def _replace(synonyms: Synonyms) -> Perturb:
    return lambda text, rate, seed: replace_words(text, synonyms, rate=rate, seed=seed) if rate else text


def noise_curve(
    encode: Encode,
    data: StsData,
    perturb: Perturb,
    *,
    rates: Sequence[float] | None = None,
    perturbed: str = "both",
    originals: Embeddings | None = None,
) -> dict[str, Any]:
    """One kind of noise on one STS set; each distinct sentence, as it is or perturbed, is encoded once.

    A sentence is perturbed in the same way wherever it stands, three times with `SEEDS`; the values are means over
    them. At a rate above 0 at least one word of each sentence is perturbed, where one can be.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not.
        data: the pairs, whose gold scores stay as they are.
        perturb: makes the noise.
        rates: probabilities that a word is perturbed, as `check_rates` reads them.
        perturbed: `both` sentences of a pair, as is common, or the `second` alone.
        originals: embeddings that hold the sentences of the set, so that they are not encoded again.

    Returns:
        `rates`, and in their order: `spearman` of cosine and gold score x 100 and `spearman_std` (sample standard
        deviation over the seeds); over the sentences that were changed `cosine` to the original and `retrieval`, how
        often the original is the most similar of all sentences of the set, x 100 (1 and 100 at rate 0);
        `words_changed`, the share x 100 of the original's words (between white space) that are gone. `relative`:
        for each of the three curves 100 times the mean over the rates above 0 of its value over that at rate 0, None
        where that is not above 0. `perturbed`, `seeds`, `n` pairs, `sentences` that are perturbed, `changed` of them
        at the highest rate.

    Raises:
        UserError: for rates out of range, noise that changes no sentence, or embeddings that are not finite.
    """
    rates, sentences = check_rates(rates), data.sentences
    chosen, versions = _versions(data, perturb, rates, perturbed)
    index = {text: row for row, text in enumerate(sentences)}
    new = list(dict.fromkeys(text for texts in versions.values() for text in texts if text not in index))
    clean = Embeddings.of(originals or encode, sentences)(sentences)
    unit = np.concatenate([clean, Embeddings(encode, new).unit])
    index |= {text: len(sentences) + row for row, text in enumerate(new)}
    place = {text: row for row, text in enumerate(chosen)}
    own = np.array([index[text] for text in chosen])
    first, second = ([pair[side] for pair in data.pairs] for side in (0, 1))

    def measure(texts: Sequence[str]) -> dict[str, float]:
        """The values of one rate and seed, from the perturbed version of each of `chosen`."""
        rows = np.array([index[text] for text in texts])
        left = [rows[place[text]] if perturbed == "both" else index[text] for text in first]
        right = [rows[place[text]] for text in second]
        cosines = np.einsum("nd,nd->n", unit[left], unit[right]).round(12)  # rounded as in `Embeddings.cosines`
        changed = np.flatnonzero(rows != own)
        found, near = find_again(clean, unit[rows[changed]], own[changed])
        return {
            "spearman": 100 * spearman(cosines, data.gold, name=data.key),
            "cosine": float(near.mean()) if len(changed) else 1.0,
            "retrieval": 100 * float(found.mean()) if len(changed) else 100.0,
            "words_changed": 100 * float(np.mean([_gone(*pair) for pair in zip(chosen, texts, strict=True)])),
            "changed": len(changed),
        }

    measured = [[measure(chosen)]] + [[measure(versions[rate, seed]) for seed in SEEDS] for rate in rates[1:]]
    names = (*CURVES, "words_changed")
    curves = {name: [float(np.mean([values[name] for values in rate])) for rate in measured] for name in names}
    spread = [float(np.std([values["spearman"] for values in rate], ddof=1)) for rate in measured[1:]]
    return {
        "rates": rates,
        **curves,
        "spearman_std": [0.0, *spread],
        "relative": {name: _relative(curves[name]) for name in CURVES},
        "perturbed": perturbed,
        "seeds": list(SEEDS),
        "n": data.n,
        "sentences": len(chosen),
        "changed": round(float(np.mean([values["changed"] for values in measured[-1]]))),
    }


def _versions(
    data: StsData, perturb: Perturb, rates: Sequence[float], perturbed: str
) -> tuple[list[str], dict[tuple[float, int], list[str]]]:
    """The sentences that are perturbed, and (rate above 0, seed) -> what becomes of each."""
    if perturbed not in PERTURBED:
        raise UserError(f"perturbed must be one of {', '.join(PERTURBED)}, not {perturbed!r}")
    chosen = data.sentences if perturbed == "both" else list(dict.fromkeys(pair[1] for pair in data.pairs))
    versions = {(rate, seed): [perturb(text, rate, seed) for text in chosen] for rate in rates[1:] for seed in SEEDS}
    if {*itertools.chain.from_iterable(versions.values())} <= {*data.sentences}:
        raise UserError(f"{data.key}: the noise changes no sentence; do they hold words, and does the word list?")
    return chosen, versions


def noisy_pairs(
    data: StsData, perturb: Perturb, *, rates: Sequence[float] | None = None, perturbed: str = "both"
) -> list[list[Pair]]:
    """The pairs of a set under one kind of noise, as `noise_curve` scores them: a list for each rate above 0 and seed.

    Args:
        data: the pairs, whose gold scores stay as they are.
        perturb: as in `noise_curve`, as the next two.
        rates: see there.
        perturbed: see there.

    Raises:
        UserError: see there.
    """
    chosen, versions = _versions(data, perturb, check_rates(rates), perturbed)
    found = []
    for texts in versions.values():
        new = dict(zip(chosen, texts, strict=True))
        left = new if perturbed == "both" else {}
        found.append([(left.get(first, first), new[second], gold) for first, second, gold in data.pairs])
    return found


def _gone(text: str, other: str) -> float:
    """The share of a text's words that another does not have, each counted as often as it is there."""
    words = Counter(text.split())
    return (words - Counter(other.split())).total() / words.total()


def _relative(curve: Sequence[float]) -> float | None:
    return 100 * float(np.mean(curve[1:])) / curve[0] if curve[0] > 0 else None


def evaluate_noise(
    encode: Encode,
    sets: Sequence[StsData],
    kinds: Mapping[str, Perturb],
    *,
    rates: Sequence[float] | None = None,
    perturbed: str = "both",
    originals: Embeddings | None = None,
) -> dict[str, dict[str, Any]]:
    """The curves of several sets.

    Args:
        encode: as in `noise_curve`.
        sets: the pairs.
        kinds: of noise, from `perturbations`.
        rates: as in `noise_curve`, as the next two.
        perturbed: see there.
        originals: see there.

    Returns:
        Kind -> `StsData.key` -> the result of `noise_curve` with split, source and checksum of the pairs.
    """
    return {
        kind: {
            data.key: task_record(
                noise_curve(encode, data, perturb, rates=rates, perturbed=perturbed, originals=originals), data
            )
            for data in sets
        }
        for kind, perturb in kinds.items()
    }


def noise_lines(noise: Mapping[str, Any]) -> list[str]:
    """The table of `evaluate_noise`, as lines of text."""
    lines = []
    for kind, records in noise.items():
        for key, record in records.items():
            sides = "both sentences" if record["perturbed"] == "both" else "the second sentence"
            lines += ["", f"noise curves of {key}: {kind} in {sides}, mean of {len(record['seeds'])} noise seeds"]
            lines.append(f"{'rate of words':<16}" + "".join(f"{rate:>8g}" for rate in record["rates"]) + "  relative")
            for name, digits, said in (
                ("spearman", 2, "Spearman x100"), ("cosine", 3, "cosine"), ("retrieval", 2, "found again %"),
                ("words_changed", 2, "words changed %"),
            ):  # fmt: skip
                line = f"{said:<16}" + "".join(f"{value:>8.{digits}f}" for value in record[name])
                if name in record["relative"]:
                    whole = record["relative"][name]
                    line += f"{'-':>10}" if whole is None else f"{whole:>10.2f}"
                lines.append(line)
    return lines
