"""`hf-robustcse import`: checkpoints in the key layouts of SimCSE, DCLR, GS-InfoNCE, DiffCSE and ESimCSE."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tiny import SENTENCES, make_tokenizer
from torch import nn
from transformers import (
    AutoModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertModel,
)

from hf_robustcse import cli
from hf_robustcse.convert import checkpoint
from hf_robustcse.convert.checkpoint import map_keys
from hf_robustcse.evaluation.sts import load_sts
from hf_robustcse.model import RobustCSEModel

WIDTH = 16


class Dense(nn.Module):
    """SimCSE's head."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.dense(x))


class Projection(nn.Module):
    """DiffCSE's head, with statistics as of some training."""

    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True),
            nn.Linear(hidden, WIDTH, bias=False), nn.BatchNorm1d(WIDTH, affine=False),
        )  # fmt: skip
        for _ in range(3):
            self.net(3 * torch.randn(20, WIDTH) + 1)
        nn.init.normal_(self.net[1].weight)
        self.eval()

    def forward(self, x):
        return self.net(x)


class ForCL(nn.Module):
    """The module that those repositories train and save: the names of its parts are the prefixes of the keys."""

    def __init__(self, base, name, mlp, pooler=False, **parts):
        super().__init__()
        setattr(self, name, AutoModel.from_pretrained(base, **({} if pooler else {"add_pooling_layer": False})))
        self.name, self.mlp = name, mlp
        for part, module in parts.items():
            setattr(self, part, module)

    @torch.no_grad()
    def embed(self, texts, with_mlp=False):
        """`sentemb_forward` with pooler_type cls; mlp_only_train leaves the MLP out."""
        batch = make_tokenizer(self.name == "bert")(texts, padding=True, return_tensors="pt")
        cls = getattr(self, self.name).eval()(**batch).last_hidden_state[:, 0]
        return self.mlp(cls) if with_mlp else cls


def save(folder, base, state, *, how="bin", architecture="BertForCL"):
    """A checkpoint folder: configuration, tokenizer and weights."""
    folder.mkdir()
    config = json.loads((base / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    make_tokenizer(config["pad_token_id"] == 0).save_pretrained(folder)
    state = {key: value.clone() for key, value in state.items()}
    if config["model_type"] in ("bert", "roberta") and f"{config['model_type']}.embeddings.LayerNorm.bias" in state:
        state[f"{config['model_type']}.embeddings.position_ids"] = torch.arange(66)[None]
    halves = dict(list(state.items())[::2]), dict(list(state.items())[1::2])
    if how == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    elif how == "safetensors":
        save_file(state, folder / "model.safetensors")
    elif how == "old bin":
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        name = "model.safetensors" if how == "safetensors shards" else "pytorch_model.bin"
        stem, suffix = name.split(".")
        shards = {f"{stem}-0000{i}-of-00002.{suffix}": half for i, half in enumerate(halves, 1)}
        for shard, half in shards.items():
            save_file(half, folder / shard) if suffix == "safetensors" else torch.save(half, folder / shard)
        weight_map = {key: shard for shard, half in shards.items() for key in half}
        (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def run(*words):
    cli.main(["import", *map(str, words)])


def refused(capsys, *words):
    """The one line that a refused import prints."""
    with pytest.raises(SystemExit) as stopped:
        run(*words)
    printed = capsys.readouterr().err
    assert stopped.value.code == 2 and printed.startswith("error: ") and printed.count("\n") == 1, printed
    return printed


def check(out, want):
    """Three ways to load it give the wanted embeddings."""
    assert (torch.tensor(SentenceTransformer(str(out), device="cpu").encode(SENTENCES)) - want).abs().max() <= 1e-5
    model = RobustCSEModel.from_pretrained(out)
    assert (model.encode(SENTENCES) - want).abs().max() <= 1e-5
    return model


@pytest.fixture
def base(bert):
    torch.manual_seed(1)
    return bert


@pytest.fixture
def short_dev(monkeypatch):
    """The first 40 pairs of the embedded dev set, to save time."""
    whole = load_sts("embedded", None, "dev")
    short = dataclasses.replace(whole, subsets={name: pairs[:40] for name, pairs in whole.subsets.items()})
    monkeypatch.setattr(checkpoint, "load_sts", lambda *_: short)


@pytest.mark.parametrize("how", ["bin", "old bin", "safetensors", "bin shards", "safetensors shards"])
def test_every_kind_of_file_is_read(base, tmp_path, how):
    state = ForCL(base, "bert", Dense()).state_dict()
    files, weights = checkpoint.read_weights(str(save(tmp_path / "result", base, state, how=how)))
    assert len(files) == 1 + ("shards" in how) and weights.keys() == {*state, "bert.embeddings.position_ids"}
    assert all(torch.equal(weights[key], value) for key, value in state.items())


@pytest.mark.parametrize("how", ["bin", "safetensors shards"])
def test_simcse_training_checkpoint(base, tmp_path, capsys, how):
    theirs = ForCL(base, "bert", Dense())
    run(save(tmp_path / "result", base, theirs.state_dict(), how=how), "--output_dir", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "source: simcse" in printed and "head: 2 tensors, mlp.* -> robustcse/ (tanh)" in printed
    assert "embedding: cls, without the head" in printed and "with the head" in printed.split("spearman")[1]
    model = check(tmp_path / "out", theirs.embed(SENTENCES))
    assert model.method.name == "simcse" and model.config.head == "tanh" and not model.config.keep_head
    assert torch.equal(model.encoder.head[0].weight, theirs.mlp.dense.weight)
    record = json.loads((tmp_path / "out/import.json").read_text())
    assert record["largest_difference"] <= 1e-5 and record["dev"]["n"] > 100 and record["tensors"]["unexpected"] == []
    assert record["tensors"]["left_out"] == ["bert.embeddings.position_ids"]
    assert str(tmp_path) not in "".join(p.read_text() for p in (tmp_path / "out").rglob("*.json"))
    assert not [p for p in (tmp_path / "out").rglob("*") if p.suffix in (".bin", ".pt", ".pkl")]


@pytest.mark.usefixtures("short_dev")
def test_roberta_with_a_language_model_head_and_a_key_of_nobody(encoders, tmp_path, capsys):
    base = encoders["roberta"]
    theirs = ForCL(base, "roberta", Dense(), lm_head=nn.Linear(WIDTH, 64), extra=nn.Linear(2, 2, bias=False))
    save(tmp_path / "result", base, theirs.state_dict(), architecture="RobertaForCL")
    run(tmp_path / "result", "--output_dir", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "left out: 2 tensors lm_head.*" in printed and "unexpected, left out: extra.weight" in printed
    check(tmp_path / "out", theirs.embed(SENTENCES))


def converted(theirs):
    """What `simcse_to_huggingface.py` makes of a state."""
    return {
        key.replace("mlp", "pooler").replace("bert.", "").replace("roberta.", ""): v
        for key, v in theirs.state_dict().items()
    }


@pytest.mark.usefixtures("short_dev")
@pytest.mark.parametrize("name, keeps", [("unsup-simcse-bert-base-uncased", False), ("sup-simcse-bert-base", True)])
def test_simcse_as_on_the_hub(base, tmp_path, capsys, name, keeps):
    theirs = ForCL(base, "bert", Dense())
    save(tmp_path / name, base, converted(theirs), architecture="BertModel")
    run(tmp_path / name, "--output_dir", tmp_path / "out")
    assert f"embedding: cls{' and' if keeps else ', without'} the head" in capsys.readouterr().out
    model = check(tmp_path / "out", theirs.embed(SENTENCES, with_mlp=keeps))
    assert model.config.keep_head is keeps and model.config.head == "tanh"
    # The user's word counts more than the name.
    run(tmp_path / name, "--output_dir", tmp_path / "other", "--keep_head", "no" if keeps else "yes")
    check(tmp_path / "other", theirs.embed(SENTENCES, with_mlp=not keeps))


@pytest.mark.usefixtures("short_dev")
def test_gs_infonce_and_esimcse(base, tmp_path, capsys):
    """Both train BERT with its own pooler beside the head; the latter has a momentum copy."""
    theirs = ForCL(base, "bert", Dense(), pooler=True, momentum_model=AutoModel.from_pretrained(base))
    save(tmp_path / "result", base, theirs.state_dict())
    run(tmp_path / "result", "--output_dir", tmp_path / "out", "--source", "gs_infonce")
    assert "ESimCSE's momentum copy" in capsys.readouterr().out
    model = check(tmp_path / "out", theirs.embed(SENTENCES))
    assert model.method.name == "gs_infonce" and torch.equal(model.encoder.head[0].weight, theirs.mlp.dense.weight)
    assert torch.equal(model.encoder.backbone.pooler.dense.weight, theirs.bert.pooler.dense.weight)


@pytest.mark.usefixtures("short_dev")
def test_dclr(base, tmp_path, capsys):
    theirs = ForCL(base, "bert", Dense(), pooler=True, fix_bert=AutoModel.from_pretrained(base))
    save(tmp_path / "result", base, theirs.state_dict())
    run(tmp_path / "result", "--output_dir", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "source: dclr" in printed and "DCLR's frozen complement" in printed and "follows BERT's pooler" in printed
    assert check(tmp_path / "out", theirs.embed(SENTENCES)).method.name == "dclr"
    assert "--keep_head no" in refused(
        capsys, tmp_path / "result", "--output_dir", tmp_path / "other", "--keep_head", "yes"
    )


@pytest.mark.usefixtures("short_dev")
@pytest.mark.parametrize("hidden", [2 * WIDTH, WIDTH])
def test_diffcse(base, tmp_path, capsys, hidden):
    small = DistilBertConfig(vocab_size=64, dim=WIDTH, n_layers=1, n_heads=2, hidden_dim=32)
    theirs = ForCL(
        base, "bert", Projection(hidden), lm_head=nn.Linear(WIDTH, 64), discriminator=AutoModel.from_pretrained(base),
        generator=DistilBertForMaskedLM(small), electra_head=nn.Linear(WIDTH, 2),
    )  # fmt: skip
    folder = save(tmp_path / "result", base, theirs.state_dict())
    run(folder, "--output_dir", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "source: diffcse" in printed and "DiffCSE's generator" in printed and "unexpected" not in printed
    model = check(tmp_path / "out", theirs.embed(SENTENCES))
    if hidden == WIDTH:
        assert model.config.head == "mlp"
        run(folder, "--output_dir", tmp_path / "kept", "--keep_head", "yes")
        check(tmp_path / "kept", theirs.embed(SENTENCES, with_mlp=True))
    else:
        assert "head: left out" in printed
        said = refused(capsys, folder, "--output_dir", tmp_path / "kept", "--keep_head", "yes")
        assert "no counterpart" in said and not (tmp_path / "kept").exists()


def test_layers_called_mlp_are_not_the_head(tmp_path):
    config = ModernBertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, pad_token_id=0
    )
    theirs = ModernBertModel(config)
    for prefix in ("", "model."):
        state = {prefix + key: value for key, value in theirs.state_dict().items()}
        mapped = map_keys(state | {"mlp.dense.weight": torch.eye(16), "mlp.dense.bias": torch.ones(16)}, theirs)
        assert mapped.backbone.keys() == theirs.state_dict().keys() and any(".mlp." in key for key in mapped.backbone)
        assert mapped.head.keys() == {"dense.weight", "dense.bias"} and mapped.head_kind == "tanh"


@pytest.mark.usefixtures("short_dev")
@pytest.mark.parametrize("pooler", ["mean", "first-last", "top-two"])
def test_other_poolers(base, tmp_path, pooler):
    theirs = ForCL(base, "bert", nn.Identity())
    save(tmp_path / "result", base, theirs.state_dict())
    run(tmp_path / "result", "--output_dir", tmp_path / "out", "--pooler", pooler)
    tokenizer = make_tokenizer()
    with torch.no_grad():
        rows = []
        for text in SENTENCES:
            states = theirs.bert(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            layers = {"mean": (-1,), "first-last": (1, -1), "top-two": (-2, -1)}[pooler]
            rows.append(sum(states[layer] for layer in layers).mean(dim=1)[0] / len(layers))
    check(tmp_path / "out", torch.stack(rows))


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


@pytest.mark.usefixtures("short_dev")
def test_what_is_refused(base, tmp_path, capsys):
    theirs = ForCL(base, "bert", Dense())
    state = theirs.state_dict()

    def said(name, state, change=lambda folder: None, *words, how="bin"):
        folder = save(tmp_path / name, base, state, how=how)
        change(folder)
        line = refused(capsys, folder, "--output_dir", tmp_path / "out", *words)
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
        return line

    less = {key: value for key, value in state.items() if ".layer.1." not in key}
    assert "missing, such as encoder.layer.1." in said("missing", less)
    wrong = state | {"bert.embeddings.word_embeddings.weight": torch.zeros(60, WIDTH)}
    assert "another model" in said("shape", wrong)
    assert "are missing" in said(
        "foreign", {"model.weight": torch.zeros(2)} | {f"x{i}": torch.zeros(9999) for i in "ab"}
    )

    def pickled(folder):
        torch.save(state | {"evil": Evil(tmp_path / "hit")}, folder / "pytorch_model.bin")

    assert "holds more than tensors" in said("evil", state, pickled) and not (tmp_path / "hit").exists()

    def cut(folder):
        for path in [*folder.glob("*.bin"), *folder.glob("*.safetensors")]:
            path.write_bytes(path.read_bytes()[:-2000])

    assert "damaged" in said("cut-bin", state, cut)
    assert "cut off" in said("cut-safetensors", state, cut, how="safetensors")

    def leads_out(folder):
        index = folder / "pytorch_model.bin.index.json"
        index.write_text(index.read_text().replace("pytorch_model-00002", "../evil/pytorch_model-00002"))

    assert "no .bin file of the checkpoint" in said("index", state, leads_out, how="bin shards")

    def link(folder):
        (folder / "pytorch_model.bin").rename(tmp_path / "elsewhere.bin")
        (folder / "pytorch_model.bin").symlink_to(tmp_path / "elsewhere.bin")

    assert "leads out of the folder" in said("link", state, link)
    no_weights = said("empty", state, lambda folder: (folder / "pytorch_model.bin").unlink())
    assert "has no model.safetensors and no pytorch_model.bin" in no_weights
    no_tokenizer = said("plain", state, lambda folder: [p.unlink() for p in folder.glob("tokenizer*")])
    assert "tokenizer" in no_tokenizer
    run(tmp_path / "plain", "--output_dir", tmp_path / "out", "--tokenizer", base)
    assert "there already" in refused(capsys, tmp_path / "plain", "--output_dir", tmp_path / "out")
    assert "nothing to import" in refused(capsys, tmp_path / "out", "--output_dir", tmp_path / "again")
    assert "there is no folder" in refused(capsys, tmp_path / "nowhere", "--output_dir", tmp_path / "x")
    assert "cannot be reached" in refused(capsys, "org/nowhere", "--output_dir", tmp_path / "x")
    assert "no id of the Hub" in refused(capsys, "a b", "--output_dir", tmp_path / "x")
    assert "is a file" in refused(capsys, tmp_path / "plain/config.json", "--output_dir", tmp_path / "x")
    (tmp_path / "plain/modules.json").write_text("[]")
    assert "sentence-transformers model already" in refused(capsys, tmp_path / "plain", "--output_dir", tmp_path / "x")


def test_sts_b_where_it_is_at_hand(base, tmp_path, capsys):
    (tmp_path / "data/sts/STSB").mkdir(parents=True)
    rows = [f"{i % 6}\tthe dog runs {i}\ta cat sleeps {i}" for i in range(1500)]
    (tmp_path / "data/sts/STSB/dev.tsv").write_text("score\tsentence1\tsentence2\n" + "\n".join(rows) + "\n")
    save(tmp_path / "result", base, ForCL(base, "bert", Dense()).state_dict())
    run(tmp_path / "result", "--output_dir", tmp_path / "out", "--data_dir", tmp_path / "data")
    assert "stsb_dev (1500 pairs): spearman" in capsys.readouterr().out


@pytest.mark.slow
def test_another_process_without_this_package_loads_it(base, tmp_path):
    theirs = ForCL(base, "bert", Dense())
    save(tmp_path / "sup-simcse", base, converted(theirs))
    run(tmp_path / "sup-simcse", "--output_dir", tmp_path / "out")
    code = (
        "import sys; sys.modules['hf_robustcse'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"print(SentenceTransformer({str(tmp_path / 'out')!r}, device='cpu').encode({SENTENCES!r}).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    got = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    assert (got - theirs.embed(SENTENCES, with_mlp=True)).abs().max() <= 1e-5
