"""Recipes and their resources, out of the options."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attacks import Recipe
from hf_robustcse.attacks.recipes import build_recipe, recipe_parameters
from hf_robustcse.attacks.resources import Resources
from hf_robustcse.errors import UserError
from hf_robustcse.files import sha256_file


def make_recipes(options: Options) -> list[Recipe]:
    """The attacks that were asked for, with their resources loaded.

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
    return recipes


def resource_files(options: Options) -> dict[str, str]:
    """The SHA-256 of each resource that is a file, by its name."""
    named = (getattr(options, field.name) for field in dataclasses.fields(Resources) if field.init)
    return {str(name): sha256_file(name) for name in named if name is not None and Path(name).is_file()}


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
