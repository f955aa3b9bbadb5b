"""benchmarks/cost_model.py against what the methods do: calls of the encoder, and operations as torch counts them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from tiny import SIZES, WORDS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_robustcse import RobustCSEModel
from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.packing import packer_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from cost_model import Encoder, Load, Options, passes, work
from scaling import features, fit, fitted_seconds, measured_blocks, paper_blocks

ROWS, LENGTH = 6, 10
TINY = Encoder(
    SIZES["hidden_size"], SIZES["num_hidden_layers"], SIZES["intermediate_size"], SIZES["num_attention_heads"],
    SIZES["vocab_size"], SIZES["max_position_embeddings"],
)  # fmt: skip
CASES = {
    "simcse": ("simcse", {}, Options()),
    "vadv": ("vadv", {}, Options()),
    "vadv of 3 steps": ("vadv", {"vadv_steps": 3}, Options(steps=3)),
    "gs_infonce": ("gs_infonce", {}, Options()),
    "dclr": ("dclr", {}, Options()),
    "dclr of 2 steps and k 2.5": ("dclr", {"dclr_steps": 2, "dclr_k": 2.5}, Options(steps=2, multiple=2.5)),
    "dcl": ("dcl", {"dcl_augmentation": "dropout"}, Options()),
    "dcl without masked words": (
        "dcl", {"dcl_augmentation": "dropout", "dcl_mlm_weight": 0.0}, Options(language_model=False),
    ),
    "robustsentembed": ("robustsentembed", {}, Options()),
    "anchor": ("anchor", {}, Options()),
    "robustsentembed, 2 steps, no detection": (
        "robustsentembed",
        {"rse_pgd_steps": 2, "rse_fgsm_steps": 2, "rse_lambda2": 0.0},
        Options(steps=2, detection=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_passes_and_operations_are_those_that_the_methods_make(masked_lm, case):
    method, method_options, options = CASES[case]
    model = RobustCSEModel.from_encoder(str(masked_lm), method=method, method_options=method_options).train()
    torch.manual_seed(0)
    ids = torch.randint(5, len(WORDS), (ROWS, LENGTH))  # words alone and no padding
    mask = torch.ones_like(ids)
    for part in model.modules():
        if isinstance(part, SentenceEncoder):
            packer_of(part.backbone).off()  # whole passes are counted, without the cut of the last layer
    extras = {"anchor_input_ids": ids, "anchor_attention_mask": mask} if method == "anchor" else {}
    model(ids, mask, **extras)  # the first pass of an encoder may try things out
    seen = [0, 0]

    def count(module, args, kwargs):
        seen[0] += 1
        seen[1] += len(next(x for x in (*args, kwargs.get("inputs_embeds"), kwargs.get("input_ids")) if x is not None))

    model.encoder.backbone.register_forward_pre_hook(count, with_kwargs=True)
    predicted = []
    own = model.method.methods[method]
    head = own.mlm.parts["cls"] if hasattr(own, "mlm") else own.generator[0].cls if hasattr(own, "table") else None
    if head is not None:
        head.register_forward_pre_hook(lambda module, args: predicted.append(args[0].shape[1] / ids.numel()))
    # The kernels of attention that are one operation have no formula on the CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, mask, **extras)["loss"].backward()
    own = [one for one in passes(method, options) if one.network == "encoder"]
    assert seen == [sum(one.calls for one in own), ROWS * sum(one.views for one in own)]
    options = dataclasses.replace(options, predicted=predicted[0] if predicted else None)
    expected = work(method, TINY, Load.full(ROWS, LENGTH), options)
    assert counter.get_total_flops() == pytest.approx(sum(expected.flops.values()), rel=1e-9), expected.flops


def test_parameters_are_those_of_bert(masked_lm):
    model = RobustCSEModel.from_encoder(str(masked_lm))
    assert TINY.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert Encoder().parameters == 109_482_240  # bert-base-uncased, its pooler of the size of SimCSE's head


def test_padding_and_processes_change_what_they_should():
    ragged, full = Load.of([3, 8, 5]), Load.full(3, 8)
    one, padded = (work("simcse", TINY, load).flops for load in (ragged, full))
    assert one["encoder products"] / padded["encoder products"] == pytest.approx(16 / 24)
    assert one["encoder attention"] / padded["encoder attention"] == pytest.approx(98 / 192)
    alone, many = (work("dclr", TINY, Load.full(8, 8, processes)) for processes in (1, 4))
    assert many.flops["noise ascent"] == 16 * alone.flops["noise ascent"]
    assert set(alone.sent.values()) == {0} and many.sent["gradients"] == 2 * 3 / 4 * 4 * TINY.parameters


def test_the_page_has_the_tables_that_the_counts_give():
    page = (Path(__file__).parents[1] / "docs" / "cost.md").read_text(encoding="utf-8")
    for name, block in paper_blocks().items():
        assert f"\n{block}\n" in page, f"run: python benchmarks/scaling.py --only_paper --docs docs/cost.md ({name})"


def test_the_fit_finds_the_constants_of_a_machine():
    true = {
        "flops_per_second": 5e10, "bytes_per_second": 8e9, "seconds_per_layer_call": 1e-4, "seconds_per_step": 2e-3,
        "sent_bytes_per_second": None,
    }  # fmt: skip
    cells = []
    for rows, layers, width in ((4, 1, 32), (64, 2, 32), (8, 4, 64), (32, 8, 64), (128, 2, 128), (16, 6, 256)):
        counted = features(work("simcse", Encoder(width, layers, 4 * width, 2, 1000, 64), Load.full(rows, 16)))
        cells.append({"features": counted, "median_seconds": fitted_seconds(counted, true)})
    assert fit(cells) == {name: value and pytest.approx(value, rel=1e-3) for name, value in true.items()}


def test_the_page_has_the_tables_of_the_result_file():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "cost.md").read_text(encoding="utf-8")
    result = json.loads((root / "benchmarks" / "results" / "scaling_cpu.json").read_text(encoding="utf-8"))
    assert all(f"\n{block}\n" in page for block in measured_blocks(result).values())
