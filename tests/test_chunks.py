"""Gradient caching: the gradient of a batch in chunks is that of one pass, and no chunk's activations stay."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from distributed_gradient import gradients, load
from safetensors.torch import load_file, save_file
from test_distributed import CASES, ROOT, launch
from tiny import SENTENCES, make_encoder

from hf_robustcse import chunks
from hf_robustcse.data import ContrastiveCollator, load_corpus, text_hash, tokenize_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.layout import CONFIG
from hf_robustcse.methods.base import global_keys
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.trainer import RobustCSETrainer, RobustCSETrainingArguments

MORE = {
    "vadv-independent": ("vadv", {"vadv_lambda": 1.0, "vadv_dropout": "independent"}),
    "vadv-off": ("vadv", {"vadv_lambda": 1.0, "vadv_dropout": "off", "vadv_steps": 2}),
    "dclr-distill": ("dclr", {"dclr_complement": "self", "dclr_complement_use": "distill", "dclr_decoupled": True}),
}
ALL = CASES | MORE
STACK = "dclr+vadv+gs_infonce"


def model_of(case, folders, dtype=torch.float64, **kwargs):
    """The model of a case in training mode, always with the same random parts."""
    method, options = ALL[case]
    torch.manual_seed(0)
    # The encoder of the masked language model is its own generator.
    folder = folders["masked_lm"] if options.get("rse_lambda2") or method == "dcl" else folders["bert"]
    model = RobustCSEModel.from_encoder(folder, method=method, method_options=options, **kwargs).to(dtype).train()
    for part, copied in (("dcl", "target"), ("anchor", "teacher")):
        if part in model.method.methods:
            for parameter in getattr(model.method.methods[part], copied).parameters():
                torch.nn.init.normal_(parameter, std=0.1)
    model.set_seed(11)
    return model


def batch_of(model, texts=(*SENTENCES[:7], SENTENCES[1]), views=1):
    """The inputs of texts, of which two are equal; the views of a row are texts that follow each other."""
    batch = model.tokenizer(list(texts), padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    hashes = torch.tensor([text_hash(text) for text in texts])
    n = len(texts)
    order = (torch.arange(n)[:, None] + torch.arange(views)) % n
    return {"input_ids": ids[order], "attention_mask": mask[order], "text_hash": hashes[order]}


def largest_difference(one, two):
    """Of two sets of gradients, relative to each gradient's norm, or to the largest one's where it is next to none."""
    assert one.keys() == two.keys()
    scale = max(value.norm() for name, value in one.items() if name.startswith("grad"))
    return max(
        ((two[name] - value).norm() / torch.maximum(value.norm(), 1e-3 * scale)).item() for name, value in one.items()
    )


@pytest.fixture(scope="module")
def folders(bert, masked_lm):
    return {"bert": bert, "masked_lm": masked_lm}


@pytest.mark.parametrize("case", ALL)
def test_gradient_in_chunks_is_that_of_one_pass(case, folders):
    found = []
    for size in (None, 3):  # which divides nothing
        model = model_of(case, folders, dropout=0.0)
        model.forward_chunk_size = size
        torch.manual_seed(1)
        found.append(gradients(model, batch_of(model)))
    worst = largest_difference(*found)
    print(f"{case}: largest relative difference {worst:.2e}")
    assert worst < 1e-6


@pytest.mark.parametrize(("case", "views"), [("simcse", 3), ("vadv", 2), (STACK, 3)])
def test_pairs_and_triplets(case, views, folders):
    found = []
    for size in (None, 3):
        model = model_of(case, folders, dropout=0.0)
        model.forward_chunk_size = size
        found.append(gradients(model, batch_of(model, views=views)))
    assert largest_difference(*found) < 1e-6


@pytest.mark.parametrize(
    ("case", "setting"),
    [
        *[(case, "plain") for case in ("vadv-independent", "vadv-off", "robustsentembed", "dcl-power", STACK)],
        *[("robustsentembed", "checkpointing"), (STACK, "bf16")],
        *[
            pytest.param(case, setting, marks=pytest.mark.slow)
            for case in ALL
            for setting in ("plain", "checkpointing", "bf16")
        ],
    ],
)
def test_dropout_is_drawn_again(case, setting, folders, monkeypatch):
    """Against the same chunks whose activations are kept: what is computed again has the masks that it had."""
    found, states = [], []
    for kept in (True, False):
        with monkeypatch.context() as patch:
            if kept:
                patch.setattr(chunks, "checkpoint", lambda function, *arguments, **_: function(*arguments))
            model = model_of(case, folders, torch.float32 if setting == "bf16" else torch.float64, dropout=0.3)
            if setting == "checkpointing":
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.forward_chunk_size = 3
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16) if setting == "bf16" else nullcontext():
                out = model(**batch_of(model))
            out["loss"].backward()
            found.append({f"grad {n}": p.grad for n, p in model.named_parameters() if p.grad is not None})
            states.append(torch.get_rng_state())
    assert largest_difference(*found) < 1e-6
    assert torch.equal(*states)  # what comes after the step draws the same, too


def test_dropout_is_there(folders):
    """Without this the test above would hold for an encoder without dropout."""
    model = model_of("simcse", folders, dropout=0.3)
    model.forward_chunk_size = 3
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(**batch_of(model))["loss"].item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("augmentation", ["shuffle", "token-cutoff"])
def test_augmentation_in_chunks(augmentation, folders):
    found = []
    for size in (None, 3):
        model = model_of("simcse", folders, dropout=0.0, augmentation=augmentation)
        model.forward_chunk_size = size
        torch.manual_seed(1)
        found.append(gradients(model, batch_of(model)))
    assert largest_difference(*found) < 1e-6


@pytest.mark.parametrize("case", ["simcse", "gs_infonce", "dclr"])
def test_what_is_kept_does_not_have_tokens_or_similarities(case, folders):
    """Between the passes nothing larger than the pooled vectors (and the noise) is held by the graph."""
    texts = [f"{a} {b}" for a in SENTENCES for b in SENTENCES]
    model = model_of(case, folders)

    def kept(size):
        sizes = []
        model.forward_chunk_size = size
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model(**batch_of(model, texts))
        return max(sizes)

    d = model.encoder.width
    assert kept(None) >= len(texts) ** 2  # the similarities
    assert kept(8) <= 2 * len(texts) * d < len(texts) ** 2


SLOW = ["simcse", "vadv-similarity", "robustsentembed", "dcl-power"]


@pytest.mark.parametrize("case", [STACK, *[pytest.param(case, marks=pytest.mark.slow) for case in SLOW]])
def test_chunks_on_two_processes(case, folders, tmp_path):
    """Two real processes under DDP, in chunks and with checkpointed layers, against one process in one pass."""
    model = model_of(case, folders, torch.float32)
    model.save_pretrained(tmp_path / "model")
    inputs = batch_of(model)
    save_file(inputs, tmp_path / "batch.safetensors")
    named = json.dumps(model.method.outside)
    run = (ROOT / "tests/distributed_gradient.py", tmp_path / "model", tmp_path / "batch.safetensors")
    launch(*run, tmp_path / "two.safetensors", "float64", named, 3)
    two = load_file(tmp_path / "two.safetensors")
    one = gradients(load(str(tmp_path / "model"), torch.float64, model.method.outside), inputs)
    worst = largest_difference(one, two)
    print(f"{case}: largest relative difference {worst:.2e}")
    assert worst < 1e-6


def test_sixteen_bits_add_up_in_thirty_two(folders):
    """The gradient of many chunks under autocast is as near to that in float32 as the gradient of one pass is."""
    texts = [f"{a} {b}" for a in SENTENCES for b in SENTENCES]
    found = {}
    for size, bf16 in ((None, False), (None, True), (2, True)):
        model = model_of("simcse", folders, torch.float32, dropout=0.0)
        model.forward_chunk_size = size
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch_of(model, texts))["loss"]
        loss.backward()
        found[size, bf16] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    exact = found[None, False]
    error = {key: ((value - exact).norm() / exact.norm()).item() for key, value in found.items()}
    print(error)
    assert error[2, True] < 1.2 * error[None, True]


def test_equal_texts_are_found_or_there_are_no_weights(folders):
    model = model_of("simcse", folders, dropout=0.0)
    seen = []
    monitor = model.method._contrastive

    def watch(batch, contributions):
        seen.append(global_keys(batch)["negative_weights"])
        return monitor(batch, contributions)

    model.method._contrastive = watch
    with torch.no_grad():
        model(**batch_of(model))
        model(**batch_of(model, SENTENCES))
        model(**batch_of(model, SENTENCES, views=2))
    assert seen[0].dtype == torch.bool and (~seen[0]).nonzero().tolist() == sorted(
        [[i, i] for i in range(8)] + [[1, 7], [7, 1]]
    )
    assert seen[1] is None
    n = len(SENTENCES)  # the positive of a row is the anchor of the next
    assert all((~seen[2])[i].nonzero().flatten().tolist() == sorted({(i - 1) % n, i, (i + 1) % n}) for i in range(n))


def test_training_in_chunks(tmp_path):
    encoder = make_encoder(tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    weights = []
    for size in (None, 3):
        torch.manual_seed(0)
        model = RobustCSEModel.from_encoder(encoder, method="vadv", dropout=0.0)
        RobustCSETrainer(
            model,
            RobustCSETrainingArguments(
                output_dir=str(tmp_path / "out"), eval_strategy="no", max_steps=3, per_device_train_batch_size=4,
                forward_chunk_size=size, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
                optim="sgd", learning_rate=0.1,
            ),
            train_dataset=tokenize_corpus(load_corpus(str(tmp_path / "corpus.txt")), model.tokenizer, 32),
            data_collator=ContrastiveCollator(model.tokenizer),
        ).train()  # fmt: skip
        weights.append(model.state_dict())
        model.save_pretrained(tmp_path / f"{size}")
        assert "forward_chunk_size" not in (tmp_path / f"{size}" / CONFIG).read_text()
    assert all(torch.allclose(value, weights[1][key], atol=1e-5) for key, value in weights[0].items())


def test_a_chunk_has_at_least_one_row(tmp_path):
    with pytest.raises(UserError, match="--forward_chunk_size must be at least 1, not 0"):
        RobustCSETrainingArguments(output_dir=str(tmp_path), forward_chunk_size=0, use_cpu=True)
