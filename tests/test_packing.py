"""Passes over the real tokens alone give what padded ones give, in value and in gradient."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from tiny import FAMILIES, SENTENCES, make_encoder, make_language_model
from torch import nn
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_robustcse.encoder import ReplacedTokenDetector, SentenceEncoder, blind_backbone, load_backbone
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.modules import POOLERS, Dropout
from hf_robustcse.packing import NAME, FirstTokens, Packer, find_rows, masked_logits, packer_of
from hf_robustcse.perturb import SharedDropout

PACKED = {"bert", "roberta", "electra", "xlm-roberta", "modernbert", "distilbert"}
LAST_LAYER_SKIPS = {"bert", "roberta", "electra", "xlm-roberta"}


def batch(model: RobustCSEModel) -> tuple[torch.Tensor, torch.Tensor]:
    rows = model.tokenizer(SENTENCES, padding=True, return_tensors="pt", padding_side="right")
    return rows["input_ids"], rows["attention_mask"]


def padded(encoder: SentenceEncoder) -> SentenceEncoder:
    """The same encoder without packing."""
    packer_of(encoder.backbone).off()
    return encoder


def outcome(encoder: SentenceEncoder, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Embeddings, and gradients with respect to word embeddings and all weights."""
    embeds = encoder.embed(ids).detach().requires_grad_()
    out = encoder(mask, inputs_embeds=embeds)
    weights = {name: p for name, p in encoder.named_parameters() if p.requires_grad and "word_emb" not in name}
    torch.manual_seed(0)
    grads = torch.autograd.grad((out * torch.randn_like(out)).sum(), [embeds, *weights.values()], allow_unused=True)
    named = dict(zip(["embeds", *weights], grads, strict=True))
    return {"out": out.detach(), **{name: grad for name, grad in named.items() if grad is not None}}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooler", POOLERS)
def test_packed_equals_padded(encoders, family, pooler):
    model = RobustCSEModel.from_encoder(encoders[family], pooler=pooler).double().eval()
    ids, mask = batch(model)
    packed = outcome(model.encoder, ids, mask)
    assert packer_of(model.encoder.backbone).packs == (family in PACKED)
    assert packer_of(model.encoder.backbone)._skips == (family in LAST_LAYER_SKIPS)
    plain = outcome(padded(model.encoder), ids, mask)
    assert packed.keys() == plain.keys()
    for name, want in plain.items():
        assert torch.allclose(packed[name], want, atol=1e-10, rtol=1e-8), name


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert", "mpnet", "deberta-v2"])
def test_logits_where_they_are_wanted(tmp_path, family):
    model = AutoModelForMaskedLM.from_pretrained(make_language_model(tmp_path, family)).double().eval()
    ids = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6], [2]])).long()
    chosen = mask.bool() & (torch.arange(9) % 3 == 1)
    want = model(input_ids=ids, attention_mask=mask).logits[chosen]
    for some in (chosen, torch.zeros_like(chosen)):
        got = masked_logits(model, ids, mask, some)
        assert torch.allclose(got, want[: len(got)], atol=1e-10) and len(got) == some.sum()
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits[chosen], want)  # nothing is left behind
    grads = [
        torch.autograd.grad(out.square().sum(), model.get_input_embeddings().weight)[0]
        for out in (masked_logits(model, ids, mask, chosen), model(input_ids=ids, attention_mask=mask).logits[chosen])
    ]
    assert torch.allclose(*grads, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("family", ["bert", "electra", "mpnet"])
def test_the_detector_reads_real_tokens(encoders, family):
    config = load_backbone(str(encoders[family])).config
    width = getattr(config, "embedding_size", config.hidden_size)
    detector = ReplacedTokenDetector(blind_backbone(config, 2), config.hidden_size, width).double().eval()
    torch.manual_seed(0)
    embeds = torch.randn(3, 6, width, dtype=torch.float64)
    mask = torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    h = torch.randn(3, config.hidden_size, dtype=torch.float64)
    got = detector(embeds, mask, h)
    packer_of(detector.backbone).off()
    assert torch.allclose(got[mask.bool()], detector(embeds, mask, h)[mask.bool()], atol=1e-12)


def test_a_local_window_is_kept(tmp_path):
    make_encoder(tmp_path, "modernbert", local_attention=4, num_hidden_layers=4)
    encoder = SentenceEncoder(load_backbone(str(tmp_path)), pooler="mean").double().eval()
    ids = torch.randint(5, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 20, [1] * 15 + [0] * 5])
    packed = encoder(mask, input_ids=ids)
    assert packer_of(encoder.backbone).packs
    assert torch.allclose(packed, padded(encoder)(mask, input_ids=ids), atol=1e-12)


def test_the_last_layer_computes_what_is_read(bert):
    encoder = RobustCSEModel.from_encoder(bert).eval().encoder
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    encoder(mask, input_ids=torch.full((2, 4), 7))
    seen = []
    for layer in encoder.backbone.encoder.layer:
        layer.intermediate.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape[:2])))
    encoder(mask, input_ids=torch.full((2, 4), 7))
    assert seen == [(1, 6), (1, 6), (1, 2)]
    seen.clear()
    padded(encoder)(mask, input_ids=torch.full((2, 4), 7))
    assert seen == [(2, 4)] * 3


@pytest.mark.parametrize("family", sorted(PACKED))
def test_dropout_is_drawn_again(encoders, family):
    encoder = RobustCSEModel.from_encoder(encoders[family]).train().encoder
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6]])).long()
    same = SharedDropout(ids.device)
    with same:
        first = encoder(mask, input_ids=ids)
    with same:
        again = encoder(mask, input_ids=ids)
    assert torch.equal(first, again)
    assert not torch.allclose(first, encoder(mask, input_ids=ids))


def test_gradient_checkpointing_changes_nothing(bert):
    grads = []
    for checkpointed in (False, True):
        torch.manual_seed(0)  # the head is random
        model = RobustCSEModel.from_encoder(bert).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(*batch(model)).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for name, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][name], atol=1e-6), name


def test_bfloat16_packs_too(bert):
    for cast in (False, True):
        model = RobustCSEModel.from_encoder(bert).eval()
        model = model.to(torch.bfloat16) if cast else model
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not cast):
            packed = model.encoder(batch(model)[1], input_ids=batch(model)[0])
            assert packer_of(model.encoder.backbone).packs
            plain = padded(model.encoder)(batch(model)[1], input_ids=batch(model)[0])
        assert (packed - plain).abs().max() < 0.05 * plain.abs().max()


def test_full_batches_and_empty_sentences_stay_padded():
    assert find_rows(torch.ones(3, 4)) is None
    assert find_rows(torch.tensor([[1, 1], [0, 0]])) is None
    rows = find_rows(torch.tensor([[1, 0, 0], [1, 1, 1]]))
    x = torch.arange(6.0).view(2, 3, 1)
    assert rows.take(x).flatten().tolist() == [0, 3, 4, 5]
    assert rows.put(rows.take(x)).flatten().tolist() == [0, 0, 0, 3, 4, 5]
    assert rows.position.tolist() == [0, 0, 1, 2] and rows.first.tolist() == [0, 1]


def test_another_attention_is_left_alone(bert):
    backbone = load_backbone(str(bert), attn_implementation="eager")
    assert not Packer(backbone).packs
    assert backbone.config._attn_implementation == "eager"


def test_another_attention_may_be_chosen_later(bert):
    """One that knows nothing of packing would look from every sentence into all others."""
    encoder = RobustCSEModel.from_encoder(bert).eval().encoder
    ids, mask = torch.full((2, 4), 7), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad():
        want = encoder(mask, input_ids=ids)
        target = copy.deepcopy(encoder)
        encoder.backbone.set_attn_implementation("eager")
        assert not packer_of(encoder.backbone).packs and packer_of(target.backbone).packs
        for one in (encoder, target):
            assert torch.allclose(one(mask, input_ids=ids), want, atol=1e-5)


def test_a_pickled_backbone_is_at_home_in_another_process(bert, monkeypatch):
    backbone = load_backbone(str(bert))
    assert packer_of(backbone).packs
    known = []
    monkeypatch.setattr(transformers.AttentionInterface, "register", lambda name, function: known.append(name))
    again = pickle.loads(pickle.dumps(backbone))
    assert known == [NAME] and packer_of(again).packs


def test_positions_too_small_to_tell_by_are_counted_right(encoders):
    backbone = load_backbone(str(encoders["roberta"])).double()
    with torch.no_grad():
        backbone.embeddings.position_embeddings.weight *= 1e-3
    encoder = SentenceEncoder(backbone).eval()
    ids, mask = torch.full((2, 4), 7), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    packed = encoder(mask, input_ids=ids)
    assert packer_of(backbone).packs
    assert torch.allclose(packed, padded(encoder)(mask, input_ids=ids), atol=1e-10)


@pytest.mark.slow
def test_logits_where_they_are_wanted_of_a_compiled_backbone(tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(make_language_model(tmp_path)).double().eval()
    ids = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6], [2]])).long()
    chosen = [mask.bool() & (torch.arange(9) % 3 == i) for i in (1, 0)]
    want = model(input_ids=ids, attention_mask=mask).logits
    rows = packer_of(model.base_model).find_rows(mask, only_first=False)
    model.base_model.compile(backend="eager", dynamic=True)
    packer_of(model.base_model)(model.base_model, rows, mask, input_ids=ids)  # compiled before the logits are asked for
    for some in chosen:
        assert torch.allclose(masked_logits(model, ids, mask, some), want[some], atol=1e-10)


def test_a_checkpoint_does_not_name_the_attention(bert, tmp_path):
    model = RobustCSEModel.from_encoder(bert).eval()
    model.encode(SENTENCES)
    assert model.encoder.backbone.config._attn_implementation == NAME
    model.save_pretrained(tmp_path)
    for path in tmp_path.rglob("*.json"):
        assert NAME not in json.dumps(json.loads(path.read_text())).replace("hf_robustcse", "").replace(
            '"model_type": "robustcse"', ""
        ).replace("RobustCSE", ""), path


def test_dropout_keeps_the_mean_and_its_gradient():
    torch.manual_seed(0)
    x = torch.full((400, 1001), 2.0, requires_grad=True)
    layer = Dropout(0.1).train()
    out = layer(x)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.9) < 0.002  # four standard deviations
    assert torch.allclose(out[kept], torch.tensor(2 / 0.9), rtol=1e-4)
    columns = kept.float().mean(dim=0)
    assert columns.min() > 0.8 and columns.max() < 0.98
    out.sum().backward()
    assert torch.equal(x.grad != 0, kept) and torch.allclose(x.grad[kept], torch.tensor(1 / 0.9), rtol=1e-4)
    torch.manual_seed(0)
    assert torch.equal(layer(x), out)
    assert torch.equal(layer.eval()(x), x) and torch.equal(Dropout(0.0).train()(x), x)
    assert (Dropout(1.0).train()(x) == 0).all()


def test_plain_dropout_is_replaced(bert):
    backbone = load_backbone(str(bert), dropout=0.2)
    model = SentenceEncoder(backbone)
    found = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    assert found and all(type(m) is Dropout and m.p == 0.2 and not m.training for m in found)


def classifier(folder, family: str) -> nn.Module:
    make_encoder(folder, family, kind=AutoModelForSequenceClassification, num_labels=3)
    return AutoModelForSequenceClassification.from_pretrained(folder).double().eval()


def features(*lengths: int) -> dict[str, torch.Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 60, mask.shape, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids.where(mask.bool(), 1), "attention_mask": mask}


@pytest.mark.parametrize("family", [*sorted(LAST_LAYER_SKIPS), "distilbert", "modernbert", "mpnet", "deberta-v2"])
def test_a_classifier_that_reads_first_tokens(tmp_path, family):
    model = classifier(tmp_path, family)
    plain = copy.deepcopy(model)
    short = FirstTokens(lambda given: model(**given).logits, model.base_model)
    seen = []
    layers = getattr(getattr(model.base_model, "encoder", None), "layer", None)
    with torch.inference_mode():
        for lengths in ((9, 4, 6), (7, 7), (1,), (30, 30, 30, 29)):
            given = features(*lengths)
            want = plain(**given).logits
            assert torch.allclose(short(given), want, atol=1e-12, rtol=1e-12)
            if family in LAST_LAYER_SKIPS:
                hook = layers[-1].attention.self.query.register_forward_hook(lambda m, a, out: seen.append(out.shape))
                short(given)
                hook.remove()
                assert seen.pop()[:2] == (1, len(lengths))
            assert torch.allclose(model(**given).logits, want, atol=1e-12, rtol=1e-12)  # nothing is left behind
        for one in (model, plain):
            one.set_attn_implementation("eager")
        assert torch.allclose(short(given), plain(**given).logits, atol=1e-12, rtol=1e-12)
    assert short._alone == (family in LAST_LAYER_SKIPS)
    assert model.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean", "first-last"])
def test_an_embedder_that_reads_first_tokens(bert, pooling):
    embedder = load_embedder(str(bert), pooling=pooling, device="cpu")
    embedder.model.double()
    seen = []
    last = embedder.model[0].auto_model.encoder.layer[-1]
    for lengths in ((9, 4, 6), (7, 7)):
        given = features(*lengths)
        with torch.inference_mode():
            want = embedder.model(dict(given))["sentence_embedding"]
            hook = last.attention.self.query.register_forward_hook(lambda m, args, out: seen.append(out.shape[:2]))
            assert torch.allclose(embedder._answer(dict(given)), want, atol=1e-12, rtol=1e-12)
            hook.remove()
        assert (seen.pop() == (1, len(lengths))) == (pooling in ("cls", "pooler"))
    assert "forward" not in vars(embedder.model[0].auto_model)


def test_a_head_that_reads_all_tokens_gets_them(bert):
    backbone = load_backbone(str(bert)).double().eval()

    def mean(given):
        return backbone(**given).last_hidden_state.mean(dim=1)

    given = features(9, 4, 6)
    short = FirstTokens(mean, backbone)
    assert packer_of(backbone).skips
    assert torch.equal(short(given), mean(given)) and not short._alone


def test_what_is_not_known_is_run_as_it_is(tmp_path, encoders):
    """Positions of one's own, padding on the left, a text that names RoBERTa's padding token, another attention."""
    model = classifier(tmp_path, "roberta")
    plain = copy.deepcopy(model)
    short = FirstTokens(lambda given: model(**given).logits, model.base_model)
    given = features(9, 4, 6)
    named = {**given, "input_ids": given["input_ids"].index_fill(1, torch.tensor([2]), model.config.pad_token_id)}
    left = {name: x.flip(1) for name, x in given.items()}
    own = {**given, "position_ids": torch.arange(9).expand(3, 9) + 5}
    with torch.inference_mode():
        for one in (given, named, left, own):
            assert torch.allclose(short(one), plain(**one).logits, atol=1e-12, rtol=1e-12)
    assert short._alone
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="eager").eval()
    short = FirstTokens(lambda given: model(**given).logits, model.base_model)
    assert torch.equal(short(given), model(**given).logits) and not short._alone
    assert model.config._attn_implementation == "eager"


def test_a_saved_classifier_does_not_name_the_attention(tmp_path):
    model = classifier(tmp_path / "given", "bert")
    FirstTokens(lambda given: model(**given).logits, model.base_model)(features(3, 5))
    assert model.base_model.config._attn_implementation == NAME
    model.save_pretrained(tmp_path / "saved")
    assert NAME not in (tmp_path / "saved" / "config.json").read_text()


@pytest.mark.parametrize("training", [False, True])
def test_batches_without_padding_are_cut_too(bert, training):
    encoder = RobustCSEModel.from_encoder(bert, dropout=0.0).double().train(training).encoder
    given = features(6, 6, 6)
    packed = outcome(encoder, given["input_ids"], given["attention_mask"])
    rows = packer_of(encoder.backbone).find_rows(given["attention_mask"], only_first=True)
    assert rows.whole and rows.only_first
    plain = outcome(padded(encoder), given["input_ids"], given["attention_mask"])
    for name, want in plain.items():
        assert torch.allclose(packed[name], want, atol=1e-10, rtol=1e-8), name


def test_threads_that_share_a_classifier_leave_it_as_it_was(encoders):
    model = AutoModelForSequenceClassification.from_pretrained(encoders["bert"]).eval()
    ids = torch.randint(5, 60, (3, 7), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    barriers = threading.local()

    def answer(features):
        if barrier := getattr(barriers, "now", None):
            with contextlib.suppress(threading.BrokenBarrierError):
                if barrier.wait(0.1):  # both are inside, if they can be; the second one leaves last
                    time.sleep(0.05)
        return model(**features).logits

    def ask(short, barrier):
        barriers.now = barrier
        return short(given)

    wanted, shorts = answer(given), [FirstTokens(answer, model.base_model) for _ in range(2)]
    for _ in range(8):
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            found = [one.result() for one in [pool.submit(ask, short, barrier) for short in shorts]]
        assert all(torch.allclose(one, wanted, atol=1e-5) for one in found)
    assert all(short._alone for short in shorts)
    assert "forward" not in vars(model.base_model) and model.base_model(**given).last_hidden_state.shape[1] == 7
