"""Label-preserving perturbations of one example, after CheckList (Ribeiro et al. 2020).

An operator changes the texts of an example (a sentence, a pair, a question and its context) so that a person would give
the same label. What is said about one thing in several texts is changed in all of them or in none: a name, place,
number or word is replaced only if it can be replaced wherever the example has it. When in doubt an operator leaves the
text alone, so each of them changes a part of the examples only, and `typos` nearly all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.word_lists import (
    BIBLE,
    CITIES,
    COUNTRIES,
    FEMALE_NAMES,
    FILLERS,
    GEOGRAPHY,
    IRREGULAR_PLURALS,
    KIN,
    MALE_NAMES,
    NOT_COUNTED,
    NUMBER_WORDS,
    OTHER_WORDS,
    RELATIONS,
    SHORT_NAMES,
    THINGS,
    TIME_UNITS,
    UNITS,
)
from hf_robustcse.synonyms import Synonyms
from hf_robustcse.typos import LEAST, swap_inside

OPERATORS: tuple[str, ...] = ("typos", "contractions", "names", "places", "numbers", "synonyms", "neutral")
EVERYWHERE = ("typos", "neutral")
"""What can change nearly any text, and would crowd out the others if it were drawn as often."""
LONG = 20  # words; a row that has as many gets two typos and two synonyms instead of one

Edit = tuple[int, int, int, str]
"""Which text, from where, to where, what is put there."""

_WORD = re.compile(r"[^\W\d_]+")
_CAPITALISED = re.compile(r"(?<![\w'’])[A-Z][^\W\d_]+")
_TITLES = re.compile(r"(?:St|Ste|Mt|Mr|Mrs|Ms|Dr|Prof|Sen|Rep|Gov|Gen|Lt|Col|Rev|Ft)\.$")
_STARTERS = frozenset(
    """After And Although As At Because Before But Does Did Do Does For From Had Has Have How I If In Is Like Maybe May
    Near No Nor On Once Or Perhaps Since So Still Tell That Then Though To Today Was Were What When Where Which While
    Who Whom Why Will With Would Yesterday Yes""".split()
)


def perturb_row(
    texts: Sequence[str],
    operators: Sequence[str],
    *,
    seed: int,
    neutral_in: int | None = None,
    protected: Iterable[str] = (),
    fixed: Collection[int] = (),
    synonyms: Synonyms | None = None,
    at_most: int | None = None,
) -> tuple[list[str], list[str]]:
    """Perturb the texts of one example.

    The same texts, operators and seed always give the same result, in every process and at every place of a data set.

    Args:
        texts: of the example: one, or several that its label is about.
        operators: out of `OPERATORS`; they are applied in an order of their own (typos last but one), whatever theirs.
        seed: of all choices.
        neutral_in: the index of the text that `neutral` appends to, at the very end.
        protected: strings that stay as they are wherever they occur in a text, in any case.
        fixed: indices of texts that are read but not changed; what they say stays as it is in the other texts, too.
        synonyms: of a word, for `synonyms`.
        at_most: how many operators may change something; they are drawn with the seed, those of `EVERYWHERE` where
            too few others can change anything. None for all.

    Returns:
        The texts, and the names of the operators that changed something, in the order of `OPERATORS`.

    Raises:
        UserError: for an unknown operator, `neutral` without `neutral_in`, or `synonyms` without synonyms.
    """
    for name in operators:
        if name not in OPERATORS:
            raise UserError(f"unknown operator {name!r}; known: {', '.join(OPERATORS)}")
    if "neutral" in operators and neutral_in is None:
        raise UserError("the operator neutral needs to know which text to append to: neutral_in")
    if "synonyms" in operators and synonyms is None:
        raise UserError("the operator synonyms needs synonyms: WordNet's (load_wordnet(exact=True)) or a word list's")
    source = "\x1f".join(texts)
    strings = [string for string in protected if string.strip()]

    def apply(name: str, current: list[str]) -> list[str]:
        # A string seeds by its SHA-512. Each operator draws on its own: it does the same with and without others.
        draw = random.Random(f"{seed}\x1f{name}\x1f{source}")
        return _edited(current, _RUN[name](_Row(current, draw, strings, frozenset(fixed), neutral_in, synonyms)))

    wanted = sorted(set(operators), key=OPERATORS.index)
    if at_most is not None:
        random.Random(f"{seed}\x1f{source}").shuffle(wanted)
        wanted.sort(key=lambda name: name in EVERYWHERE)  # stable: in their drawn order otherwise
        chosen: list[str] = []
        for name in wanted:
            if len(chosen) < at_most and apply(name, list(texts)) != list(texts):
                chosen.append(name)
        wanted = chosen
    current, done = list(texts), []
    # Typos come after what must recognise words, and before what is appended.
    for name in (name for name in _RUN if name in wanted):
        changed = apply(name, current)
        if changed != current:
            current, done = changed, [*done, name]
    return current, sorted(done, key=OPERATORS.index)


@dataclass
class _Row:
    """The texts of one example, and what an operator may know of them."""

    texts: list[str]
    draw: random.Random
    protected: list[str]
    fixed: frozenset[int]
    neutral_in: int | None
    synonyms: Synonyms | None

    @cached_property
    def kept(self) -> list[list[tuple[int, int]]]:
        """The spans of each text that stay as they are."""
        spans: list[list[tuple[int, int]]] = []
        for number, text in enumerate(self.texts):
            found = [
                (match.start(), match.start() + len(match[1]))
                for string in self.protected
                for match in re.finditer(f"(?=({re.escape(string)}))", text, re.IGNORECASE)
            ]
            spans.append([(0, len(text))] if number in self.fixed else found)
        return spans

    def keeps(self, number: int, start: int, end: int) -> bool:
        """Whether a span overlaps one that stays."""
        return any(start < last and first < end for first, last in self.kept[number])

    @cached_property
    def words(self) -> set[str]:
        """All words of all texts, in lower case."""
        return {word.lower() for text in self.texts for word in _WORD.findall(text)}

    @cached_property
    def capitalised(self) -> set[str]:
        """All capitalised words of all texts."""
        return {word for text in self.texts for word in _CAPITALISED.findall(text)}

    @cached_property
    def long(self) -> bool:
        """Whether the texts that may change have many words."""
        return sum(len(text.split()) for number, text in enumerate(self.texts) if number not in self.fixed) >= LONG

    def places_of(self, word: str) -> list[tuple[int, int, int]]:
        """Where a word stands, over all texts; nothing unless it can be replaced at every place.

        It cannot where it is written in another case, is part of a compound, an address or a handle, is protected, or
        has a bare apostrophe behind it (James' would become Peter').
        """
        found = []
        for number, text in enumerate(self.texts):
            for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
                start, end = match.span()
                joined = text[max(0, start - 1) : start] in tuple("@#/.’'-") or re.match(
                    r"[@/-]|\.\w|[’'](?!s\b)|\s[’']\s", text[end : end + 3]
                )
                if match[0] != word or joined or self.keeps(number, start, end):
                    return []
                found.append((number, start, end))
        return found


def _edited(texts: Sequence[str], edits: Iterable[Edit]) -> list[str]:
    result = list(texts)
    for number, start, end, new in sorted(edits, reverse=True):  # from the end, so that the places before stay right
        result[number] = result[number][:start] + new + result[number][end:]
    return result


def _before(text: str, start: int) -> str:
    """The token in front of a place, without the quotes or brackets that open it."""
    tokens = text[:start].split()
    return tokens[-1].lstrip("\"'`“‘([") if tokens else ""


def _after_capital(text: str, start: int) -> bool:
    """Whether a capitalised word stands directly in front, as in `Clarence Thomas`, `St. Paul` and `New York`."""
    token = _before(text, start)
    if not token[:1].isupper() or token in _STARTERS:
        return False
    return token[-1].isalnum() or bool(_TITLES.search(token)) or bool(re.fullmatch(r"(?:[A-Z]\.)+", token))


def _typos(row: _Row) -> list[Edit]:
    """Two letters inside a word swapped; no capitalised words, and none that becomes another word."""
    words = [
        (number, match)
        for number, text in enumerate(row.texts)
        for match in re.finditer(r"(?<![\w@#/.’'-])[^\W\d_]+(?![\w@/’'-]|\.\w|:/)", text)
        if len(match[0]) >= LEAST
        and match[0].islower()
        and match[0] not in OTHER_WORDS
        and not row.keeps(number, *match.span())
    ]
    row.draw.shuffle(words)
    edits: list[Edit] = []
    for number, match in words:
        typo = swap_inside(match[0], row.draw)
        if typo != match[0] and len(edits) < 1 + row.long:
            edits.append((number, *match.span(), typo))
    return edits


_BE = "is|are|was|were|do|does|did|has|have|had|could|would|should"
_NOT = re.compile(rf"\b({_BE}|will|can) not\b|\bcannot\b")
_N_T = re.compile(rf"\b(?:({_BE})( ?)n['’]t|(wo|ca)( ?)n['’]t)\b(?!['’])")
_SUBJECT = re.compile(r"\s+(?:I|i|you|he|she|it|we|they|there)\b")
_NEXT = r"a|an|the|very|so|really|my|your|his|her|our|their"
# Only in front of words that show that the verb is not stranded ("than I am", "what they are in").
_FULL = re.compile(
    r"\b([Ii]) (am)(?= (?:not|going|" + _NEXT + r"|[a-z]{2,}ing)\b)"
    r"|\b([Yy]ou|[Ww]e|[Tt]hey) (are)(?= (?:" + _NEXT + r"|[a-z]{2,}ing)\b)"
    r"|\b([Hh]e|[Ss]he|[Ii]t|[Tt]here) (is)(?= (?:" + _NEXT + r"|[a-z]{2,}ing)\b)"
    r"|\b([Ii]|[Yy]ou|[Ww]e|[Tt]hey) (have)(?= (?:been|never|already|seen|had)\b)"
    r"|\b([Ii]|[Yy]ou|[Hh]e|[Ss]he|[Ii]t|[Ww]e|[Tt]hey) (will)(?= (?:be|have|get|go|make|take|see|never|find)\b)"
)
_SHORT = re.compile(
    r"\b([Ii]) ?['’](m)\b|\b([Yy]ou|[Ww]e|[Tt]hey) ?['’](re)\b|\b([Ii]|[Yy]ou|[Ww]e|[Tt]hey) ?['’](ve)\b"
    r"|\b([Ii]|[Yy]ou|[Hh]e|[Ss]he|[Ii]t|[Ww]e|[Tt]hey) ?['’](ll)\b"
    r"|\b([Hh]e|[Ss]he|[Ii]t|[Tt]here|[Tt]hat) ?['’](s)(?= (?:not|" + _NEXT + r")\b)"
)
_SHORT_OF = {"am": "m", "are": "re", "is": "s", "have": "ve", "will": "ll"}
_FULL_OF = {short: full for full, short in _SHORT_OF.items()}
_TOKENISED = re.compile(r"\w (?:[.,!?;:]|n['’]t|['’](?:s|re|m|ve|ll|d))(?:\s|$)")


def _contractions(row: _Row) -> list[Edit]:
    """`is not` and `isn't` exchanged, `I am` and `I'm`, in the spelling of the text (`is n't` where it is tokenised).

    Not in questions nor at the beginning of a sentence, where the subject may stand in between; `he's` and `he'd` only
    where it is clear what they are short for.
    """
    edits: list[Edit] = []
    for number, text in enumerate(row.texts):
        gap = " " if _TOKENISED.search(text) else ""
        quote = "’" if "’" in text and "'" not in text else "'"
        found: list[Edit] = []
        for match in _NOT.finditer(text):
            verb = match[1] or "can"
            stem = {"will": "wo", "can": "ca"}.get(verb, verb)
            if not _inverted(text, match):
                found.append((number, *match.span(), f"{stem}{gap}n{quote}t"))
        for match in _N_T.finditer(text):
            verb = match[1] or {"wo": "will", "ca": "can" if match[4] else ""}[match[3]]
            if not _inverted(text, match):
                found.append((number, *match.span(), f"{verb} not" if verb else "cannot"))
        for pattern, other in ((_FULL, _SHORT_OF), (_SHORT, _FULL_OF)):
            for match in pattern.finditer(text):
                subject, verb = (group for group in match.groups() if group)
                joint = f"{gap}{quote}" if other is _SHORT_OF else " "
                # "what they are doing", "as I am going": the verb may belong to what stands in front.
                belongs = _before(text, match.start()).lower() in {"what", "how", "as", "than", "who", "where"}
                stutters = "-" in (text[: match.start()][-1:], text[match.end() :][:1])  # "I'm-I'm"
                if not belongs and not stutters:
                    found.append((number, *match.span(), f"{subject}{joint}{other[verb]}"))
        end = 0
        for edit in sorted(found):
            if edit[1] >= end and not row.keeps(number, *edit[1:3]):
                edits.append(edit)
                end = edit[2]
    return edits


def _inverted(text: str, match: re.Match[str]) -> bool:
    """Whether a negated verb may stand before its subject: in a question, at the start, before a pronoun."""
    before, after = text[: match.start()].rstrip(" \"'`“‘(["), text[match.end() :]
    closing = re.search(r"[.?!](?:\W|$)", after)
    asked = closing is not None and closing[0][0] == "?"
    return asked or not before or before[-1] in ".?!:;" or bool(_SUBJECT.match(after))


_PEOPLE = frozenset({*MALE_NAMES, *FEMALE_NAMES})


def _names(row: _Row) -> list[Edit]:
    """First names replaced by others of the same gender.

    Only those that stand for one person in the whole row: no surname (`Clarence Thomas`), saint or king, none that
    another name of the row may be short for, nobody in the Bible, and no full name (`Donald Duck`) where another text
    has names but not this one (`Disney World`).
    """
    if row.words & BIBLE:
        return []
    edits: list[Edit] = []
    taken = set(row.capitalised)
    for names in (MALE_NAMES, FEMALE_NAMES):
        for name in sorted(row.capitalised & set(names)):
            places = row.places_of(name)
            if not places or _alias(name, row.capitalised - {name}):
                continue
            if any(
                _after_capital(row.texts[n], start) or _no_person(row.texts[n], start, end) for n, start, end in places
            ):
                continue
            full = any(re.match(r"\s+[A-Z]", row.texts[n][end:]) for n, _, end in places)
            if full and _others_name(row, places):
                continue
            others = [other for other in names if not _alias(other, taken) and other.lower() not in row.words]
            if others:
                new = row.draw.choice(others)
                taken.add(new)
                edits += [(*place, new) for place in places]
    return edits


def _alias(name: str, others: Iterable[str]) -> bool:
    """Whether one of the other words may be a form of the name."""
    short = SHORT_NAMES.get(name, "").split()
    return any(other[:2] == name[:2] or other in short or name in SHORT_NAMES.get(other, "") for other in others)


def _no_person(text: str, start: int, end: int) -> bool:
    """Whether a name is a king's or a thing's: `Henry VIII`, `Peter the Great`, `Victoria and Albert Museum`."""
    behind = re.match(r"(?:\s+[A-Z][\w.]*)*", text[end:])[0].split()
    joined = re.search(r"([A-Z]\w*)\s+(?:and|&|of)\s+$", text[:start])
    return (
        any(word.rstrip(".") in THINGS or re.fullmatch("[IVX]+", word) for word in behind)
        or bool(re.match(r"\s+(?:the\s+[A-Z]|&|\d)", text[end:]))
        or (joined is not None and joined[1] not in _PEOPLE)
    )


_COUNTRIES = {name: group for group, names in COUNTRIES.items() for name in names}
_CITIES = {name: group for group, names in CITIES.items() for name in names}
_COUNTRY_OF = {city: country for names in CITIES.values() for city, country in names.items()}
_PLACES = frozenset({*_COUNTRIES, *_CITIES})


def _places(row: _Row) -> list[Edit]:
    """Cities and countries replaced by others of their group.

    A row that names the country or its people beside the city, or lies a place on the map, keeps them; so does one
    where another text has names of its own, which may be those of the same place.
    """
    if row.words & GEOGRAPHY:
        return []
    edits: list[Edit] = []
    taken = set(row.capitalised)
    if any(re.search(r"\bU\.? ?[SK]\b", text) for text in row.texts):
        taken |= {"US", "UK"}
    for kind in (_COUNTRIES, _CITIES):
        for place in sorted(row.capitalised & kind.keys()):
            spots = row.places_of(place)
            if not spots or _related(place, taken - {place}):
                continue
            if any(_longer_name(row.texts[n], start, end) for n, start, end in spots):
                continue
            if _others_name(row, spots):
                continue
            others = [o for o, group in kind.items() if group == kind[place] and not _related(o, taken)]
            if others:
                new = row.draw.choice(others)
                taken.add(new)
                edits += [(*spot, new) for spot in spots]
    return edits


def _related(place: str, words: Iterable[str]) -> bool:
    """Whether one of the words is for the place, its country or its people, or a city in it."""
    country = _COUNTRY_OF.get(place, place)
    kin = {place, country, *KIN.get(country, "").split()}
    return any(word in kin or word[:3] in (place[:3], country[:3]) or _COUNTRY_OF.get(word) == place for word in words)


def _longer_name(text: str, start: int, end: int) -> bool:
    """Whether a place is a part of a longer name: `Chicago Bulls`, `University of Chicago`, `Dallas, Texas`."""
    behind = re.match(r"\s*(,?)\s*([A-Z]\w*)", text[end:])
    before = re.search(r"([A-Z][\w.]*)(?:\s*,\s*|\s+(?:of|de|&|and)\s+(?:the\s+)?)$", text[:start])
    return (
        _after_capital(text, start)
        or (behind is not None and not (behind[1] and behind[2] in _PLACES))
        or (before is not None and before[1] not in _PLACES)
    )


def _others_name(row: _Row, spots: Iterable[tuple[int, int, int]]) -> bool:
    """Whether a text without these places names something else, which may be the same under another name."""
    with_it = {number for number, _, _ in spots}
    return any(_inner_capitals(text) - _PEOPLE for number, text in enumerate(row.texts) if number not in with_it)


def _inner_capitals(text: str) -> set[str]:
    """The capitalised words that do not begin a sentence."""
    return {
        match[0]
        for match in re.finditer(r"(?<![\w'’])[A-Z][\w.]*", text)
        if match[0] != "I" and (token := _before(text, match.start())) and token[-1] not in ".?!:"
    }


_DETERMINERS = frozenset("About All Almost Another Around Both Nearly Only Over Some The These Those".split())
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _numbers(row: _Row) -> list[Edit]:
    """Numbers of things from 3 on replaced by near ones; their order among all numbers of the row stays.

    Only digits in front of a plural (`12 men`, `5 black dogs`): so no years, dates, decimals, ordinals, prices,
    measures, scores or `Chapter 3`. A row whose numbers add up or are otherwise related keeps them, and so does one
    whose longest text has not the number: the others may count what that describes (a man and two women: 3 people).
    """
    if row.words & RELATIONS:
        return []
    values = {float(n.replace(",", "")) for text in row.texts for n in _NUMBER.findall(text) if n.strip(",")}
    values |= {float(number) for word, number in NUMBER_WORDS.items() if word in row.words}
    related = (a + b in values or (a > 1 < b and a * b in values) for a in values - {0} for b in values - {0})
    if len(values) > 12 or any(related):
        return []
    units = {word.removesuffix("s") for word in row.words} & TIME_UNITS
    timed = len(units) <= 1 and not any(value >= 1000 for value in values)
    spelled = {number for word, number in NUMBER_WORDS.items() if word in row.words}
    edits: list[Edit] = []
    longest = max(range(len(row.texts)), key=lambda number: len(row.texts[number]))
    ordered = sorted(values)
    last = -1.0  # the new value of the number before
    for at, value in enumerate(ordered):
        spots = _counts(row, int(value), timed) if 3 <= value <= 999 and value == int(value) else []
        new = value
        if spots and value not in spelled and longest in {spot[0] for spot in spots}:
            near = max(1, int(value) // 5)
            low, high = next((10**d, 10 ** (d + 1) - 1) for d in range(3) if value < 10 ** (d + 1))
            above = ordered[at + 1] if at + 1 < len(ordered) else float("inf")
            options = [
                option
                for option in range(max(3, low, int(value) - near), min(high, int(value) + near) + 1)
                if last < option < above and option != value
            ]
            if options:
                new = row.draw.choice(options)
                edits += [(*spot, str(new)) for spot in spots]
        last = new
    return edits


def _counts(row: _Row, value: int, timed: bool) -> list[tuple[int, int, int]]:
    """Where a number stands, if it counts things at all its places."""
    spots = []
    for number, text in enumerate(row.texts):
        for match in _NUMBER.finditer(text):
            if match[0].replace(",", "").rstrip(".") not in (str(value), f"{value}.0"):
                continue
            start, end = match.span()
            first = re.match(r" ([a-z]+)(?: ([a-z]+))?(?: ([a-z]+))?", text[end:])
            before = _before(text, start)
            if (
                match[0] != str(value)
                or row.keeps(number, start, end)
                or first is None
                or not _plural(first[1], first[2] or "", first[3] or "", timed)
                or re.search(r"[\w.,:;/$£€#@&+*-]$", text[max(0, start - 1) : start])
                or before in {"a", "an", "$", "£", "€", "#", "-", "/", ":", "×", "x", "no", "number"}
                or re.search(r"\d\s*[.,:/-]?$", before)
                or (before[:1].isupper() and before[-1].isalnum() and before not in _STARTERS | _DETERMINERS)
            ):
                return []
            spots.append((number, start, end))
    return spots


def _plural(first: str, second: str, third: str, timed: bool) -> bool:
    """Whether the words behind a number begin with a plural noun, perhaps after one adjective."""

    def noun(word: str) -> bool:
        if word in IRREGULAR_PLURALS:
            return True
        if len(word) < 4 or not word.endswith("s") or word in NOT_COUNTED | UNITS or re.search("(?:ss|us|is)$", word):
            return False
        return timed or word.removesuffix("s") not in TIME_UNITS

    if noun(first):
        return not (second in {"old", "ago", "later"} or (second, third) == ("of", "age"))
    return first not in NOT_COUNTED | UNITS and not first.endswith("s") and noun(second)


def _synonyms(row: _Row) -> list[Edit]:
    """Words in lower case replaced by a synonym, each at all its places, unless a relative of it is in the row, too."""
    words = sorted(
        {
            match[0]
            for number, text in enumerate(row.texts)
            if number not in row.fixed
            for match in _WORD.finditer(text)
            if len(match[0]) >= 3 and match[0].islower()
        }
    )
    row.draw.shuffle(words)
    edits: list[Edit] = []
    taken: set[str] = set(row.words)
    for word in words:
        stem = word[: max(4, len(word) - 2)]
        options = [new for new in row.synonyms(word) if not set(new.lower().split()) & taken]
        if not options or any(other.startswith(stem) for other in row.words - {word}):
            continue
        places = row.places_of(word)
        articles = any(_before(row.texts[number], start).lower() in ("a", "an") for number, start, _ in places)
        options = [new for new in options if not articles or _sound(new) == _sound(word) is not None]
        if places and options:
            new = row.draw.choice(options)
            edits += [(*place, new) for place in places]
            taken |= set(new.lower().split())
            if len({edit[3] for edit in edits}) > row.long:
                break
    return edits


def _sound(word: str) -> bool | None:
    """Whether a word begins with a vowel, as `a` and `an` go by it; None where its letters do not tell."""
    if re.match("u|eu|on|hour|hon|heir", word, re.IGNORECASE):
        return None
    return word[0].lower() in "aeio"


def _neutral(row: _Row) -> list[Edit]:
    """A sentence about the text, a handle or an address at the end of one text, written as the text is."""
    number = row.neutral_in
    if number in row.fixed:
        return []
    text = row.texts[number].rstrip()
    letters = "abcdefghijklmnopqrstuvwxyz"
    code = "".join(row.draw.choices(letters, k=6))
    fillers = [f"@{code}", f"https://example.org/{code}"]
    if re.search(r"[.!?][\"'”’)\s]*$", text):
        fillers += FILLERS
    if not any(character.isupper() for character in text):
        fillers = [filler.lower() for filler in fillers]
    if _TOKENISED.search(text):
        fillers = [re.sub(r"\.$", " .", filler) for filler in fillers]
    fillers = [f for f in fillers if not any(string.lower() in f.lower() for string in row.protected)]
    return [(number, len(text), len(text), f" {row.draw.choice(fillers)}")] if text and fillers else []


_RUN: Mapping[str, Callable[[_Row], list[Edit]]] = {
    "names": _names,
    "places": _places,
    "numbers": _numbers,
    "synonyms": _synonyms,
    "contractions": _contractions,
    "typos": _typos,
    "neutral": _neutral,
}
