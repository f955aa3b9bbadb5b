"""What recipes need beyond the victim: synonyms, word neighbours, masked words, a sentence encoder, a tagger.

Each is named by an option and loaded when a recipe first asks for it. What is absent is an error that says where to get
it: a recipe never weakens silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hf_robustcse.attacks.engine import Service
from hf_robustcse.attacks.resources.language_model import LanguageModel
from hf_robustcse.attacks.resources.lexicons import (
    WORDNET,
    Lookup,
    NeighbourTable,
    WordVectors,
    listed_synonyms,
    load_neighbours,
    wordnet_by_tag,
    wordnet_lemmas,
)
from hf_robustcse.attacks.resources.taggers import NLTK, ModelTagger, NltkTagger
from hf_robustcse.errors import UserError

__all__ = ["Encoder", "Resources", "wordnet_lemmas"]

NONE = "none"


@dataclass(frozen=True)
class Encoder:
    """A sentence encoder that judges how similar texts are.

    Attributes:
        encode: a service: n texts -> n embeddings.
        name: for the results.
    """

    encode: Service
    name: str


@dataclass
class Resources:
    """What recipes may use, by the names of options; a loaded resource may also be set as an attribute.

    Attributes:
        victim: name of the model under attack, which cannot be its own judge.
        device: of the models, for example cpu or cuda:0; None takes an accelerator if there is one.
    """

    synonyms: str = field(
        default=WORDNET, metadata={"help": "wordnet, or a file with tab-separated synonyms on each line."}
    )
    word_neighbours: str | None = field(
        default=None,
        metadata={
            "help": "Word vectors as text (word2vec or GloVe format, also .gz), such as the counter-fitted ones, or a "
            "table of neighbours as JSON (also .gz)."
        },
    )
    masked_lm: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id of a masked language model; the papers have bert-base-uncased."},
    )
    sentence_encoder: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id of a sentence encoder that judges similarity, not the victim; or none."},
    )
    pos_tagger: str = field(
        default=NLTK, metadata={"help": "nltk, folder or Hub id of a token-classification model, or none."}
    )
    victim: str | None = field(default=None, init=False)
    device: str | None = field(default=None, init=False)

    @cached_property
    def synonym_table(self) -> Lookup:
        """Word -> synonyms."""
        return wordnet_lemmas() if self.synonyms == WORDNET else listed_synonyms(self.synonyms)

    @cached_property
    def tagged_synonyms(self) -> Callable[[str, str], list[str]]:
        """Word and universal tag -> synonyms of this part of speech."""
        if self.synonyms != WORDNET:
            raise UserError(
                f"--synonyms {self.synonyms} knows no parts of speech: this recipe needs --synonyms wordnet"
            )
        return wordnet_by_tag()

    @cached_property
    def neighbours(self) -> WordVectors | NeighbourTable:
        """The neighbours of words."""
        if not self.word_neighbours:
            raise UserError(
                "this recipe needs word neighbours: --word_neighbours FILE, word vectors in text format (the papers "
                "have the counter-fitted ones, counter-fitted-vectors.txt of github.com/nmrksic/counter-fitting) or a "
                "JSON table of neighbours"
            )
        return load_neighbours(self.word_neighbours)

    @cached_property
    def language_model(self) -> LanguageModel:
        """The masked language model."""
        if not self.masked_lm:
            raise UserError(
                "this recipe needs a masked language model: --masked_lm bert-base-uncased (the papers' one), or any "
                "folder or Hub id; hf-robustcse prefetch --model ID fetches one"
            )
        return LanguageModel.load(self.masked_lm, self.device)

    @cached_property
    def encoder(self) -> Encoder | None:
        """The sentence encoder; None where the option is `none`."""
        name = self.sentence_encoder
        if not name:
            raise UserError(
                "this recipe needs a sentence encoder that judges similarity: --sentence_encoder with a folder or Hub "
                "id other than the victim, such as sentence-transformers/all-MiniLM-L6-v2 (hf-robustcse prefetch "
                "--model ID fetches one); --sentence_encoder none leaves the constraint out, which the results state"
            )
        if name == NONE:
            return None
        if self.victim and (name == self.victim or Path(name).resolve() == Path(self.victim).resolve()):
            raise UserError(f"--sentence_encoder {name} is the victim, which cannot judge itself: name another encoder")
        from hf_robustcse.evaluation.embedders import load_embedder  # sentence-transformers takes seconds to import

        embedder = load_embedder(name, device=self.device)
        embedder.alone = True
        return Encoder(embedder, name)

    @cached_property
    def tagger(self) -> NltkTagger | ModelTagger | None:
        """The tagger of parts of speech; None where the option is `none`."""
        if self.pos_tagger == NONE:
            return None
        return NltkTagger() if self.pos_tagger == NLTK else ModelTagger.load(self.pos_tagger, self.device)
