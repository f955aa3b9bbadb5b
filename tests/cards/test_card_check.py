"""The metadata that the Hub would refuse, refused without it."""

from __future__ import annotations

import pytest
import yaml

from hf_robustcse.cards import validate
from hf_robustcse.errors import UserError

RESULT = {
    "task": {"type": "semantic-similarity"},
    "dataset": {"name": "STS-B", "type": "stsb", "split": "test"},
    "metrics": [{"type": "spearman_cosine", "value": 70.0}],
}


def card(**data: object) -> str:
    return f"---\n{yaml.safe_dump(data)}---\n\n# Title\n"


def index(**changes: object) -> dict[str, object]:
    return {"model-index": [{"name": "m", "results": [RESULT | changes]}]}


def test_a_good_card_is_read():
    good = validate(card(license="cc-by-sa-4.0", language=["en", "zh-Hant"], base_model="org/name", **index()))
    assert good.data.eval_results[0].metric_value == 70.0 and good.data.language == ["en", "zh-Hant"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("# no metadata\n", "no metadata"),
        ("---\na: [\n---\n", "is no YAML"),
        ("---\n- a\n---\n", "is no list of"),
        (card(license="Apache 2.0"), "license Apache 2.0 is no identifier"),
        ("---\nlanguage: no\n---\n", "language holds 'False'"),
        (card(language="english"), "is no code of a language"),
        (card(tags=["a", 1]), "tags holds '1'"),
        (card(base_model="/home/me/model"), "is no id of the Hub"),
        (card(datasets=["a/b/c"]), "is no id of the Hub"),
        (card(**{"model-index": [{"name": "m"}]}), "model-index"),
        (card(**index(dataset={"type": "x"})), "model-index"),
        (card(**index(metrics=[{"type": "x", "value": "70 ± 1"}])), "which is no number"),
        (card(**index(metrics=[{"type": "x", "value": float("nan")}])), "which is no number"),
        (card(**index(surprise=1)), "not as huggingface_hub writes it"),
    ],
)
def test_a_bad_card_is_refused_in_one_line(text, said):
    with pytest.raises(UserError) as refused:
        validate(text)
    assert said in str(refused.value) and "\n" not in str(refused.value)
