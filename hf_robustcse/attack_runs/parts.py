"""Recipes and their resources, out of the options."""

from __future__ import annotations

from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attacks import Recipe
from hf_robustcse.attacks.resources import wordnet_lemmas
from hf_robustcse.attacks.transformations import Synonyms
from hf_robustcse.errors import UserError


def make_recipes(options: Options) -> list[Recipe]:
    """The attacks that were asked for.

    Raises:
        UserError: for an unknown one, or a resource that is not there.
    """
    recipes = []
    for name in options.attack:
        if name != "pwws":
            raise UserError(f"--attack: unknown attack {name!r}; known: pwws")
        transformation = Synonyms(wordnet_lemmas(), "WordNet")
        recipes.append(Recipe("pwws", "Ren et al. 2019", transformation, ranking="weighted-saliency"))
    return recipes
