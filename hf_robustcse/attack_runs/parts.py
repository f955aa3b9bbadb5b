"""Recipes and their resources, out of the options."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torch import nn

from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attack_runs.victims import fingerprint
from hf_robustcse.attacks import Recipe
from hf_robustcse.attacks.recipes import build_recipe, recipe_parameters
from hf_robustcse.attacks.resources import Resources
from hf_robustcse.errors import UserError
from hf_robustcse.files import sha256_file


def make_recipes(options: Options) -> tuple[list[Recipe], dict[str, str]]:
    """The attacks that were asked for, with their resources loaded, and the SHA-256 of each resource by its name.

    Raises:
        UserError: for an unknown attack or parameter, or a resource that is not there.
    """
    parameters = _parameters(options)
    named = {field.name: getattr(options, field.name) for field in dataclasses.fields(Resources) if field.init}
    resources = Resources(**named)
    resources.victim, resources.device = options.model_name_or_path, options.device
    recipes = []
    for name in options.attack:
        try:
            recipes.append(build_recipe(name, resources, **parameters[name]))
        except UserError as error:
            raise UserError(f"--attack {name}: {error}") from error
    return recipes, _sums(named, resources)


def _sums(named: dict[str, str | None], resources: Resources) -> dict[str, str]:
    """The SHA-256 of the resources that are files, and of the weights of those that are models and were loaded."""
    sums = {name: sha256_file(name) for name in named.values() if name is not None and Path(name).is_file()}
    loaded = vars(resources)  # a resource that no recipe asked for was not loaded, and is not here
    holders = {
        named[option]: loaded.get(key) for option, key in (("masked_lm", "language_model"), ("pos_tagger", "tagger"))
    }
    if loaded.get("encoder") is not None:
        holders[named["sentence_encoder"]] = resources.encoder.encode
    for name, holder in holders.items():
        if isinstance(module := getattr(holder, "model", None), nn.Module):
            sums[name] = fingerprint(module, getattr(holder, "tokenizer", getattr(module, "tokenizer", None)))
    return sums


def _parameters(options: Options) -> dict[str, dict[str, str]]:
    """The parameters of each attack, out of `k=8` (for all that have it) and `bae.k=8`."""
    given: dict[str, dict[str, str]] = {name: {} for name in options.attack}
    known = {name: recipe_parameters(name) for name in options.attack}
    for word in options.parameter:
        key, equals, value = word.partition("=")
        recipe, dot, key = key.rpartition(".")
        mine = [recipe] if dot else [name for name in known if key in known[name]]
        if not equals or not mine or any(key not in known.get(name, ()) for name in mine):
            has = "; ".join(f"{name}: {', '.join(names) or 'none'}" for name, names in known.items())
            raise UserError(f"--parameter {word} is no parameter of these attacks ({has}), as in k=8 or bae.k=8")
        for name in mine:
            given[name][key] = value
    return given
