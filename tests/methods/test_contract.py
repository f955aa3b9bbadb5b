"""What holds for every method: one contract over all of `METHODS`."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, SENTENCES, options_of

from hf_robustcse import functional
from hf_robustcse.data import text_hash
from hf_robustcse.errors import UserError
from hf_robustcse.methods import METHODS, build
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.runs import EMBEDDED_ENCODER

ROOT = Path(__file__).parents[2]


def batch_of(model, sentences=SENTENCES):
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def test_files_keys_and_tests_agree():
    files = {path.stem for path in (ROOT / "hf_robustcse" / "methods").glob("*.py")} - {"__init__", "base"}
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"contract"}
    cards = {path.stem for path in (ROOT / "model_cards").glob("*.md")} - {"README"}
    assert files == set(METHODS) == tests == cards
    assert all(METHODS[name].name == name for name in METHODS)


def stacks():
    """Every method and every pair of which `Stack` makes one loss."""
    found = list(METHODS)
    for pair in itertools.combinations(METHODS, 2):
        try:
            build("+".join(pair))
        except UserError:
            continue
        found.append("+".join(pair))
    return found


# Both attacks with one ball, so that what holds for a perturbation can be said of either. On an encoder of a random
# seed steps of the papers' sizes are too short to tell an ascent from rounding.
ATTACKS = {
    "vadv": {"vadv_norm": "linf", "vadv_epsilon": 0.02, "vadv_step_size": 0.05, "vadv_steps": 2},
    "robustsentembed": {"rse_epsilon": 0.02, "rse_alpha": 0.004, "rse_beta": 0.004},
}


def cases():
    """Every method on every family; a stack on two of them, on the rest in slow runs."""
    for name, family in itertools.product(stacks(), FAMILIES):
        often = "+" not in name or family in ("bert", "deberta-v2")
        yield pytest.param(name, family, marks=[] if often else pytest.mark.slow)


@pytest.mark.parametrize(("name", "family"), cases())
def test_contract(name, family, encoders, tmp_path):
    parts = name.split("+")
    options = options_of(name) | {key: value for part in parts for key, value in ATTACKS.get(part, {}).items()}
    torch.manual_seed(0)
    encoder = encoders[family]
    model = RobustCSEModel.from_encoder(encoder, method=name, method_options=options, dropout=0.0).train()
    ids, mask = batch_of(model)
    plain = RobustCSEModel.from_encoder(encoder, head=model.config.head, dropout=0.0).train()
    plain.encoder.load_state_dict(model.encoder.state_dict())
    clean = plain(ids, mask)["contrastive"]

    # What an attack reads is recorded on its way into the encoder; gradients that are there before must stay.
    seen = []
    forward = model.method.forward

    def watch(batch):
        encode = batch.encode

        def record(x):
            seen.append((x.detach().view(-1, *batch.embeds.shape) - batch.embeds.detach(), batch.words))
            return encode(x)

        return forward(dataclasses.replace(batch, encode=record))

    model.method.forward = watch
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5) if parameter.requires_grad else None
    output = model(ids, mask)
    model.method.forward = forward
    assert all((p.grad == 0.5).all() for p in model.parameters() if p.requires_grad)
    for (key, got), want in zip(model.encoder.named_buffers(), plain.encoder.buffers(), strict=True):
        assert torch.allclose(got, want, atol=1e-6), key  # the contrastive pass has moved them, and nothing else
    assert bool(seen) == bool({"vadv", "robustsentembed"} & set(parts))
    for perturbation, words in seen:
        assert perturbation[:, ~words].abs().max() == 0  # no padding, no special token
        assert perturbation.abs().max() <= 0.02 * (1 + 1e-4)
    if "robustsentembed" in parts:
        assert output["adversarial"] > clean
    if "vadv" in parts:
        assert output["vadv"] > 0  # the divergence of the clean sentences from themselves is 0

    assert output["loss"].dim() == 0 and output["loss"].isfinite()
    assert all(not value.requires_grad for term, value in output.items() if term != "loss")
    model.zero_grad()
    output["loss"].backward()
    gradient = model.encoder.backbone.get_input_embeddings().weight.grad
    assert gradient.abs().sum() > 0
    assert gradient[model.tokenizer.pad_token_id].abs().max() < 1e-6 * gradient.abs().max()  # padding has no influence

    model.save_pretrained(tmp_path)
    again, twin = (RobustCSEModel.from_pretrained(tmp_path, dropout=0.1).train() for _ in range(2))
    assert again.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():  # the counters and tables that the step above has moved, too
        assert torch.equal(again.state_dict()[key], value), key
    losses = []
    for copy in (again, twin):
        torch.manual_seed(3)
        losses.append(copy(ids, mask)["loss"])
    assert torch.equal(*losses)  # a seed repeats
    for (key, got), want in zip(again.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(got, want), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_stays_finite(name, dtype, bert):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, method=name, method_options=options_of(name)).train()
    ids, mask = batch_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(20):
        with torch.autocast("cpu", dtype):
            output = model(ids, mask)
        assert all(value.isfinite().all() for value in output.values())
        (output["loss"] * 2.0**8).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_200_steps_in_half_precision(name, dtype):
    """Whole methods on the embedded encoder; float16 with a gradient scaler, which skips steps to find its scale."""
    torch.manual_seed(0)
    options = {"dcl_augmentation": "dropout"} if name == "dcl" else {}
    model = RobustCSEModel.from_encoder(EMBEDDED_ENCODER, method=name, method_options=options).train()
    ids, mask = batch_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    skipped = []
    for step in range(200):
        with torch.autocast("cpu", dtype):
            output = model(ids, mask)
        assert all(value.isfinite().all() for value in output.values())
        before = scaler.get_scale()
        scaler.scale(output["loss"]).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += [step] if scaler.get_scale() < before else []
        optimizer.zero_grad()
        model.after_update(step / 200)
    assert len(skipped) <= 8, skipped
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("name", METHODS)
def test_no_step_holds_a_three_dimensional_similarity(name, bert):
    """Nothing of the size (N, M, d), forward or backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    model = RobustCSEModel.from_encoder(bert, method=name, method_options=options_of(name)).train()
    sentences = (SENTENCES * 20)[:160]
    ids, mask = batch_of(model, sentences)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.numel())
            return out

    with Watch():
        model(ids, mask)["loss"].backward()
    count, length = ids.shape
    width = model.encoder.width
    assert count * count * width > 2 * largest
    assert largest <= max(2 * count * length * 32, 3 * count * count, 2 * count * 2 * length * length)


def test_a_stack_is_the_sum_of_its_parts(bert):
    """One contrastive loss with all noise and all weights, and every term of its own on top."""
    options = {"gs_lambda": 0.5, "dclr_complement": "self", "dclr_threshold": 0.99, "vadv_lambda": 0.1}
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(
        bert, method="gs_infonce+dclr+vadv", method_options=options, head="tanh", dropout=0.0
    ).train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    ids, mask = batch_of(model)
    out = model(ids, mask)
    assert torch.allclose(out["loss"], out["contrastive"] + 0.1 * out["vadv"])
    model.load_state_dict(state)
    with torch.no_grad():
        pooled = model.encoder(mask, input_ids=ids)
        h = model.encoder.head(pooled)
        gaussian = model.method.methods["gs_infonce"].noise.rows(3 * len(ids), h)
        start = model.method.methods["dclr"].noise.rows(len(ids), h)
        want = functional.info_nce(
            h,
            h,
            noise=torch.cat([gaussian, functional.ascend_noise(start, h, h)]),
            noise_weight=torch.cat([torch.full((3 * len(ids),), 0.5), torch.ones(len(ids))]),
            negative_weights=functional.instance_weights(functional.cosine_matrix(pooled, pooled), 0.99),
        )
    assert torch.allclose(out["contrastive"], want, atol=1e-5)


def test_equal_texts_are_not_contrasted(bert):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, dropout=0.0).eval()
    texts = ["the dog runs", "a cat", "the dog runs", "a bird sees"]
    ids, mask = batch_of(model, texts)
    hashes = torch.tensor([[text_hash(text)] for text in texts])
    with torch.no_grad():
        h = model.encoder.head(model.encoder(mask, input_ids=ids))
        got = model(ids, mask, hashes)["loss"]
        weights = torch.tensor([[float(i == j or texts[i] != texts[j]) for j in range(4)] for i in range(4)])
        assert torch.allclose(got, functional.info_nce(h, h, negative_weights=weights), atol=1e-6)
        assert got < model(ids, mask)["loss"] - 0.1


def test_supervised_pairs_and_triplets(bert):
    """Positives and hard negatives are views of their own; a hard negative that is somebody's positive is masked."""
    model = RobustCSEModel.from_encoder(bert, dropout=0.0).eval()
    rows = [
        ["the dog runs", "a dog", "a cat sleeps"],
        ["a bird", "the bird sees", "a dog"],
        ["night", "the night", "day"],
    ]
    ids, mask = batch_of(model, [text for row in rows for text in row])
    ids, mask = ids.view(3, 3, -1), mask.view(3, 3, -1)
    hashes = torch.tensor([[text_hash(text) for text in row] for row in rows])
    with torch.no_grad():
        h = model.encoder.head(model.encoder(mask.flatten(0, 1), input_ids=ids.flatten(0, 1))).view(3, 3, -1)
        pairs = model(ids[:, :2], mask[:, :2], hashes[:, :2])["loss"]
        assert torch.allclose(pairs, functional.info_nce(h[:, 0], h[:, 1]), atol=1e-6)
        hard = torch.ones(3, 3)
        hard[0, 1] = 0  # "a dog" is row 0's positive
        triplets = model(ids, mask, hashes)["loss"]
        want = functional.info_nce(h[:, 0], h[:, 1], hard_negatives=h[:, 2], hard_negative_weights=hard)
        assert torch.allclose(triplets, want, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vad", "did you mean vadv"),
        ("nothing", "choose one of"),
        ("vadv+vadv", "names vadv twice"),
        ("", "unknown --method"),
        ("simcse+vadv", "the loss of simcse is part of vadv; leave simcse out"),
    ],
)
def test_impossible_methods(name, message):
    with pytest.raises(UserError, match=message):
        build(name)
