"""RobustSentEmbed against eq. 2-10 written out with loops and central differences in float64."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from tiny import SENTENCES, make_encoder
from transformers import AutoModelForMaskedLM

from hf_robustcse import functional
from hf_robustcse.distributed import shared_normal
from hf_robustcse.errors import UserError
from hf_robustcse.methods import Batch, Stack, build
from hf_robustcse.methods.base import global_keys
from hf_robustcse.methods.robustsentembed import RobustSentEmbed
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.perturb import TokenTable

N, L, E, D, VOCABULARY = 3, 4, 3, 5, 7
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
WORDS = np.array([[0, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 0]])  # the first token is a special one
IDS = np.array([[1, 2, 3, 2], [1, 4, 0, 0], [1, 3, 5, 0]])  # two tokens occur twice
RNG = np.random.default_rng(0)
W, X, POSITIVES = RNG.normal(size=(E, D)), RNG.normal(size=(N, L, E)), RNG.normal(size=(N, D))
TABLE = RNG.uniform(-0.1, 0.1, size=(VOCABULARY, E))
TABLE[4] = TABLE[5] = 0  # tokens without a perturbation yet
TEMPERATURE = 0.5


def encode_loop(x):
    """A stand-in encoder: the mean over real tokens of tanh(x W)."""
    out = np.zeros((N, D))
    for i in range(N):
        for t in range(L):
            if MASK[i, t]:
                out[i] += np.tanh(x[i, t] @ W) / MASK[i].sum()
    return out


def contrastive(z, kinds):
    """Eq. 9 for each row: the positives of the row over the positives of all rows, of every kind."""
    losses = []
    for i in range(N):
        score = [[math.exp(z[i] @ k[j] / np.linalg.norm(z[i]) / np.linalg.norm(k[j]) / TEMPERATURE) for j in range(N)]
                 for k in kinds]  # fmt: skip
        losses.append(-math.log(sum(row[i] for row in score) / sum(map(sum, score))))
    return losses


def size_of(v, norm):
    v = np.abs(v).ravel()
    return {"linf": v.max(), "l2": math.sqrt((v**2).sum()), "l1": v.sum()}[norm]


def project(p, o):
    for i in range(N):
        if o.rse_norm == "linf":
            p[i] = np.clip(p[i], -o.rse_epsilon, o.rse_epsilon)
        elif size_of(p[i], o.rse_norm) > o.rse_epsilon and o.rse_norm == "l2":
            p[i] *= o.rse_epsilon / size_of(p[i], "l2")
        elif size_of(p[i], o.rse_norm) > o.rse_epsilon:  # soft thresholding, its threshold by bisection
            low, high = 0.0, np.abs(p[i]).max()
            for _ in range(200):
                middle = (low + high) / 2
                over = np.maximum(np.abs(p[i]) - middle, 0).sum() > o.rse_epsilon
                low, high = (middle, high) if over else (low, middle)
            p[i] = np.sign(p[i]) * np.maximum(np.abs(p[i]) - high, 0)
    return p


def gradient_loop(p):
    gradient = np.zeros_like(p)
    for i, t, e in itertools.product(range(N), range(L), range(E)):
        if WORDS[i, t]:
            step = np.zeros_like(p)
            step[i, t, e] = 1e-5
            high, low = (contrastive(encode_loop(X + p + s), [POSITIVES])[i] for s in (step, -step))
            gradient[i, t, e] = (high - low) / 2e-5
    return gradient


def oracle(o):
    """eta, the table after it, and delta."""
    eta = np.zeros((N, L, E))
    for i, t in itertools.product(range(N), range(L)):
        eta[i, t] = TABLE[IDS[i, t]] * WORDS[i, t]
    pgd, fgsm = np.zeros((N, L, E)), np.zeros((N, L, E))
    for _ in range(o.rse_pgd_steps):
        gradient, before = gradient_loop(eta), eta.copy()
        for i, t in itertools.product(range(N), range(L)):
            if WORDS[i, t]:
                index = (
                    size_of(before[i, t], o.rse_norm) / max(size_of(before[i, k], o.rse_norm) for k in range(L))
                    if before[i, t].any()
                    else 1.0
                )
                step = o.rse_alpha * gradient[i, t] / size_of(gradient[i, t], o.rse_norm)
                eta[i, t] = index * (before[i, t] + step)
        eta = project(eta, o)
        gradient = gradient_loop(pgd)
        for i in range(N):
            pgd[i] += o.rse_alpha * gradient[i] / size_of(gradient[i], o.rse_norm)
        pgd = project(pgd, o)
    for _ in range(o.rse_fgsm_steps):
        fgsm = project(fgsm + o.rse_beta * np.sign(gradient_loop(fgsm)), o)
    table = TABLE.copy()
    for token in range(VOCABULARY):
        found = [eta[i, t] for i in range(N) for t in range(L) if IDS[i, t] == token and WORDS[i, t]]
        if found:
            table[token] = sum(found) / len(found)
    return eta, table, o.rse_rho * pgd + (1 - o.rse_rho) * fgsm


def toy_batch():
    w = torch.tensor(W)

    def encode(x):
        mask = torch.tensor(MASK).repeat(len(x) // N, 1)
        return (torch.tanh(x @ w) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    embeds = torch.tensor(X, requires_grad=True)
    h = encode(embeds)
    return Batch(
        input_ids=torch.tensor(IDS), attention_mask=torch.tensor(MASK), words=torch.tensor(WORDS).bool(), extras={},
        positive_ids=None, positive_mask=None, text_hash=None, hard_negatives=None, embeds=embeds, pooled=h,
        pooled_pos=h, h=h, h_pos=torch.tensor(POSITIVES), encode=encode, encode_ids=lambda ids, mask: h,
        embed=lambda ids: embeds, project=lambda x: x, dropout_free=contextlib.nullcontext,
        same_dropout=contextlib.nullcontext, temperature=TEMPERATURE,
    )  # fmt: skip


def toy_method(**options):
    method = RobustSentEmbed(RobustSentEmbed.Options(**options))
    method.table = TokenTable(VOCABULARY, E).double()
    method.table.rows.copy_(torch.tensor(TABLE))
    return method


GRID = [
    {"rse_norm": norm, "rse_pgd_steps": k, "rse_fgsm_steps": t, "rse_epsilon": epsilon}
    for norm, (k, t), epsilon in itertools.product(("linf", "l2", "l1"), ((2, 3), (3, 1)), (0.05, 3.0))
]


@pytest.mark.parametrize("grid", GRID, ids=lambda g: "-".join(map(str, g.values())))
def test_attack_is_the_equations(grid):
    method = toy_method(rse_alpha=0.03, rse_beta=0.02, rse_rho=0.3, **grid)
    batch = toy_batch()
    got = method.attack(batch, global_keys(batch))
    eta, table, delta = oracle(method.options)
    for x, want in zip((got[0], method.table.rows, got[1]), (eta, table, delta), strict=True):
        assert np.abs(want).max() > 1e-3
        assert torch.allclose(x, torch.tensor(want), atol=1e-7)


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_loss_is_eq_10(rho):
    method = toy_method(rse_lambda2=0.0, rse_lambda1=0.25, rse_alpha=0.03, rse_beta=0.02, rse_epsilon=0.1, rse_rho=rho)
    loss, terms = Stack([method])(toy_batch())
    _, _, delta = oracle(method.options)
    h, adversarial = encode_loop(X), encode_loop(X + delta)
    second = sum(contrastive(adversarial, [POSITIVES])) / N
    assert terms["adversarial"].item() == pytest.approx(second, rel=1e-7)
    assert loss.item() == pytest.approx(sum(contrastive(h, [POSITIVES, adversarial])) / N + second / 4, rel=1e-7)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_ball_and_what_is_no_word(norm):
    """Inside the ball whatever the steps; padding and special tokens untouched; as many passes as the longest chain."""
    seen, batch = [], toy_batch()
    inner = batch.encode
    batch.encode = lambda x: (seen.append(x.detach()), inner(x))[1]
    method = toy_method(rse_norm=norm, rse_epsilon=0.2, rse_alpha=5.0, rse_beta=5.0, rse_fgsm_steps=2)
    eta, delta = method.attack(batch, global_keys(batch))
    assert [len(x) for x in seen] == [3 * N] * 2 + [2 * N] * 3
    rest = torch.tensor(WORDS) == 0
    for x in torch.cat(seen).split(N):
        assert torch.equal(x[rest], batch.embeds.detach()[rest])
    for p in (eta, delta):
        assert not p[rest].any() and p.any()
        assert all(size_of(row, norm) <= 0.2 * (1 + 1e-9) for row in p.numpy())
    untouched = [0, 1, 6]  # padding, the special token, and a token that is not in the batch
    assert torch.equal(method.table.rows[untouched], torch.tensor(TABLE)[untouched])


def make(encoder, dropout=0.1, **options):
    torch.manual_seed(0)
    options = {"rse_epsilon": 0.1, "rse_alpha": 0.01, "rse_beta": 0.02, **options}
    model = RobustCSEModel.from_encoder(encoder, method="robustsentembed", method_options=options, dropout=dropout)
    model.set_seed(5)
    return model.train()


def inputs_of(model):
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def watch(model):
    """The batches and contributions that the method saw and made."""
    calls = []
    model.method.methods["robustsentembed"].register_forward_hook(lambda _, args, out: calls.append((args[0], out)))
    return calls


def test_detection_is_eq_8(masked_lm):
    model = make(masked_lm, dropout=0.0, rse_discriminator_layers=2).double()
    method, calls, (ids, mask) = model.method.methods["robustsentembed"], watch(model), inputs_of(model)
    out = model(ids, mask)
    words, h = calls[0][0].words, calls[0][0].h
    # The table holds means by now: the same attack from the table as it was gives eta.
    again = make(masked_lm, dropout=0.0, rse_discriminator_layers=2).double().method.methods["robustsentembed"]
    eta = again.attack(calls[0][0], global_keys(calls[0][0]))[0]
    assert eta.any()
    generator = AutoModelForMaskedLM.from_pretrained(masked_lm).eval()
    normal = shared_normal(torch.zeros(*ids.shape, 2, dtype=torch.float64), seed=5 << 32)
    uniform = (1 + torch.erf(normal / math.sqrt(2))) / 2
    masked = ids.clone()
    for i, t in words.nonzero().tolist():
        if uniform[i, t, 0] < 0.3:
            masked[i, t] = model.tokenizer.mask_token_id
    with torch.no_grad():
        probability = generator(input_ids=masked, attention_mask=mask).logits.softmax(-1)
    replaced = ids.clone()
    for i, t in words.nonzero().tolist():
        if masked[i, t] != ids[i, t]:
            left = uniform[i, t, 1].item()
            for token in range(64):
                left -= probability[i, t, token].item()
                if left <= 0:
                    break
            replaced[i, t] = token
    changed = (replaced != ids).sum().item()
    assert 0.1 * words.sum() < changed < 0.45 * words.sum()
    x = model.encoder.embed(replaced) + eta
    x[:, 0] = h
    with torch.no_grad():
        discriminator = method.discriminator
        tokens = discriminator.backbone(inputs_embeds=x, attention_mask=mask).last_hidden_state
        total = 0.0
        for i, t in words.nonzero().tolist():
            p = 1 / (1 + math.exp(-(tokens[i, t] @ discriminator.classifier.weight[0] + discriminator.classifier.bias)))
            total -= math.log(p if replaced[i, t] != ids[i, t] else 1 - p)
    assert out["rtd"].item() == pytest.approx(total / words.sum().item(), rel=1e-6)
    assert len(discriminator.backbone.encoder.layer) == 2
    assert torch.allclose(out["loss"], out["contrastive"] + out["adversarial"] / 128 + 0.005 * out["rtd"])


def test_detection_trains_the_encoder_through_h_alone(masked_lm):
    model = make(masked_lm, dropout=0.0)
    calls = watch(model)
    model(*inputs_of(model))
    batch, value = calls[0][0], calls[0][1].terms["rtd"].value
    weight = model.encoder.backbone.get_input_embeddings().weight
    whole, through = torch.autograd.grad(value, (weight, batch.h), retain_graph=True)
    assert through.abs().sum() > 0
    assert torch.allclose(torch.autograd.grad(batch.h, weight, through)[0], whole, atol=1e-8)


def test_attack_leaves_gradients_and_statistics_alone(masked_lm):
    model = make(masked_lm)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    model(*inputs_of(model))
    assert all(torch.all(parameter.grad == 2.0) for parameter in model.parameters())
    assert model.encoder.head[1].num_batches_tracked == 1  # the contrastive pass
    assert all(module.training for module in model.modules())
    plain = RobustCSEModel.from_encoder(masked_lm, head="mlp", dropout=0.1).train()
    plain.encoder.load_state_dict(make(masked_lm).encoder.state_dict())
    torch.manual_seed(1)
    plain(*inputs_of(plain))
    model = make(masked_lm)
    torch.manual_seed(1)
    model(*inputs_of(model))
    others = dict(plain.encoder.named_buffers())
    assert all(torch.equal(value, others[name]) for name, value in model.encoder.named_buffers())


def test_attack_in_half_precision(bert):
    """float16 neither flushes nor overflows the gradients: nearly the attack of float32."""
    deltas = []
    for half in (False, True):
        model = make(bert, dropout=0.0, rse_lambda2=0.0, rse_pgd_steps=1, rse_rho=1.0)
        calls = []
        inner = model.method.methods["robustsentembed"].attack
        model.method.methods["robustsentembed"].attack = lambda *a, c=calls, f=inner: (c.append(f(*a)), c[-1])[1]
        with torch.autocast("cpu", torch.float16, enabled=half):
            assert model(*inputs_of(model))["loss"].isfinite()
        deltas.append(calls[0][1].flatten())
    assert torch.cosine_similarity(*deltas, dim=0) > 0.99


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_adversarial_is_harder_than_clean_and_than_random(bert, norm):
    model = make(bert, dropout=0.0, rse_lambda2=0.0, rse_norm=norm, rse_epsilon=0.3, rse_alpha=0.1)
    method, calls = model.method.methods["robustsentembed"], watch(model)
    model(*inputs_of(model))
    batch = calls[0][0]
    keys = global_keys(batch)
    _, delta = method.attack(batch, keys)

    def loss(p):
        with torch.no_grad():
            return functional.info_nce(batch.project(batch.encode(batch.embeds + p)), **keys).item()

    other = delta[torch.arange(len(delta)) - 1] * batch.words[:, :, None]  # of the same kind, for another sentence
    assert loss(delta) > 1.1 * loss(0.0)
    assert loss(delta) > loss(other)


def test_state_goes_through_the_files_and_a_seed_repeats(masked_lm, tmp_path):
    model = make(masked_lm)
    method = model.method.methods["robustsentembed"]
    inputs = inputs_of(model)
    assert not method.table.rows.any()
    model(*inputs)
    assert method.table.rows.any()
    assert not any("generator" in key for key in model.state_dict())
    model.save_pretrained(tmp_path)
    again = RobustCSEModel.from_pretrained(tmp_path, method_options={"rse_generator": str(masked_lm)}).train()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    results = []
    for one in (model, again):
        torch.manual_seed(3)
        out = one(*inputs)
        out["loss"].backward()
        results.append([*out.values(), *(p.grad for p in one.parameters() if p.grad is not None), *one.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_every_parameter_that_learns_gets_a_gradient(encoders, tmp_path):
    """Narrow word embeddings and a family with other names; what takes no part would make DDP wait."""
    for family in ("electra", "modernbert"):
        generator = make_encoder(tmp_path / family, family, kind=AutoModelForMaskedLM)
        model = make(encoders[family], rse_generator=str(generator))
        model(*inputs_of(model))["loss"].backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        assert not any("word_embeddings" in k or "tok_embeddings" in k for k in model.method.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rse_norm": "l3"}, "--rse_norm must be one of linf, l2, l1"),
        ({"rse_epsilon": 0.0}, "--rse_epsilon must be a number above 0"),
        ({"rse_fgsm_steps": -1}, "--rse_fgsm_steps must be a number of at least 0"),
        ({"rse_rho": 1.5}, "--rse_rho must be between 0 and 1"),
        ({"rse_mask_rate": 1.0}, "--rse_mask_rate must be between 0 and 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build("robustsentembed", options)


def test_a_generator_that_does_not_serve(bert, tmp_path):
    small = make_encoder(tmp_path / "small", kind=AutoModelForMaskedLM, vocab_size=60)
    for name, message in ((None, "no trained head"), ("/nowhere/at-all", "cannot load"), (str(small), "has 60 tokens")):
        with pytest.raises(UserError, match=f"{message}.*--rse_generator.*--rse_lambda2 0"):
            make(bert, rse_generator=name)
    with pytest.raises(UserError, match="--rse_discriminator_layers must be between 1 and 3"):
        make(bert, rse_discriminator_layers=4)
