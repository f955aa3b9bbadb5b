"""GS-InfoNCE against its equation as a loop in float64."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import SENTENCES

from hf_robustcse.errors import UserError
from hf_robustcse.methods import build
from hf_robustcse.model import RobustCSEModel


def step(model, seed=1):
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    torch.manual_seed(seed)
    return model(batch["input_ids"], batch["attention_mask"])


def make(bert, method="gs_infonce", **options):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, method=method, method_options=options, dropout=0.0).double().train()
    model.set_seed(5)
    return model


def oracle(h, noise, weight, temperature):
    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    total = 0.0
    for i, anchor in enumerate(h):
        negatives = sum(math.exp(cosine(anchor, other) / temperature) for other in h)
        negatives += weight * sum(math.exp(cosine(g, anchor) / temperature) for g in noise)
        total -= math.log(math.exp(cosine(anchor, h[i]) / temperature) / negatives)
    return total / len(h)


@pytest.mark.parametrize(
    "options", [{}, {"gs_lambda": 0.3, "gs_multiple": 0.5}, {"gs_mu": 2.0, "gs_sigma": 0.5}, {"gs_multiple": 0.0}]
)
def test_loss_is_the_equation(bert, options):
    model = make(bert, **options)
    o = model.method.methods["gs_infonce"].options
    got = step(model)["loss"].item()
    ids = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    h = model.encoder.head(model.encoder(ids["attention_mask"], input_ids=ids["input_ids"])).detach()
    count = round(o.gs_multiple * len(SENTENCES))
    generator = torch.Generator().manual_seed(5 << 32)
    noise = torch.randn(count, h.shape[1], generator=generator, dtype=torch.float64) * o.gs_sigma + o.gs_mu
    assert got == pytest.approx(oracle(h.tolist(), noise.tolist(), o.gs_lambda, 0.05), rel=1e-9)


def test_sigma_has_no_effect_without_mu_and_noise_is_fresh(bert):
    model = make(bert)
    first, second = step(model)["loss"], step(model)["loss"]
    assert first != second
    assert torch.allclose(step(make(bert, gs_sigma=0.1))["loss"], first, rtol=1e-12)
    assert first > step(make(bert, method="simcse"))["loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gs_lambda": -1.0}, "--gs_lambda must be"), ({"gs_sigma": 0.0}, "--gs_sigma must be"),
     ({"gs_multiple": math.nan}, "--gs_multiple must be")],
)  # fmt: skip
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build("gs_infonce", options)
