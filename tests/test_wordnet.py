"""The reader of WordNet: a hand-made WordNet, and nltk's reader on the real one."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.synonyms import read_wordnet, wordnet_reader
from hf_robustcse.wordnet import WordNet

LICENCE = "  1 This is not the real one.\n"
SYNSETS = {
    "noun": [["axis"], ["ax", "axe"], ["goose"], ["bus", "motor_coach"], ["shot", "snap"], ["better"]],
    "verb": [["hop", "leap"], ["try", "essay"], ["snap", "shoot"]],
    "adj": [["elect(ip)", "chosen"], ["good"], ["large", "big(a)"]],
    "adv": [["well", "good"]],
}
EXCEPTIONS = {"noun": "axes ax axis\ngeese goose\n", "verb": "", "adj": "better good well\nbetter good\n", "adv": ""}


def write_wordnet(folder: Path) -> None:
    """The files of a WordNet of a dozen synsets."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, synsets in SYNSETS.items():
        data, offsets = LICENCE, {}
        for words in synsets:
            for word in words:
                offsets.setdefault(word.partition("(")[0].lower(), []).append(f"{len(data):08d}")
            listed = " ".join(f"{word} 0" for word in words)
            data += f"{len(data):08d} 06 {name[0]} {len(words):02x} {listed} 000 | a gloss with 'words' | and bars  \n"
        index = LICENCE + "".join(
            f"{word} {name[0]} {len(found)} 2 @ ~ {len(found)} 0 {' '.join(found)}  \n"
            for word, found in sorted(offsets.items())
        )
        for file, text in ((f"data.{name}", data), (f"index.{name}", index), (f"{name}.exc", EXCEPTIONS[name])):
            (folder / file).write_text(text, encoding="utf-8")


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    write_wordnet(tmp_path)
    return WordNet(lambda file: (tmp_path / file).read_bytes())


@pytest.mark.parametrize(
    ("word", "parts", "expected"),
    [
        ("axes", "nvar", ["ax", "axe", "axis"]),  # an exception, and no other form then
        ("geese", "n", ["goose"]),
        ("Buses", "nvar", ["bus", "motor_coach"]),
        ("hopping", "v", []),  # doubled letters are for the exceptions to list
        ("hops", "v", ["hop", "leap"]),
        ("tries", "v", ["try", "essay"]),
        ("snaps", "nvar", ["shot", "snap", "snap", "shoot"]),  # nouns, then verbs
        ("chosen", "a", ["elect", "chosen"]),  # the marker is no part of the word
        ("biggest", "a", []),
        ("larger", "a", ["large", "big"]),
        ("better", "nvar", ["better", "good"]),  # listed twice: the last line counts
        ("qwerty", "nvar", []),
        ("", "nvar", []),
        ("na\u00efve", "nvar", []),
        ("this", "n", []),  # the licence is no entry
    ],
)
def test_synonyms_of_a_small_wordnet(word, parts, expected, wordnet):
    assert wordnet.synonyms(word, parts) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_where_nltk_keeps_it(packed, tmp_path, monkeypatch):
    pytest.importorskip("nltk")
    corpora = tmp_path / "corpora"
    write_wordnet(corpora / "wordnet")
    if packed:
        with zipfile.ZipFile(corpora / "wordnet.zip", "w") as archive:
            for file in sorted((corpora / "wordnet").iterdir()):
                archive.write(file, f"wordnet/{file.name}")
                file.unlink()
        (corpora / "wordnet").rmdir()
    monkeypatch.delenv("WORDNET_DIR", raising=False)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    assert read_wordnet(otherwise="").synonyms("axes") == ["ax", "axe", "axis"]


def test_a_named_folder_needs_no_nltk(tmp_path, monkeypatch):
    write_wordnet(tmp_path)
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "nltk.data", None)
    assert read_wordnet(otherwise="").synonyms("tried") == []
    assert read_wordnet(otherwise="").synonyms("leap") == ["hop", "leap"]


def test_bad_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    with pytest.raises(UserError, match="holds no data.noun.*or give up"):
        read_wordnet(otherwise="give up")
    write_wordnet(tmp_path)
    (tmp_path / "index.verb").write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(UserError, match="cannot read the WordNet in"):
        read_wordnet(otherwise="give up")
    (tmp_path / "index.verb").unlink()
    with pytest.raises(UserError, match="cannot read the WordNet in.*index.verb"):
        read_wordnet(otherwise="give up")


def test_same_as_nltk_on_the_real_one():
    pytest.importorskip("nltk")
    try:
        ours, theirs = read_wordnet(otherwise=""), wordnet_reader(otherwise="")
    except UserError as error:
        pytest.skip(str(error))

    def forms(words: Iterable[str]) -> Iterable[str]:
        for word in words:
            yield from (
                word,
                word.title(),
                f"{word}s",
                f"{word}es",
                f"{word}ed",
                f"{word}ing",
                f"{word}er",
                f"{word}men",
            )

    some = sorted(theirs.all_lemma_names())[::800]
    odd = ["geese", "axes", "women", "ran", "went", "better", "best", "aery", "offsetting", "o'clock", "U.S.", "A", "-"]
    for word in [*forms(some), *odd]:
        assert ours.synonyms(word) == [name for synset in theirs.synsets(word) for name in synset.lemma_names()], word
        for part in "nvar":
            expected = [name for synset in theirs.synsets(word, pos=part) for name in synset.lemma_names()]
            assert ours.synonyms(word, part) == expected, (word, part)
