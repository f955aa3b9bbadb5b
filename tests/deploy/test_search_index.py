"""The index example finds what an exact search finds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tiny import WORDS

from hf_robustcse import RobustCSEModel

pytest.importorskip("usearch")


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location(
        "search_index", Path(__file__).parents[2] / "examples" / "search_index.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_build_then_search(main, bert, tmp_path, capsys):
    model, index = tmp_path / "model", tmp_path / "index"
    RobustCSEModel.from_encoder(bert, pooler="mean").save_pretrained(model)
    texts = [f"{first} {second}" for first in WORDS[:20] for second in WORDS[20:40]]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    main(["--corpus", str(tmp_path / "texts.txt"), "--model", str(model), "--index_dir", str(index)])
    about = json.loads((index / "index.json").read_text())
    assert about["rows"] == 400 and about["queries"] == 400 and about["expansion_search"]["256"]["recall_at_10"] > 0.95
    capsys.readouterr()
    main(["--index_dir", str(index), "--query", texts[7], "--top", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[1].split() == ["1.000", "[7]", *texts[7].split()]


def test_bad_input_is_one_line(main, tmp_path, capsys):
    for words, message in [
        (["--query", "a"], "holds no index"),
        ([], "nothing to do"),
        (["--corpus", "x.txt"], "give both"),
        (["--query", "a", "--top", "0"], "--top"),
        (["--query", "a", "--connectivity", "-5"], "--connectivity"),
    ]:
        with pytest.raises(SystemExit) as end:
            main(["--index_dir", str(tmp_path / "no"), *words])
        assert end.value.code == 2 and message in capsys.readouterr().err
