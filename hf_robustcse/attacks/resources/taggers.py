"""Parts of speech in the universal tag set (Petrov et al. 2012), as services of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers  # its models load on first use
from torch import nn

from hf_robustcse.attacks.victims import batches_of_tokens
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.padding import padded

NLTK = "nltk"
UNKNOWN = "X"

# Universal tag -> the tags of the Penn treebank, and those of Universal Dependencies that have another name there.
_TAGS = {
    "NOUN": "NN NNS NNP NNPS NP PROPN",
    "VERB": "VB VBD VBG VBN VBP VBZ MD VP AUX",
    "ADJ": "JJ JJR JJS",
    "ADV": "RB RBR RBS WRB",
    "PRON": "PRP PRP$ WP WP$",
    "DET": "DT EX PDT WDT",
    "ADP": "IN",
    "NUM": "CD",
    "CONJ": "CC CCONJ SCONJ",
    "PRT": "POS RP TO PART",
    ".": "# $ '' `` ( ) , : -LRB- -RRB- ! ? PUNCT",
    UNKNOWN: "FW LS SYM UH INTJ",
}
_UNIVERSAL = {tag: universal for universal, tags in _TAGS.items() for tag in (universal, *tags.split())}

Words = tuple[str, ...]


def universal(tag: str) -> str:
    """The universal tag of a tag of the Penn treebank, of Universal Dependencies, or of the universal set itself."""
    return _UNIVERSAL.get(tag, UNKNOWN)


class NltkTagger:
    """NLTK's averaged perceptron, in English.

    Raises:
        UserError: if there is no nltk or its model is not here.
    """

    name = "nltk averaged_perceptron_tagger_eng"

    def __init__(self) -> None:
        try:
            from nltk.tag.perceptron import PerceptronTagger
        except ImportError as error:
            raise UserError(
                "parts of speech are found with nltk: pip install hf_robustcse[wordnet], or name a model: --pos_tagger"
            ) from error
        try:
            self._tagger = PerceptronTagger(lang="eng")
        except (LookupError, OSError) as error:
            raise UserError(
                "there is no part-of-speech tagger here: python -m nltk.downloader averaged_perceptron_tagger_eng (or "
                "put its folder into NLTK_DATA/taggers), name a token-classification model with --pos_tagger, or leave "
                "the constraint out with --pos_tagger none, which the results then state"
            ) from error

    def __call__(self, items: list[Words]) -> list[Words]:
        """The universal tags of the words of each item."""
        return [tuple(universal(tag) for _, tag in self._tagger.tag(list(words))) for words in items]


class ModelTagger:
    """A token-classification model of transformers; a word has the tag of its first piece.

    Args:
        model: AutoModelForTokenClassification whose labels are parts of speech.
        tokenizer: its tokenizer.
        name: for the results.
        batch_tokens: tokens of a forward pass; None for 2048 on a CPU and 65536 elsewhere.

    Raises:
        UserError: if no label of the model is a part of speech.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, *, batch_tokens: int | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or (2048 if self.device.type == "cpu" else 65536)
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        if not {"NOUN", "VERB"} <= {universal(label) for label in labels}:
            raise UserError(f"--pos_tagger {name} has the labels {', '.join(labels[:5])}, ...: no parts of speech")
        self._tags = [universal(label) for label in labels]

    @classmethod
    def load(cls, name: str, device: str | None = None) -> ModelTagger:
        """A model of a folder or the Hub.

        Raises:
            UserError: if it cannot be loaded or is no tagger.
        """
        if name.startswith((".", "/", "~")) and not Path(name).is_dir():
            raise UserError(f"--pos_tagger {name}: there is no model folder of this name")
        try:
            config = transformers.AutoConfig.from_pretrained(name)
            if not any("TokenClassification" in kind for kind in config.architectures or ()):
                raise UserError(f"--pos_tagger {name} is no token-classification model")
            model = transformers.AutoModelForTokenClassification.from_pretrained(name, dtype=torch.float32)
            # RoBERTa's needs the prefix for words.
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, add_prefix_space=True)
        except UserError:
            raise
        except Exception as error:  # the Hub client and the file readers have a dozen kinds
            raise UserError(f"--pos_tagger {name} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
        return cls(model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer, name)

    def __call__(self, items: list[Words]) -> list[Words]:
        """The universal tags of the words of each item; `X` for a word that the model does not see."""
        tokens = self.tokenizer([list(words) for words in items], is_split_into_words=True, truncation=True)
        rows = [{name: column[i] for name, column in tokens.items()} for i in range(len(items))]
        found: list[Words] = [()] * len(items)
        for batch in batches_of_tokens([len(row["input_ids"]) for row in rows], self.batch_tokens):
            features = padded(self.tokenizer, [rows[i] for i in batch], self.device)
            with torch.inference_mode():
                labels = self.model(**features).logits.argmax(dim=-1).tolist()
            for i, row in zip(batch, labels, strict=True):
                tags = [UNKNOWN] * len(items[i])
                pieces = tokens.word_ids(i)
                for piece in reversed(range(len(pieces))):
                    if pieces[piece] is not None:
                        tags[pieces[piece]] = self._tags[row[piece]]
                found[i] = tuple(tags)
        return found
