"""The methods by name. A new paper is one file here and one line in `METHODS`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from hf_robustcse.errors import UserError
from hf_robustcse.methods.anchor import Anchor
from hf_robustcse.methods.base import Batch, Contribution, Method, Paper, Stack, Term
from hf_robustcse.methods.dcl import DCL
from hf_robustcse.methods.dclr import DCLR
from hf_robustcse.methods.gs_infonce import GSInfoNCE
from hf_robustcse.methods.robustsentembed import RobustSentEmbed
from hf_robustcse.methods.simcse import SimCSE
from hf_robustcse.methods.vadv import VAdv

METHODS: dict[str, type[Method]] = {
    "simcse": SimCSE,
    "vadv": VAdv,
    "gs_infonce": GSInfoNCE,
    "dclr": DCLR,
    "robustsentembed": RobustSentEmbed,
    "dcl": DCL,
    "anchor": Anchor,
}

__all__ = ["METHODS", "Batch", "Contribution", "Method", "Paper", "Stack", "Term", "build"]


def build(name: str, options: Mapping[str, Any] | None = None) -> Stack:
    """The methods named in ``a+b`` as one `Stack`.

    Args:
        name: one or more keys of `METHODS`, joined by ``+``.
        options: values for the options of any of them, by field name; the rest keep their defaults.

    Returns:
        The stack.

    Raises:
        UserError: for an unknown method or option, a method named twice, or a mixture that has no meaning.
    """
    if not isinstance(name, str) or not isinstance(options or {}, Mapping):
        raise UserError(f"a method is a name with options by name, not {name!r} with {options!r}")
    parts = [part.strip() for part in name.split("+")]
    for part in parts:
        if part not in METHODS:
            near = difflib.get_close_matches(part, METHODS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"unknown --method {part!r}: choose one of {', '.join(METHODS)}, or join some by +{hint}")
    left = dict(options or {})
    methods = []
    for part in parts:
        kind = METHODS[part]
        own = {f.name: left.pop(f.name) for f in dataclasses.fields(kind.Options) if f.name in left}
        methods.append(kind(kind.Options(**own)))
    if left:
        raise UserError(f"--method {name} has no option {', '.join(sorted(left))}")
    return Stack(methods)
