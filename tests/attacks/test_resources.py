"""Lexicons, the language model's predictions, taggers, and the messages when something is absent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import FAMILIES, SENTENCES, make_encoder, make_language_model, make_tokenizer
from toys import LEXICON, toy_vectors, word_pieces
from transformers import AutoConfig, AutoModelForTokenClassification

from hf_robustcse.attacks.resources import Resources, taggers
from hf_robustcse.attacks.resources.language_model import LanguageModel, LikelyPieces, MostLikely
from hf_robustcse.attacks.resources.lexicons import (
    NeighbourTable,
    listed_synonyms,
    load_neighbours,
    wordnet_by_tag,
    wordnet_lemmas,
)
from hf_robustcse.attacks.resources.word_lists import LOOKALIKES, STOPWORDS, TEXTFOOLER_STOPWORDS
from hf_robustcse.attacks.text import Document, words_of
from hf_robustcse.errors import UserError


def test_stopwords_are_lower_case_words():
    assert len(STOPWORDS) == 198 and len(TEXTFOOLER_STOPWORDS) == 266
    for word in STOPWORDS | TEXTFOOLER_STOPWORDS:
        assert word == word.lower() and words_of(word) == [(0, len(word))]


def test_lookalikes_are_other_characters_and_stay_part_of_the_word():
    assert len(LOOKALIKES) == 38
    for old, new in LOOKALIKES.items():
        assert old != new and len(Document({"text": f"a{new}b"}).words) == 1


def write_vectors(path: Path, words: list[str], rows: np.ndarray) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for word, row in zip(words, rows, strict=True):
            file.write(f"{word} {' '.join(f'{value:.7f}' for value in row)}\n")
    return str(path)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
def test_neighbours_are_the_nearest_by_cosine(tmp_path, name):
    rows = np.random.default_rng(0).normal(size=(200, 6))
    words = [f"w{i}" for i in range(200)]
    vectors = load_neighbours(write_vectors(tmp_path / name, words, rows))
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    asked = [*words[:100], "unheard-of", "w3"]
    found = vectors.neighbours(asked, 5)
    for word, neighbours in zip(asked, found, strict=True):
        if word == "unheard-of":
            assert neighbours == []
            continue
        cosines = units @ units[int(word[1:])]
        assert neighbours == [f"w{i}" for i in np.argsort(-cosines)[1:6]]
    assert vectors.cosine("w0", "w1") == pytest.approx(units[0] @ units[1], abs=1e-6)
    assert vectors.cosine("w0", "unheard-of") is None
    assert len(vectors.neighbours(["w0"], 500)[0]) == 199


def test_neighbours_do_not_depend_on_what_is_asked_beside():
    alone = [toy_vectors().neighbours([word], 4)[0] for word in LEXICON]
    assert toy_vectors().neighbours(LEXICON, 4) == alone


def test_a_table_of_neighbours(tmp_path):
    path = tmp_path / "table.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"movie": ["film", "flick", "cinema"], "dog": ["hound"]}).encode()))
    table = load_neighbours(str(path))
    assert isinstance(table, NeighbourTable) and table.longest == 3
    assert table.neighbours(["movie", "cat", "dog"], 2) == [["film", "flick"], [], ["hound"]]


@pytest.mark.parametrize("content", ["[1, 2]", "{", '{"dog": "hound"}', "{}"])
def test_a_broken_table_is_named(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(UserError, match="table.json"):
        load_neighbours(str(path))


def test_synonyms_of_a_file(tmp_path):
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b"big\tlarge\nbig\tgreat\n"))
    assert listed_synonyms(str(path))("Big") == ["large", "great"]


def wordnet_or_skip(load):
    try:
        return load()
    except UserError as error:
        pytest.skip(str(error))


def test_wordnet():
    lemmas = wordnet_or_skip(wordnet_lemmas)
    assert {"film", "picture"} <= set(lemmas("movie")) and "moving_picture" not in lemmas("movie")
    by_tag = wordnet_or_skip(wordnet_by_tag)
    assert {"hound", "heel"} & set(by_tag("dog", "NOUN")) and "chase" in by_tag("dog", "VERB")
    assert "chase" not in by_tag("dog", "NOUN") and by_tag("dog", "DET") == [] and by_tag("be", "VERB") == []
    assert "moving" in by_tag("movie", "NOUN")  # the first word of a phrase


def places(texts: list[str]) -> list[tuple[str, int, int]]:
    return [(text, start, end) for text in texts for start, end in words_of(text)]


def load(folder: Path, batch_tokens: int | None = None) -> LanguageModel:
    model = LanguageModel.load(str(folder), "cpu")
    model.model.double()
    model.batch_tokens = batch_tokens or model.batch_tokens
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_at_the_asked_places_is_the_whole_model(tmp_path, family):
    model = load(make_language_model(tmp_path, family))
    texts = SENTENCES[:4]
    masked = model.top(places(texts), 9, masked=True)
    unmasked = model.top(places(texts), 9, masked=False)
    for (text, start, end), first, second in zip(places(texts), masked, unmasked, strict=True):
        token = 1 + [at for at, _ in words_of(text)].index(start)
        for shown, found in ((text[:start] + "[MASK]" + text[end:], first), (text, second)):
            with torch.no_grad():
                logits = model.model(**model.tokenizer(shown, return_tensors="pt")).logits[0, token]
            assert found == [logits[: len(model.texts)].argsort(descending=True)[:9].tolist()]


def test_predictions_do_not_depend_on_the_batch(tmp_path):
    model, small = load(word_pieces(tmp_path)), load(tmp_path, 30)
    asked = places([*SENTENCES, "the man walking in the park kicked a ball", "playing"])
    for service in (lambda model: MostLikely(model, 6), lambda model: LikelyPieces(model, 6)):
        together = service(model)(asked)
        assert together == service(small)(asked) == [service(model)([place])[0] for place in asked]


def test_no_special_entry_and_no_sign_is_put_in_place_of_a_word(tmp_path):
    model = load(word_pieces(tmp_path))
    (words,) = MostLikely(model, 1000)([("the dog runs", 4, 7)])
    assert len(words) == int(model.word.sum()) == len(set(words))
    assert not {"[MASK]", "[UNK]", ",", "-", "/", "."} & set(words)


def test_the_second_of_two_masks_in_a_text_is_not_taken_for_the_word(tmp_path):
    model = load(word_pieces(tmp_path))
    text = "[MASK] dog runs"
    rows, found = model.encode([(text, 7, 10)], masked=True)
    assert found == [[2]] and rows[0]["input_ids"][1] == rows[0]["input_ids"][2] == model.tokenizer.mask_token_id


def test_a_word_behind_the_end_of_the_model_is_seen(tmp_path):
    model = load(word_pieces(tmp_path))  # 24 tokens
    text = " ".join(["the dog runs in the park"] * 10)
    for masked in (True, False):
        rows, found = model.encode(places([text]), masked=masked)
        assert all(len(row["input_ids"]) <= 24 for row in rows) and all(len(tokens) == 1 for tokens in found)
        shown = model.tokenizer.convert_ids_to_tokens(
            [row["input_ids"][at] for row, (at,) in zip(rows, found, strict=True)]
        )
        assert shown == (["[MASK]"] * 60 if masked else text.split())
    assert MostLikely(model, 3)([("x" * 500 + " dog", 501, 504)])[0]


def test_a_model_without_a_head_or_a_mask_is_refused(tmp_path):
    with pytest.raises(UserError, match="no trained head"):
        LanguageModel.load(str(make_encoder(tmp_path / "encoder")))
    folder = make_language_model(tmp_path / "maskless")
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="mask token"):
        LanguageModel.load(str(folder))
    with pytest.raises(UserError, match="no model folder"):
        LanguageModel.load(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("attribute", "option"),
    [("neighbours", "--word_neighbours"), ("language_model", "--masked_lm"), ("encoder", "--sentence_encoder")],
)
def test_an_absent_resource_names_its_option(attribute, option):
    with pytest.raises(UserError, match=option):
        getattr(Resources(), attribute)


def test_files_and_folders_that_do_not_exist_are_named(tmp_path):
    missing = str(tmp_path / "missing")
    for options, attribute in (
        ({"word_neighbours": missing}, "neighbours"), ({"synonyms": missing}, "synonym_table"),
        ({"masked_lm": missing}, "language_model"), ({"sentence_encoder": missing}, "encoder"),
        ({"pos_tagger": missing}, "tagger"),
    ):  # fmt: skip
        with pytest.raises(UserError, match="missing"):
            getattr(Resources(**options), attribute)


def test_none_leaves_out_and_a_word_list_has_no_parts_of_speech():
    resources = Resources(sentence_encoder="none", pos_tagger="none", synonyms="list.tsv")
    assert resources.encoder is None and resources.tagger is None
    with pytest.raises(UserError, match="--synonyms wordnet"):
        _ = resources.tagged_synonyms


def test_the_victim_does_not_judge_itself(bert):
    resources = Resources(sentence_encoder=f"{bert}/")
    resources.victim, resources.device = str(bert), "cpu"
    with pytest.raises(UserError, match="victim"):
        _ = resources.encoder
    resources.victim = "another"
    assert resources.encoder.encode(["the dog", "a cat"]).shape == (2, 16)
    assert resources.encoder.name == f"{bert}/"


def test_universal_tags():
    tags = {"NNP": "NOUN", "VBZ": "VERB", "MD": "VERB", "JJR": "ADJ", "WRB": "ADV", "TO": "PRT", "PRP$": "PRON"}
    dependencies = {"AUX": "VERB", "PROPN": "NOUN", "SCONJ": "CONJ", "PART": "PRT", "PUNCT": ".", "ADV": "ADV"}
    for tag, expected in (tags | dependencies | {"FW": "X", "nonsense": "X"}).items():
        assert taggers.universal(tag) == expected


def test_nltk_tagger(tmp_path, monkeypatch):
    data = pytest.importorskip("nltk.data")
    monkeypatch.setattr(data, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="--pos_tagger none"):
        taggers.NltkTagger()
    folder = tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    folder.mkdir(parents=True)
    known = {"the": "DT", "dog": "NN", "runs": "VBZ"}
    for name, value in {"weights": {}, "tagdict": known, "classes": [*known.values()]}.items():
        (folder / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(value))
    tagger = taggers.NltkTagger()
    assert tagger([("the", "dog", "runs"), ("dog",)]) == [("DET", "NOUN", "VERB"), ("NOUN",)]


def make_tagger(folder: Path, labels: list[str]) -> str:
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    config = AutoConfig.for_model(
        "bert", vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5, **names,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForTokenClassification.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def test_model_tagger(tmp_path):
    labels = ["NN", "VBZ", "DET", "ADJ"]
    tagger = taggers.ModelTagger.load(make_tagger(tmp_path, labels), "cpu")
    tagger.model.double()
    items = [tuple(sentence.split()) for sentence in SENTENCES] + [("\u200d",), ("dog",) * 100]
    found = tagger(items)
    assert found == [tagger([item])[0] for item in items]
    for item, tags in zip(items[:-2], found, strict=False):
        logits = tagger.model(**tagger.tokenizer(" ".join(item), return_tensors="pt")).logits[0, 1:-1]
        assert tags == tuple(taggers.universal(labels[i]) for i in logits.argmax(dim=-1).tolist())
    assert found[-2] in [("X",), *((taggers.universal(label),) for label in labels)]
    assert len(found[-1]) == 100 and found[-1][-1] == "X"


def test_a_model_that_tags_something_else_is_refused(tmp_path, bert):
    with pytest.raises(UserError, match="no parts of speech"):
        taggers.ModelTagger.load(make_tagger(tmp_path, ["B-PER", "O"]), "cpu")
    with pytest.raises(UserError, match="no token-classification model"):
        taggers.ModelTagger.load(str(bert), "cpu")
