"""Every family of encoders: both input paths, padding, poolers, export, and four ways to reload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import FAMILIES, SENTENCES, make_encoder
from transformers import AutoModel, AutoTokenizer

from hf_robustcse import SentenceTransformer
from hf_robustcse.encoder import load_backbone
from hf_robustcse.errors import UserError
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.modules import POOLERS, Head, Pooler


def tokens(model: RobustCSEModel, sentences: list[str] = SENTENCES) -> tuple[torch.Tensor, torch.Tensor]:
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt", padding_side="right")
    return batch["input_ids"], batch["attention_mask"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooler", POOLERS)
def test_embeddings_as_input_give_what_ids_give(encoders, family, pooler):
    model = RobustCSEModel.from_encoder(encoders[family], pooler=pooler).eval()
    ids, mask = tokens(model)
    with torch.no_grad():
        from_ids = model.encoder(mask, input_ids=ids)
        from_embeds = model.encoder(mask, inputs_embeds=model.encoder.embed(ids))
    assert torch.allclose(from_ids, from_embeds, atol=1e-6)
    assert from_ids.std(dim=0).min() > 1e-3  # the sentences differ


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_matter(encoders, family):
    model = RobustCSEModel.from_encoder(encoders[family], pooler="mean").eval()
    ids, mask = tokens(model)
    alone_ids, alone_mask = tokens(model, SENTENCES[7:8])
    with torch.no_grad():
        together = model.encoder(mask, inputs_embeds=model.encoder.embed(ids))[7:8]
        alone = model.encoder(alone_mask, inputs_embeds=model.encoder.embed(alone_ids))
    assert torch.allclose(together, alone, atol=2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_step_reaches_every_weight_in_use(encoders, family):
    model = RobustCSEModel.from_encoder(encoders[family], method="vadv", method_options={"vadv_lambda": 1.0}).train()
    ids, mask = tokens(model)
    output = model(ids, mask)
    output["loss"].backward()
    assert set(output) == {"loss", "contrastive", "vadv"}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", POOLERS)
def test_pooler_against_a_loop(kind):
    torch.manual_seed(0)
    x, mask = (
        torch.randn(3, 5, 4, dtype=torch.float64),
        torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
    )
    got = Pooler(kind)(x, mask)
    for i in range(3):
        real = [x[i, t] for t in range(5) if mask[i, t]]
        want = real[0] if kind == "cls" else sum(real) / len(real)
        assert torch.allclose(got[i], want, atol=1e-12)


def test_two_layer_poolers_average_the_layers_that_they_name(bert):
    backbone = load_backbone(str(bert)).eval()
    for kind, (first, second) in {"first-last": (1, 3), "top-two": (2, 3)}.items():
        model = RobustCSEModel.from_encoder(bert, pooler=kind).eval()
        ids, mask = tokens(model)
        with torch.no_grad():
            layers = backbone(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            average = (layers[first] + layers[second]) / 2
            want = (average * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
            assert torch.allclose(model.embed(ids, mask), want, atol=1e-6)


@pytest.mark.parametrize("kind", ["tanh", "mlp"])
def test_folded_head_equals_the_head(kind):
    torch.manual_seed(0)
    head = Head(kind, 6).double()
    x = 3 * torch.randn(40, 6, dtype=torch.float64) + 1
    for _ in range(30):
        head(x)  # moves the running statistics
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    head.eval()
    y = x
    for weight, bias, activation in head.dense_layers():
        y = y @ weight.T + bias
        y = {"Tanh": torch.tanh, "ReLU": torch.relu, "Identity": lambda z: z}[activation.split(".")[-1]](y)
    assert torch.allclose(y, head(x), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_exported_checkpoint_is_the_same_model_in_four_libraries(encoders, family, tmp_path):
    model = RobustCSEModel.from_encoder(encoders[family], method="vadv").eval()
    model.save_pretrained(tmp_path)
    want = model.encode(SENTENCES)
    again = RobustCSEModel.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    tokenizer, backbone = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        plain = backbone(**batch).last_hidden_state[:, 0]
    st = SentenceTransformer.from_pretrained(str(tmp_path), device="cpu").encode(SENTENCES)
    for other in (again.encode(SENTENCES), plain, torch.tensor(st)):
        assert (other - want).abs().max() <= 1e-6


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("head", ["none", "tanh", "mlp"])
@pytest.mark.parametrize("keep_head", [False, True])
def test_every_pooler_and_head_reaches_sentence_transformers(bert, tmp_path, pooler, head, keep_head):
    model = RobustCSEModel.from_encoder(bert, pooler=pooler, head=head, keep_head=keep_head)
    ids, mask = tokens(model)
    model.train()(ids, mask)  # moves the statistics of a batch norm
    model.eval().save_pretrained(tmp_path)
    want = model.encode(SENTENCES)
    st = SentenceTransformer.from_pretrained(str(tmp_path), device="cpu")
    assert np.abs(st.encode(SENTENCES) - want.numpy()).max() <= 1e-6
    assert (RobustCSEModel.from_pretrained(tmp_path).encode(SENTENCES) - want).abs().max() <= 1e-6
    pooled = RobustCSEModel.from_encoder(bert, pooler=pooler).encode(SENTENCES)
    assert torch.allclose(pooled, want, atol=1e-6) == (head == "none" or not keep_head)


def test_sentence_transformers_loads_it_without_this_package(bert, tmp_path):
    RobustCSEModel.from_encoder(bert, method="vadv").save_pretrained(tmp_path / "model")
    want = RobustCSEModel.from_pretrained(tmp_path / "model").encode(SENTENCES)
    np.save(tmp_path / "want.npy", want.numpy())
    program = f"""
import sys, numpy as np
sys.modules["hf_robustcse"] = None  # importing it fails
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(tmp_path / "model")!r}, device="cpu")
assert np.abs(model.encode({SENTENCES!r}) - np.load({str(tmp_path / "want.npy")!r})).max() <= 1e-6
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_layout_has_no_pickle_and_no_remote_code(bert, tmp_path):
    RobustCSEModel.from_encoder(bert).save_pretrained(tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "robustcse/config.json",
    } <= files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl", ".py"))]
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_half_precision_weights_are_trained_in_float32(bert, tmp_path):
    AutoModel.from_pretrained(bert).to(torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    assert {p.dtype for p in RobustCSEModel.from_encoder(tmp_path).parameters()} == {torch.float32}


def test_dropout_option_sets_every_dropout(bert):
    model = RobustCSEModel.from_encoder(bert, dropout=0.25)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}


def test_what_cannot_be_trained_is_refused(tmp_path, bert):
    from transformers import T5Config, T5Model, ViTConfig, ViTModel

    ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8,
                       patch_size=4)).save_pretrained(tmp_path / "vit")  # fmt: skip
    T5Model(T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(
        tmp_path / "t5"
    )
    with pytest.raises(UserError, match="no word embeddings"):
        RobustCSEModel.from_encoder(tmp_path / "vit")
    with pytest.raises(UserError, match="encoder-decoder"):
        RobustCSEModel.from_encoder(tmp_path / "t5")
    with pytest.raises(UserError, match="cannot load the encoder 'no/such-model'"):
        RobustCSEModel.from_encoder("no/such-model")
    with pytest.raises(UserError, match="from_encoder starts"):
        RobustCSEModel.from_pretrained(bert)
    broken = Path(make_encoder(tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    with pytest.raises(UserError, match="do not fit its configuration"):
        RobustCSEModel.from_encoder(broken)
