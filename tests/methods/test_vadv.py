"""V-advCSE against Algorithm 1 written out with loops and central differences in float64."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from tiny import SENTENCES

from hf_robustcse.distributed import shared_normal
from hf_robustcse.errors import UserError
from hf_robustcse.methods import Batch, build
from hf_robustcse.methods.vadv import VAdv
from hf_robustcse.model import RobustCSEModel

N, L, E, D = 3, 4, 3, 5
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(E, D)), RNG.normal(size=(N, L, E))
TEMPERATURE = 0.5


def encode_loop(x):
    """A stand-in encoder: the mean over real tokens of tanh(x W)."""
    out = np.zeros((N, D))
    for i in range(N):
        for t in range(L):
            if MASK[i, t]:
                out[i] += np.tanh(x[i, t] @ W) / MASK[i].sum()
    return out


def softmax(z):
    e = [math.exp(v - max(z)) for v in z]
    return [v / sum(e) for v in e]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def divergence(p, q, kind):
    if kind == "kl":
        return kl(p, q)
    if kind == "skl":
        return (kl(p, q) + kl(q, p)) / 2
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, m) + kl(q, m)) / 2


def rows(h, keys):
    if keys is None:
        return [softmax(v) for v in h]
    cos = [[v @ k / np.linalg.norm(v) / np.linalg.norm(k) / TEMPERATURE for k in keys] for v in h]
    return [softmax(v) for v in cos]


def oracle(options, noise):
    """F after K steps, with the gradient taken by central differences, one component after the other."""
    clean = encode_loop(X)
    keys = clean if options.vadv_distribution == "similarity" else None
    reference = rows(clean, keys)

    def per_row(r):
        return [
            divergence(p, q, options.vadv_divergence)
            for p, q in zip(reference, rows(encode_loop(X + r), keys), strict=True)
        ]

    def project(r):
        for i in range(N):
            if options.vadv_norm == "linf":
                r[i] = np.clip(r[i], -options.vadv_epsilon, options.vadv_epsilon)
            else:
                size = math.sqrt((r[i] ** 2).sum())
                if size > options.vadv_epsilon:
                    r[i] *= options.vadv_epsilon / size
        return r

    r = project(options.vadv_sigma * noise * MASK[:, :, None])
    for _ in range(options.vadv_steps):
        gradient = np.zeros_like(r)
        for i, t, e in itertools.product(range(N), range(L), range(E)):
            step = np.zeros_like(r)
            step[i, t, e] = 1e-5
            gradient[i, t, e] = (sum(per_row(r + step)) - sum(per_row(r - step))) / 2e-5
        for i in range(N):
            if options.vadv_step == "normalized":
                size = np.abs(gradient[i]).max() if options.vadv_norm == "linf" else math.sqrt((gradient[i] ** 2).sum())
                gradient[i] /= size
        r = project(r + options.vadv_step_size * gradient)
    return sum(per_row(r)) / N


def toy_batch():
    w, mask = torch.tensor(W), torch.tensor(MASK)

    def encode(x):
        return (torch.tanh(x @ w) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    embeds = torch.tensor(X, requires_grad=True)
    h = encode(embeds)
    return Batch(
        input_ids=mask, attention_mask=mask, positive_ids=None, positive_mask=None, words=mask.bool(), extras={},
        text_hash=None, hard_negatives=None, embeds=embeds, pooled=h, pooled_pos=h, h=h, h_pos=h,
        embed=lambda ids: embeds, encode=encode, encode_ids=lambda ids, mask: h,
        project=lambda x: x,
        dropout_free=contextlib.nullcontext, same_dropout=contextlib.nullcontext, temperature=TEMPERATURE,
    )  # fmt: skip


GRID = [
    dict(zip(("vadv_divergence", "vadv_norm", "vadv_distribution", "vadv_step", "vadv_steps"), values, strict=True))
    for values in itertools.product(
        ("js", "kl", "skl"), ("l2", "linf"), ("embedding", "similarity"), ("normalized", "literal"), (1, 2)
    )
]


@pytest.mark.parametrize("grid", GRID, ids=lambda g: "-".join(map(str, g.values())))
def test_against_the_loop(grid):
    options = VAdv.Options(vadv_sigma=0.3, vadv_epsilon=0.6, vadv_step_size=0.5, **grid)
    method = VAdv(options)
    method.noise.seed.fill_(7)
    noise = shared_normal(torch.tensor(X), seed=7 << 32).numpy()
    for dropout in ("shared", "independent", "off"):
        method.noise.calls.zero_()
        method.options = dataclasses.replace(options, vadv_dropout=dropout)
        term = method(toy_batch()).terms["vadv"]
        assert term.value.item() == pytest.approx(oracle(options, noise), rel=1e-5, abs=1e-9)
        assert term.weight == 1e-6


def test_the_clean_side_is_a_constant():
    """The gradient of the term is that of F with its first argument held fixed."""
    method = VAdv(VAdv.Options(vadv_steps=0, vadv_sigma=0.3))
    batch = toy_batch()
    noise = torch.tensor(MASK)[:, :, None] * 0.3 * shared_normal(batch.embeds.detach(), seed=0)
    noise = noise / noise.flatten(1).norm(dim=1).clamp_min(1.0)[:, None, None]
    (got,) = torch.autograd.grad(method(batch).terms["vadv"].value, batch.embeds)
    fixed = batch.h.detach().softmax(1)
    x = batch.embeds.detach().requires_grad_()
    moved = batch.encode(x + noise).softmax(1)
    middle = (fixed + moved) / 2
    js = ((fixed * (fixed / middle).log() + moved * (moved / middle).log()) / 2).sum(1).mean()
    (want,) = torch.autograd.grad(js, x)
    assert torch.allclose(got, want, atol=1e-12)


def test_padding_is_never_perturbed_and_no_weight_gradient_is_taken():
    seen = []
    batch = toy_batch()
    inner = batch.encode
    batch.encode = lambda x: (seen.append(x), inner(x))[1]
    VAdv(VAdv.Options(vadv_steps=3))(batch)
    assert len(seen) == 3 + 1  # the clean side is the pass that the contrastive loss has paid for
    padding = torch.tensor(MASK) == 0
    for x in seen:
        assert torch.equal(x.detach()[padding], batch.embeds.detach()[padding])
    assert batch.embeds.grad is None


@pytest.fixture
def model(bert):
    torch.manual_seed(0)
    return RobustCSEModel.from_encoder(bert, method="vadv", method_options={"vadv_lambda": 1.0}, dropout=0.3).train()


def step(model):
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return model(batch["input_ids"], batch["attention_mask"])


def test_attack_leaves_accumulated_gradients_alone(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    step(model)
    assert all(torch.equal(parameter.grad, before[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("distribution", ["embedding", "similarity"])
@pytest.mark.parametrize("dropout", ["shared", "off"])
def test_without_a_perturbation_both_sides_are_equal(model, dropout, distribution):
    """With one dropout mask for both sides, or none, F measures the perturbation alone."""
    method = model.method.methods["vadv"]
    method.options = dataclasses.replace(
        method.options, vadv_dropout=dropout, vadv_sigma=0.0, vadv_steps=0, vadv_distribution=distribution
    )
    assert step(model)["vadv"] < 1e-7
    method.options = dataclasses.replace(method.options, vadv_dropout="independent")
    assert step(model)["vadv"] > 1e-5
    assert all(m.training for m in model.modules())


def test_only_the_contrastive_pass_moves_the_running_statistics(bert):
    """The attack normalises by its own batch and leaves no trace of it."""
    after = []
    for steps in (0, 3):
        torch.manual_seed(0)
        options = {"vadv_distribution": "similarity", "vadv_steps": steps}
        model = RobustCSEModel.from_encoder(bert, method="vadv", method_options=options, head="mlp").train()
        torch.manual_seed(1)
        step(model)
        after.append({name: value.clone() for name, value in model.encoder.head.named_buffers()})
        drawn = torch.rand(1)  # nor do replayed passes change what is drawn next
        after[-1]["drawn"] = drawn
    assert all(torch.equal(value, after[1][name]) for name, value in after[0].items())
    assert after[0]["1.num_batches_tracked"] == 1


def test_adversarial_beats_random(model):
    """The gradient step finds a direction that hurts more than noise of the same length does."""
    method = model.method.methods["vadv"]

    def value(**changes):
        method.options = dataclasses.replace(VAdv.Options(), vadv_dropout="off", vadv_epsilon=0.5, **changes)
        return step(model)["vadv"].item()

    random = sum(value(vadv_steps=0, vadv_sigma=10.0) for _ in range(5)) / 5
    assert value(vadv_steps=1, vadv_step_size=5.0) > 2 * random


def test_same_seed_same_noise_and_the_count_is_state(model):
    torch.manual_seed(1)
    first = step(model)["vadv"]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(1)
    second = step(model)["vadv"]
    assert first != second  # fresh noise at every step
    model.load_state_dict(state)
    torch.manual_seed(1)
    assert torch.equal(step(model)["vadv"], second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vadv_divergence": "tv"}, "--vadv_divergence must be one of js, kl, skl"),
        ({"vadv_epsilon": 0.0}, "--vadv_epsilon must be a number above 0"),
        ({"vadv_sigma": -1.0}, "--vadv_sigma must be a number of at least 0"),
        ({"vadv_typo": 1}, "has no option vadv_typo"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build("vadv", options)
