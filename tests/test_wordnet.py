"""The reader of WordNet: a hand-made WordNet, and nltk's reader on the real one."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.synonyms import WordNet, read_wordnet, wordnet_reader

LICENCE = "  1 This is not the real one.\n"
FILES = ("noun", "verb", "adj", "adv")
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
        part = "r" if name == "adv" else name[0]
        data, offsets = LICENCE, {}
        for words in synsets:
            for word in words:
                offsets.setdefault(word.partition("(")[0].lower(), []).append(f"{len(data):08d}")
            listed = " ".join(f"{word} 0" for word in words)
            data += f"{len(data):08d} 06 {part} {len(words):02x} {listed} 000 | a gloss with 'words'  \n"
        index = LICENCE + "".join(
            f"{word} {part} {len(found)} 2 @ ~ {len(found)} 0 {' '.join(found)}  \n"
            for word, found in sorted(offsets.items())
        )
        for file, text in ((f"data.{name}", data), (f"index.{name}", index), (f"{name}.exc", EXCEPTIONS[name])):
            (folder / file).write_text(text, encoding="utf-8")


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    write_wordnet(tmp_path)
    return WordNet(tmp_path)


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
    assert wordnet.names(word, parts) == expected


def forms(words: Iterable[str]) -> Iterator[str]:
    """Words, and what may be forms of them."""
    for word in words:
        yield from (word, word.title(), *(f"{word}{end}" for end in ("s", "es", "ed", "ing", "er", "men")))


def check_against_nltk(words: Iterable[str]) -> None:
    try:
        ours, theirs = read_wordnet(otherwise=""), wordnet_reader(otherwise="")
    except UserError as error:
        pytest.skip(str(error))
    assert isinstance(ours, WordNet)
    for word in words:
        assert ours.names(word) == [name for synset in theirs.synsets(word) for name in synset.lemma_names()], word
        for part in "nvar":
            assert ours.base_form(word, part) == theirs.morphy(word, part), (word, part)
            expected = [name for synset in theirs.synsets(word, pos=part) for name in synset.lemma_names()]
            assert ours.names(word, part) == expected, (word, part)


def test_a_small_wordnet_against_nltk(tmp_path, monkeypatch):
    pytest.importorskip("nltk")
    write_wordnet(tmp_path)
    for file in ("cntlist.rev", "index.sense"):
        (tmp_path / file).touch()
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    monkeypatch.setattr("nltk.data.path", [])
    words = {word.partition("(")[0] for synsets in SYNSETS.values() for synset in synsets for word in synset}
    check_against_nltk([*forms(sorted(words)), "geese", "axes", "better", "Na\u00efve", ""])


@pytest.mark.slow
def test_the_whole_vocabulary_against_nltk():
    pytest.importorskip("nltk")
    try:
        reader = wordnet_reader(otherwise="")
    except UserError as error:
        pytest.skip(str(error))
    names = sorted(reader.all_lemma_names())
    exceptions = [line.split()[0] for name in FILES for line in reader.open(f"{name}.exc")]
    check_against_nltk([*names, *exceptions, *forms(names[::50])])


def test_some_of_the_real_vocabulary_against_nltk():
    pytest.importorskip("nltk")
    some = ["dog", "run", "good", "well", "elect", "large", "church", "U.S.", "motor_car", "'hood", "a", "no"]
    check_against_nltk([*forms(some), "geese", "axes", "women", "ran", "went", "best", "aery", "offsetting", "-"])


def pack(folder: Path) -> None:
    """A folder as its zip file, as nltk's downloader leaves it."""
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
            file.unlink()
    folder.rmdir()


def test_nltk_reads_what_is_zipped_or_does_not_fit_together(tmp_path, monkeypatch):
    pytest.importorskip("nltk")
    folder = tmp_path / "corpora" / "wordnet"
    write_wordnet(folder)
    for file in ("cntlist.rev", "index.sense"):
        (folder / file).touch()
    (folder / "lexnames").write_text("".join(f"{number:02d}\tname\t1\n" for number in range(45)), encoding="utf-8")
    monkeypatch.delenv("WORDNET_DIR", raising=False)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    assert isinstance(read_wordnet(otherwise=""), WordNet)
    index = (folder / "index.verb").read_text(encoding="utf-8")
    (folder / "index.verb").write_text(index.replace(" 000000", " 000001"), encoding="utf-8")
    assert not isinstance(read_wordnet(otherwise=""), WordNet)
    (folder / "index.verb").write_text(index, encoding="utf-8")
    pack(folder)
    zipped = read_wordnet(otherwise="")
    assert not isinstance(zipped, WordNet)
    assert zipped.names("axes") == ["ax", "axe", "axis"] and zipped.names("good", "r") == ["well", "good"]
    assert zipped.base_form("geese", "n") == "goose" and zipped.base_form("geese", "v") is None
