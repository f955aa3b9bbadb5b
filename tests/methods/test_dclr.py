"""DCLR against eq. 2-6 as loops in float64."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tiny import SENTENCES

from hf_robustcse.data import text_hash
from hf_robustcse.errors import UserError
from hf_robustcse.methods import build
from hf_robustcse.model import RobustCSEModel

TEMPERATURE = 0.05


def make(bert, **options):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, method="dclr", method_options=options, dropout=0.0).double().train()
    model.set_seed(5)
    return model


def inputs_of(model, texts=SENTENCES):
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    extras = model.method.collate(texts) if model.method.needs_text else {}
    hashes = torch.tensor([[text_hash(text)] for text in texts])
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "text_hash": hashes} | extras


def embedded(model, texts=SENTENCES):
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        pooled = model.encoder(batch["attention_mask"], input_ids=batch["input_ids"])
        return pooled, model.encoder.head(pooled)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def start(count, width, sigma):
    return sigma * torch.randn(count, width, generator=torch.Generator().manual_seed(5 << 32), dtype=torch.float64)


def moved(noise, h, options):
    """Eq. 2-4; the gradient of the cosine is written out."""
    noise = [list(row) for row in noise.tolist()]
    for _ in range(options.dclr_steps):
        gradients = [[0.0] * len(noise[0]) for _ in noise]
        for anchor in h:
            scores = [math.exp(cosine(anchor, g) / TEMPERATURE) for g in noise]
            size = math.hypot(*anchor)
            for g, score, gradient in zip(noise, scores, gradients, strict=True):
                length, c = math.hypot(*g), cosine(anchor, g)
                for k, value in enumerate(g):
                    slope = anchor[k] / size / length - c * value / length**2
                    gradient[k] += score / sum(scores) * slope / TEMPERATURE / len(h)
        for g, gradient in zip(noise, gradients, strict=True):
            step = options.dclr_step_size * (math.hypot(*g) if options.dclr_step == "relative" else 1.0)
            size = math.hypot(*gradient)
            for k in range(len(g)):
                g[k] += step * gradient[k] / size
    return noise


def loss(h, noise, weights, decoupled):
    total = 0.0
    for i, anchor in enumerate(h):
        positive = math.exp(cosine(anchor, h[i]) / TEMPERATURE)
        below = sum(weights[i][j] * math.exp(cosine(anchor, h[j]) / TEMPERATURE) for j in range(len(h)) if j != i)
        below += sum(math.exp(cosine(anchor, g) / TEMPERATURE) for g in noise)
        total -= math.log(positive / (below + (0.0 if decoupled else positive)))
    return total / len(h)


@pytest.mark.parametrize("complement", [None, "self"])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"dclr_step": "relative", "dclr_step_size": 0.5}, {"dclr_k": 2.5, "dclr_steps": 0, "dclr_sigma": 3.0}]
)
def test_loss_is_the_equation(bert, more, decoupled, complement):
    model = make(bert, dclr_decoupled=decoupled, dclr_complement=complement, dclr_threshold=0.995, **more)
    options = model.method.methods["dclr"].options
    got = model(**inputs_of(model))["loss"].item()
    pooled, h = (x.tolist() for x in embedded(model))
    weights = [[0.0 if complement and cosine(a, b) >= 0.995 else 1.0 for b in pooled] for a in pooled]
    if complement:  # an untrained encoder is narrow
        assert 0 < sum(map(sum, weights)) < len(h) * len(h) - 1
    noise = moved(start(round(options.dclr_k * len(h)), len(h[0]), options.dclr_sigma), h, options)
    assert got == pytest.approx(loss(h, noise, weights, decoupled), rel=1e-8)


def test_a_complementary_encoder_with_its_own_tokenizer_and_pooling(bert, encoders, tmp_path):
    """The weights are its cosines; a plain encoder and a SentenceTransformer folder both serve, and are cached."""
    mpnet = encoders["mpnet"]
    other = RobustCSEModel.from_encoder(mpnet, pooler="mean", head="none")
    other.save_pretrained(tmp_path / "st")
    cosines = torch.nn.functional.normalize(other.eval().encode(SENTENCES))
    cosines = cosines @ cosines.T
    values = cosines[~torch.eye(len(cosines), dtype=torch.bool)].sort().values
    widest = values.diff().argmax()  # far from any value, so that rounding decides nothing
    threshold = values[widest : widest + 2].mean().item()
    for name, pooling in ((tmp_path / "st", "cls"), (mpnet, "mean")):
        model = make(
            bert, dclr_complement=str(name), dclr_complement_pooling=pooling, dclr_threshold=threshold, dclr_k=0.0
        )
        method = model.method.methods["dclr"]
        inputs = inputs_of(model)
        first = model(**inputs)["loss"]
        _, h = embedded(model)
        weights = (cosines < threshold).double().tolist()
        assert first.item() == pytest.approx(loss(h.tolist(), [], weights, False), rel=1e-6)
        assert len(method._cache) == len(SENTENCES)
        method._complement[0] = None  # from here on the cache has to do
        assert torch.allclose(model(**inputs)["loss"], first)
        assert not any("complement" in key for key in model.state_dict())


def test_noise_moves_away_from_uniformity_and_leaves_the_encoder_alone(bert):
    model = make(bert, dclr_step="relative", dclr_step_size=0.5)
    still = make(bert, dclr_steps=0)
    assert model(**inputs_of(model))["loss"] > still(**inputs_of(still))["loss"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_distillation_and_weights_of_the_noise(bert):
    model = make(bert, dclr_complement="self", dclr_complement_use="distill")
    out = model(**inputs_of(model))
    assert out["distillation"] > 0 and torch.allclose(out["loss"], out["contrastive"] + out["distillation"])
    method = model.method.methods["dclr"]
    method.options = dataclasses.replace(
        method.options, dclr_complement_use="weight", dclr_noise_weights="complement", dclr_threshold=-1.0
    )
    assert model(**inputs_of(model))["loss"].abs() < 1e-12  # every negative is masked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dclr_k": -1.0}, "--dclr_k must be"),
        ({"dclr_step": "far"}, "--dclr_step must be one of literal, relative"),
        ({"dclr_complement_use": "distill"}, "need --dclr_complement"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build("dclr", options)


def test_a_complement_that_is_not_there(bert):
    with pytest.raises(UserError, match="cannot load --dclr_complement"):
        make(bert, dclr_complement="/nowhere/at-all").method.collate(["text"])
