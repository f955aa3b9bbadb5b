"""The attacks by name. Each only chooses parts, and states where it departs from its paper.

The parts and numbers are those of TextAttack 0.3.11's recipes, except where a departure says otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hf_robustcse.attacks.constraints import (
    EditDistance,
    MaxWordsChanged,
    PartOfSpeech,
    SentenceSimilarity,
    WordSimilarity,
)
from hf_robustcse.attacks.recipe import Constraint, Recipe, Transformation
from hf_robustcse.attacks.resources import Resources
from hf_robustcse.attacks.resources.language_model import LikelyPieces, MostLikely
from hf_robustcse.attacks.resources.lexicons import WordVectors
from hf_robustcse.attacks.resources.word_lists import LOOKALIKES, STOPWORDS, TEXTFOOLER_STOPWORDS
from hf_robustcse.attacks.transformations import (
    CharacterEdit,
    LikelyWords,
    Lookalikes,
    MaskedWords,
    Nearest,
    OneAtRandom,
    Synonyms,
    TaggedSynonyms,
    Union,
)
from hf_robustcse.errors import UserError

_PAIRS = "Of a premise and a hypothesis only the hypothesis changes."
_OWN_TAG = "Where a word stands twice in the tagger's context, it has its own tag; TextAttack takes the first one's."
_FAR_WORDS = (
    "A word behind the end of the masked language model's input is seen in a text that begins shortly before it; "
    "TextAttack has no candidates for it."
)
_NO_SPECIAL = "Special entries of the masked language model's vocabulary, such as [UNK], are no candidates."
_CHARACTERS = ("insert", "delete", "swap", "substitute")


def _nearest(resources: Resources, k: int, notes: list[str]) -> Nearest:
    table = resources.neighbours
    if table.longest is not None and table.longest < k:
        notes.append(f"{table.name} has at most {table.longest} neighbours of a word, where the recipe takes {k}.")
    return Nearest(table, k)


def _word_similarity(resources: Resources, threshold: float, notes: list[str]) -> tuple[Constraint, ...]:
    vectors = resources.neighbours
    if isinstance(vectors, WordVectors):
        return (WordSimilarity(vectors, threshold),)
    notes.append(f"Word-vector cosine >= {threshold} is not checked: {vectors.name} lists neighbours without cosines.")
    return ()


def _part_of_speech(resources: Resources, notes: list[str]) -> tuple[Constraint, ...]:
    if resources.tagger is None:
        notes.append("Parts of speech are not checked (--pos_tagger none).")
        return ()
    notes.append(_OWN_TAG)
    return (PartOfSpeech(resources.tagger),)


def _similarity(resources: Resources, notes: list[str], **settings: Any) -> tuple[Constraint, ...]:
    if resources.encoder is None:
        notes.append("The similarity of the texts is not checked (--sentence_encoder none).")
        return ()
    notes.append(
        f"{resources.encoder.name} measures the similarity of texts in place of the Universal Sentence Encoder, under "
        "thresholds that were chosen for that one: not comparable with USE figures."
    )
    return (SentenceSimilarity(resources.encoder.encode, resources.encoder.name, **settings),)


def textfooler(
    resources: Resources,
    *,
    k: int = 50,
    min_word_cosine: float = 0.5,
    min_similarity: float = 0.840845057,
    window: int = 15,
) -> Recipe:
    """TextFooler (Jin et al. 2020): nearest words in counter-fitted vectors.

    Args:
        resources: word neighbours, tagger, sentence encoder.
        k: neighbours of a word.
        min_word_cosine: of the new word's vector and the original word's, in [-1, 1].
        min_similarity: angular, of the text around the change before and after it, in [0, 1].
        window: words of this text; shorter texts pass.
    """
    notes: list[str] = []
    return Recipe(
        "textfooler",
        "Jin et al. 2020, Is BERT Really Robust?, arXiv:1907.11932",
        _nearest(resources, k, notes),
        (
            *_word_similarity(resources, min_word_cosine, notes),
            *_part_of_speech(resources, notes),
            *_similarity(
                resources,
                notes,
                threshold=min_similarity,
                metric="angular",
                window=window,
                against="previous",
                short_pass=True,
            ),
        ),
        ranking="delete",
        stopwords=TEXTFOOLER_STOPWORDS,
        departures=(
            "A text is compared with the one before its last change, as in TextAttack and the authors' code.",
            *notes,
        ),
    )


def textbugger(resources: Resources, *, k: int = 5, min_similarity: float = 0.8) -> Recipe:
    """TextBugger (Li et al. 2019): misspellings, look-alikes and nearest words.

    Args:
        resources: word neighbours, sentence encoder.
        k: neighbours of a word.
        min_similarity: angular, of the whole text and the original one, in [0, 1].
    """
    notes: list[str] = []
    parts: tuple[Transformation, ...] = (
        CharacterEdit("insert", inner=True, letters=" "),
        CharacterEdit("delete", inner=True),
        CharacterEdit("swap", inner=True),
        Lookalikes(LOOKALIKES),
        _nearest(resources, k, notes),
    )
    return Recipe(
        "textbugger",
        "Li et al. 2019, TextBugger, arXiv:1812.05271",
        Union(parts),
        _similarity(resources, notes, threshold=min_similarity, metric="angular"),
        ranking="delete",
        stopwords=STOPWORDS,
        departures=(
            "The similarity is angular, as in TextAttack; the paper's is the cosine.",
            "Words are ranked by deletion over the whole text; the paper ranks sentences first.",
            "The two halves of a word with a space in it stay one position; TextAttack counts on with two.",
            _PAIRS,
            *notes,
        ),
    )


def pwws(resources: Resources) -> Recipe:
    """PWWS (Ren et al. 2019): synonyms, by saliency and gain.

    Args:
        resources: synonyms.
    """
    return Recipe(
        "pwws",
        "Ren et al. 2019, Generating Natural Language Adversarial Examples through Probability Weighted Word Saliency, "
        "ACL 2019 (P19-1103)",
        Synonyms(resources.synonym_table, resources.synonyms),
        ranking="weighted-saliency",
        stopwords=STOPWORDS,
        departures=(
            "Named entities are not exchanged, and synonyms of all parts of speech count, as in TextAttack.",
            "Words are ranked by scores, not by differences of scores, and replaced only where that helps, as in "
            "TextAttack.",
            _PAIRS,
        ),
    )


def pwws_openattack(resources: Resources) -> Recipe:
    """PWWS as OpenAttack 1.x and 2.x have it: best synonym of each word once, then replaced in order, without a look.

    Args:
        resources: WordNet as synonyms, tagger.
    """
    notes: list[str] = []
    if resources.tagger is None:
        notes.append("Synonyms of all parts of speech count (--pos_tagger none); phrases are dropped.")
        transformation: Transformation = Synonyms(resources.synonym_table, resources.synonyms)
    else:
        transformation = TaggedSynonyms(resources.tagged_synonyms, resources.synonyms, resources.tagger)
        notes.append(
            f"The tagger sees {transformation.before} words before a word and {transformation.after} behind it, "
            "without punctuation; OpenAttack's sees the whole text."
        )
    return Recipe(
        "pwws-openattack",
        "Zeng et al. 2021, OpenAttack, arXiv:2009.09191, after Ren et al. 2019 (P19-1103)",
        transformation,
        ranking="its own",
        search="in-order",
        stopwords=STOPWORDS,
        departures=(
            "Spacing and punctuation stay as they are; OpenAttack puts its tokens together again.",
            "No query is spent on words without synonyms and on stop-words, which changes no order.",
            "The stop-words are those of the other recipes, not OpenAttack's own list.",
            _PAIRS,
            *notes,
        ),
    )


def bae(resources: Resources, *, k: int = 50, min_similarity: float = 0.936338023, window: int = 15) -> Recipe:
    """BAE-R (Garg and Ramakrishnan 2020): what a language model puts in place of the masked word.

    Args:
        resources: masked language model, tagger, sentence encoder.
        k: words of the model.
        min_similarity: cosine of the text around the change and the original one, in [-1, 1].
        window: words of this text; shorter texts pass.
    """
    notes: list[str] = []
    return Recipe(
        "bae",
        "Garg and Ramakrishnan 2020, BAE, arXiv:2004.01970 (BAE-R, replacements)",
        MaskedWords(MostLikely(resources.language_model, k)),
        (
            *_part_of_speech(resources, notes),
            *_similarity(resources, notes, threshold=min_similarity, window=window, short_pass=True),
        ),
        ranking="delete",
        stopwords=STOPWORDS,
        departures=(_FAR_WORDS, _NO_SPECIAL, _PAIRS, *notes),
    )


def bert_attack(resources: Resources, *, k: int = 48, max_share: float = 0.4, min_similarity: float = 0.2) -> Recipe:
    """BERT-Attack (Li et al. 2020): what a language model finds likely where the word stands.

    Args:
        resources: masked language model, sentence encoder.
        k: entries of the model a piece, and candidates of a word: 48 in the paper, 8 in TextAttack 0.3.11.
        max_share: of the words that may change.
        min_similarity: cosine of the whole text and the original one, in [-1, 1].
    """
    notes: list[str] = []
    return Recipe(
        "bert-attack",
        "Li et al. 2020, BERT-ATTACK, arXiv:2004.09984",
        LikelyWords(LikelyPieces(resources.language_model, k)),
        (MaxWordsChanged(max_share), *_similarity(resources, notes, threshold=min_similarity)),
        ranking="unk",
        stopwords=STOPWORDS,
        departures=(
            *([] if k == 8 else [f"The k is {k}; the paper and TextAttack 0.3.10 have 48, TextAttack 0.3.11 has 8."]),
            "The combinations of a word's pieces count in the order of their product, not of their perplexity, as in "
            "TextAttack.",
            "A word is cut into pieces as in its text; TextAttack cuts it alone.",
            _FAR_WORDS,
            _NO_SPECIAL,
            _PAIRS,
            *notes,
        ),
    )


def deepwordbug(resources: Resources, *, max_edits: int = 30) -> Recipe:
    """DeepWordBug (Gao et al. 2018): one random edit of each kind.

    Args:
        resources: none.
        max_edits: Levenshtein distance from the original text.
    """
    return Recipe(
        "deepwordbug",
        "Gao et al. 2018, Black-box Generation of Adversarial Text Sequences, arXiv:1801.04354",
        Union(tuple(CharacterEdit(kind) for kind in ("swap", "substitute", "delete", "insert"))),
        (EditDistance(max_edits),),
        ranking="delete",
        stopwords=STOPWORDS,
        departures=(
            "Words are ranked by deletion, and stop-words stay, as in TextAttack; the paper has scores of its own.",
            _PAIRS,
        ),
    )


def random_substitution(resources: Resources, *, substitute: str = "synonyms") -> Recipe:
    """The baseline: words in random order, one random substitute each, kept where it helps.

    Args:
        resources: synonyms or word neighbours, as the substitute needs.
        substitute: synonyms, neighbours (one of 8) or characters (one edit).
    """
    notes: list[str] = []
    if substitute == "synonyms":
        of: Transformation = Synonyms(resources.synonym_table, resources.synonyms)
    elif substitute == "neighbours":
        of = _nearest(resources, 8, notes)
    elif substitute == "characters":
        of = Union(tuple(CharacterEdit(kind) for kind in _CHARACTERS))
    else:
        raise UserError(f"random: substitute is synonyms, neighbours or characters, not {substitute!r}")
    return Recipe(
        "random",
        "baseline without a paper: words in random order, one random substitute each, kept if the score rises",
        OneAtRandom(of),
        ranking="random",
        stopwords=STOPWORDS,
        departures=tuple(notes),
    )


RECIPES: dict[str, Callable[..., Recipe]] = {
    "textfooler": textfooler,
    "textbugger": textbugger,
    "pwws": pwws,
    "bae": bae,
    "bert-attack": bert_attack,
    "deepwordbug": deepwordbug,
    "pwws-openattack": pwws_openattack,
    "random": random_substitution,
}
"""Name -> what makes the recipe out of resources and parameters."""


def recipe_parameters(name: str) -> dict[str, int | float | str]:
    """The parameters of a recipe and their defaults.

    Raises:
        UserError: for an unknown recipe.
    """
    if name not in RECIPES:
        raise UserError(f"unknown attack {name!r}; known: {', '.join(RECIPES)}")
    signature = inspect.signature(RECIPES[name])
    return {key: value.default for key, value in signature.parameters.items() if key != "resources"}


def build_recipe(name: str, resources: Resources, **parameters: int | float | str) -> Recipe:
    """A recipe.

    Args:
        name: of `RECIPES`.
        resources: where it finds words and models; what it does not need is not loaded.
        **parameters: that differ from `recipe_parameters(name)`; numbers may be strings.

    Raises:
        UserError: for an unknown name, an unknown or bad parameter, or a resource that is absent.
    """
    defaults = recipe_parameters(name)
    values = {}
    for key, value in parameters.items():
        if key not in defaults:
            known = f"it has {', '.join(defaults)}" if defaults else "it has none"
            raise UserError(f"the attack {name} has no parameter {key!r}; {known}")
        values[key] = _checked(name, key, value, type(defaults[key]))
    return RECIPES[name](resources, **values)


def _checked(name: str, key: str, value: Any, kind: type) -> int | float | str:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = None
    good = kind is str or (number is not None and (number >= 1 if kind is int else -1 <= number <= 1))
    if not good or (kind is int and float(value) != number):
        wanted = "a whole number from 1" if kind is int else "a number in [-1, 1]"
        raise UserError(f"{key} of the attack {name} must be {wanted}, not {value!r}")
    return number
