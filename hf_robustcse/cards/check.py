"""What the Hub demands of a card's metadata, checked without it."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from huggingface_hub.utils import validate_repo_id

from hf_robustcse.errors import UserError
from hf_robustcse.report.read import clean

# https://huggingface.co/docs/hub/repositories-licenses
LICENSES = frozenset(
    """afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research intel-research isc
    lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa
    odbl odc-by ofl-1.1 open-mdw openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl
    zlib""".split()
)
_LISTS = ("base_model", "datasets", "language", "license", "metrics", "tags")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual|code")


def check_license(license: str, option: str = "--license") -> None:
    """Refuse what is no identifier of the Hub.

    Raises:
        UserError: naming the option and where the list is.
    """
    if license not in LICENSES:
        raise UserError(
            f"{option} {clean(license)} is no identifier that the Hub knows: take one of "
            "https://huggingface.co/docs/hub/repositories-licenses, such as apache-2.0, cc-by-sa-4.0 or other"
        )


def check_language(language: str, option: str = "--language") -> None:
    """Refuse what is no code of a language.

    Raises:
        UserError: naming the option.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"{option} {clean(language)} is no code of a language: take an ISO 639 code such as en")


def check_repo_id(repo_id: str, what: str) -> None:
    """Refuse what cannot be the id of a repository.

    Raises:
        UserError: saying why.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{what} {clean(repo_id)} is no id of the Hub: {clean(error)}") from None


def validate(text: str) -> ModelCard:
    """Check the metadata of a model card as the Hub would, without the Hub.

    Args:
        text: the card, YAML in front.

    Returns:
        The card as huggingface_hub reads it.

    Raises:
        UserError: one line that names the field and what is wrong.
    """
    if not (block := REGEX_YAML_BLOCK.search(text)):
        raise UserError("the card has no metadata: it must begin with a block of YAML between two lines of ---")
    try:
        data = yaml.safe_load(block[2])
    except yaml.YAMLError as error:
        raise UserError(f"the card's metadata is no YAML: {clean(error)}") from None
    if not isinstance(data, dict):
        raise UserError("the card's metadata is no list of name: value lines")
    for name in _LISTS:
        values = data.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, str):  # YAML reads no and 1e5 as something else
                raise UserError(f"the card's {name} holds {clean(value)!r}, which YAML does not read as text: quote it")
    for value in _entries(data, "license"):
        check_license(value, "the card's license")
    for value in _entries(data, "language"):
        check_language(value, "the card's language")
    for name in ("base_model", "datasets"):
        for value in _entries(data, name):
            check_repo_id(value, f"the card's {name}")
    if "model-index" in data:
        _check_model_index(data["model-index"])
    return ModelCard(text)


def _entries(data: dict[str, Any], name: str) -> list[str]:
    values = data.get(name, [])
    return values if isinstance(values, list) else [values]


def _check_model_index(index: Any) -> None:
    """Names, types and values; and the same after a round trip, which loses what huggingface_hub does not know."""
    try:
        name, results = model_index_to_eval_results(index)
        again = eval_results_to_model_index(name, results)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the card's model-index is malformed ({type(error).__name__}: {clean(error)})") from None
    if again != index:
        raise UserError(
            "the card's model-index is not as huggingface_hub writes it: it has an unknown field, or two entries "
            "with the same task and data"
        )
    for result in results:
        texts = {"task": result.task_type, "dataset": result.dataset_type, "metric": result.metric_type, "model": name}
        for what, value in {**texts, "dataset": result.dataset_name}.items():
            if not isinstance(value, str) or not value:
                raise UserError(f"the card's model-index has a {what} that is no text: {clean(value)!r}")
        value = result.metric_value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"the card's model-index has the value {clean(value)!r}, which is no number")
