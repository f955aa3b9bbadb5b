"""`model_cards/`: rendered again, byte for byte, and every number in its files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from test_model_card import tables, untraced

from hf_robustcse import cli
from hf_robustcse.cards import method_card
from hf_robustcse.cards.about import ABOUT
from hf_robustcse.methods import METHODS

ROOT = Path(__file__).parents[2]


def test_every_method_is_described():
    assert set(ABOUT) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_the_card_in_the_repository_is_what_its_command_gives(method, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    kept = (ROOT / "model_cards" / f"{method}.md").read_text(encoding="utf-8")
    [command] = re.findall("^<!-- Rendered by: hf-robustcse (.*)$", kept, re.MULTILINE)
    words = shlex.split(command)
    cli.main(words)
    assert capsys.readouterr().out == kept, f"render it again: hf-robustcse {command} --output model_cards/{method}.md"
    files = [Path(path) for path, _ in re.findall(r"^(\S+\.json) ([0-9a-f]{64})$", kept, re.MULTILINE)]
    assert [str(path) for path in sorted(files)] == sorted(words[words.index("--results") + 1 :])
    head, measured = kept.split("\n## Measured here\n")
    assert untraced(measured, files) == []
    reported = [value for figures in METHODS[method].paper.reported.values() for value in figures.values()]
    cells = [c for table in tables(head.split("\n## Reported by the paper\n")[1]) for row in table[1:] for c in row[1:]]
    numbers = [float(cell) for cell in cells if re.fullmatch(r"[-\d.]*\d", cell)]
    assert sorted(numbers) == sorted(reported)


def test_the_options_are_all_there():
    for method, kind in METHODS.items():
        text = method_card(method)
        assert all(f"`--{name}`" in text for name in kind.Options.__dataclass_fields__) and "It was not scored" in text
