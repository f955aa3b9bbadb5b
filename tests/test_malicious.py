"""Harmful or damaged checkpoints are refused with one line, before memory is taken or a file elsewhere is read."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_encoder, options_of

from hf_robustcse import layout
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.methods import METHODS
from hf_robustcse.model import RobustCSEModel

OPENED: list[str] = []
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


@pytest.fixture(scope="module")
def whole(bert, tmp_path_factory):
    """A sound checkpoint whose head is part of the embedding, in a folder with a secret beside it."""
    folder = tmp_path_factory.mktemp("malicious") / "checkpoint"
    options = options_of("dcl") | {"vadv_lambda": 0.1}
    model = RobustCSEModel.from_encoder(bert, method="vadv+dcl", method_options=options, head="tanh", keep_head=True)
    model.save_pretrained(folder)
    (folder.parent / "secret.json").write_text('{"a": "secret"}')
    return folder


def set_json(file, **changes):
    """Change some keys of a JSON file; a dot in a name leads into an object."""

    def change(folder):
        value = json.loads((folder / file).read_text())
        for name, new in changes.items():
            *path, last = name.split(".")
            inner = value
            for key in path:
                inner = inner[int(key) if isinstance(inner, list) else key]
            inner[last] = new
        (folder / file).write_text(json.dumps(value))

    return change


def text(file, raw):
    return lambda folder: (folder / file).write_bytes(raw if isinstance(raw, bytes) else raw.encode())


def cut(file, count):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-count])


def huge_header(file):
    """Declares 10^15 bytes of a tensor that the file does not have."""
    header = {"x": {"dtype": "F32", "shape": [10**9, 250_000], "data_offsets": [0, 10**15]}}
    raw = json.dumps(header).encode()
    return text(file, len(raw).to_bytes(8, "little") + raw)


def change_rest(folder):
    state = load_file(folder / layout.WEIGHTS)
    state["encoder.head.0.weight"] = torch.zeros(16, 17)
    save_file(state, folder / layout.WEIGHTS)


def link(file):
    def change(folder):
        (folder / file).unlink()
        (folder / file).symlink_to(folder.parent / "secret.json")

    return change


def nested(folder):
    (folder / layout.CONFIG).write_text("[" * 200_000 + "]" * 200_000)


CONFIG = {
    "unknown method": ({"method": "simsce"}, "did you mean simcse"),
    "method of another type": ({"method": ["vadv"]}, "a method is a name"),
    "unknown option": ({"method_options.vadv_lamda": 1.0}, "has no option vadv_lamda"),
    "options are a list": ({"method_options": [1]}, "method_options"),
    "unknown key": ({"run": "rm"}, "unknown key 'run'"),
    "string for a number": ({"method_options.vadv_lambda": "1e-6"}, "--vadv_lambda must be float"),
    "number for a choice": ({"method_options.vadv_norm": 2}, "--vadv_norm must be one of"),
    "object for a number": ({"method_options.vadv_steps": {"a": 1}}, "--vadv_steps must be int"),
    "fraction for a count": ({"method_options.vadv_steps": 1.5}, "--vadv_steps must be int"),
    "truth for a number": ({"method_options.vadv_steps": True}, "--vadv_steps must be int"),
    "infinite": ({"temperature": 1e999}, "Infinity is no JSON number"),
    "temperature": ({"temperature": "hot"}, "--temperature"),
    "keep_head": ({"keep_head": "yes"}, "--keep_head"),
    "pooler": ({"pooler": {"a": 1}}, "--pooler must be one of"),
    "head": ({"head": "../../x"}, "--head must be one of"),
    "encoder": ({"encoder": "/etc"}, "--encoder"),
    "huge option": ({"method_options.dcl_hidden": 10**9}, "does not fit the weights"),
    "beyond 64 bits": ({"method_options.dcl_width": 10**30}, "describes no model"),
    "other head than the weights": ({"head": "mlp"}, "does not fit the weights"),
    **{
        f"word list {path}": (
            {"method_options.dcl_augmentation": "wordlist", "method_options.dcl_wordlist": path},
            "lead",
        )
        for path in ("../secret.json", "/etc/passwd", "a/../../b", "~/x", "C:\\x", "..\\x", "\\\\host\\x", "http://x/y")
    },
}
BACKBONE = {
    "vocabulary": ({"vocab_size": 10**9}, "asks for vocab_size"),
    "vocabulary within bounds": ({"vocab_size": 9_000_000}, "does not fit the weights"),
    "width": ({"hidden_size": 10**9}, "asks for hidden_size"),
    "layers": ({"num_hidden_layers": 10**9}, "asks for num_hidden_layers"),
    "many layers": ({"num_hidden_layers": 200}, "asks for"),
    "positions": ({"max_position_embeddings": 10**9}, "asks for max_position_embeddings"),
    "labels": ({"num_labels": 10**9}, "asks for num_labels"),
    "negative": ({"hidden_size": -16}, "asks for hidden_size -16"),
    "nested": ({"text_config": {"vocab_size": 10**12}}, "asks for vocab_size"),
    "string": ({"hidden_size": "16"}, "describes no model"),
    "unknown model": ({"model_type": "evil"}, "describes no model"),
    "remote code": ({"auto_map": {"AutoModel": "modeling_evil.Evil"}}, "never run"),
    "remote kernel": ({"_attn_implementation": "evil/kernel"}, "never run"),
}
MODULES = {
    "foreign class": ({"1.type": "os.system"}, "not part of sentence-transformers"),
    "class in the folder": ({"1.type": "evil.Pooling"}, "not part of sentence-transformers"),
    "path as class": ({"1.type": "sentence_transformers./../evil"}, "not part of sentence-transformers"),
    "unusual class": ({"1.type": "sentence_transformers.models.Router"}, "no checkpoint of this package"),
    "no class": ({"1.type": None}, "not part of sentence-transformers"),
    "folder above": ({"1.path": "../secret"}, "outside the model"),
    "absolute folder": ({"1.path": "/etc"}, "outside the model"),
}
CASES = {
    **{f"config: {k}": (set_json(layout.CONFIG, **v), said) for k, (v, said) in CONFIG.items()},
    **{f"backbone: {k}": (set_json("config.json", **v), said) for k, (v, said) in BACKBONE.items()},
    **{f"modules: {k}": (set_json("modules.json", **v), said) for k, (v, said) in MODULES.items()},
    "modules: no list": (text("modules.json", "{}"), "not a list of modules"),
    "dense: other code": (set_json("2_Dense/config.json", activation_function="os.getcwd"), "none of torch.nn"),
    "dense: code of torch": (set_json("2_Dense/config.json", activation_function="torch.hub.help"), "none of torch.nn"),
    "dense: huge": (set_json("2_Dense/config.json", out_features=900_000, in_features=900_000), "does not hold"),
    "tokenizer: other code": (set_json("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T"]}), "other code"),
    "adapter of another model": (text("adapter_config.json", '{"base_model_name_or_path": "evil/x"}'), "another model"),
    "json: broken": (text(layout.CONFIG, '{"method": '), "is not JSON"),
    "json: not UTF-8": (text(layout.CONFIG, b'{"method": "\xff"}'), "is not UTF-8"),
    "json: NaN": (text(layout.CONFIG, '{"temperature": NaN}'), "NaN is no JSON number"),
    "json: a list": (text(layout.CONFIG, "[1]"), "no JSON object"),
    "json: a number of 5000 digits": (text(layout.CONFIG, '{"temperature": ' + "9" * 5000 + "}"), "is not JSON"),
    "json: nested": (nested, "nested too deeply"),
    "json: enormous": (text(layout.CONFIG, '{"a": "' + "x" * (9 << 20) + '"}'), "larger than 8 MB"),
    "backbone json: nested": (text("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000), "nested too deeply"),
    "backbone json: a list": (text("config.json", "[]"), "not a JSON object"),
    "weights cut off": (cut("model.safetensors", 100), "cut off"),
    "weights empty": (text("model.safetensors", b""), "cut off"),
    "weights without end": (huge_header("model.safetensors"), "cut off"),
    "state cut off": (cut(layout.WEIGHTS, 10), "cut off"),
    "state without end": (huge_header(layout.WEIGHTS), "cut off"),
    "header without end": (text(layout.WEIGHTS, (10**18).to_bytes(8, "little") + b"{}"), "cut off"),
    "state of another shape": (change_rest, "encoder.head.0.weight is (16, 17) there and (16, 16)"),
    "no state": (lambda folder: (folder / layout.WEIGHTS).unlink(), "has no robustcse/model.safetensors"),
    **{
        f"link: {file}": (link(file), "leads out of the folder")
        for file in ("model.safetensors", "tokenizer.json", "modules.json", layout.CONFIG, "1_Pooling/config.json")
    },
}  # fmt: skip


def test_the_sound_one_loads(whole):
    model = RobustCSEModel.from_pretrained(whole)
    assert model.encode("the dog runs").shape == (16,)
    assert load_embedder(str(whole), device="cpu").description["method"] == "vadv+dcl"
    assert not [path for path in whole.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".py")]


@pytest.mark.parametrize("case", CASES)
def test_a_bad_one_is_refused(whole, tmp_path, case):
    change, said = CASES[case]
    folder = shutil.copytree(whole, tmp_path / "checkpoint")
    shutil.copy(whole.parent / "secret.json", tmp_path)
    change(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    OPENED.clear()
    with pytest.raises(UserError) as refused:
        RobustCSEModel.from_pretrained(folder)
    message = str(refused.value)
    assert said in message and "\n" not in message and len(message) < 1000, message
    assert not [path for path in OPENED if path.endswith(("secret.json", "/etc/passwd"))]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # kB
    if not case.startswith(("config", "json", "state", "header", "no state")):  # what the evaluation reads, too
        with pytest.raises(UserError):
            load_embedder(str(folder), device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "secret.json"]


@pytest.mark.parametrize("modules", MODULES)
def test_other_peoples_models_get_no_foreign_modules(bert, tmp_path, modules):
    folder = shutil.copytree(bert, tmp_path / "model")
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]))  # fmt: skip
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    set_json("modules.json", **MODULES[modules][0])(folder)
    with pytest.raises(UserError):
        load_embedder(str(folder), device="cpu")


def test_code_with_a_model_is_never_asked_for(bert, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    folder = shutil.copytree(bert, tmp_path / "model")
    set_json("config.json", auto_map={"AutoModel": "evil.Evil"}, model_type="evil")(folder)
    with pytest.raises(UserError, match="never run"):
        RobustCSEModel.from_encoder(folder)


def test_a_snapshot_of_the_hub_cache_is_full_of_links(whole, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    shutil.copytree(whole, snapshot)
    blobs.mkdir()
    for number, path in enumerate(p for p in list(snapshot.rglob("*")) if p.is_file()):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert RobustCSEModel.from_pretrained(snapshot).encode("a cat").shape == (16,)


@pytest.mark.parametrize("option, method", [("dclr_complement", "dclr"), ("rse_generator", "robustsentembed")])
def test_what_a_checkpoint_names_is_not_used(bert, tmp_path, option, method):
    """A model that a checkpoint names is loaded only if the user names it too; encoding does not need it."""
    other = make_encoder(tmp_path / "other", seed=2)
    options = options_of(method) | {option: str(other)}
    RobustCSEModel.from_encoder(bert, method=method, method_options=options).save_pretrained(tmp_path / "model")
    saved = json.loads((tmp_path / "model" / layout.CONFIG).read_text())["method_options"]
    assert saved[option] == "other"  # no path of this machine is published
    model = RobustCSEModel.from_pretrained(tmp_path / "model")
    assert model.encode("a dog").shape == (16,)
    with pytest.raises(UserError, match=f"the checkpoint names 'other' as --{option}"):
        model.method.collate(["a dog"])
    model = RobustCSEModel.from_pretrained(tmp_path / "model", method_options={option: str(other)})
    model.method.collate(["a dog"])


def test_an_option_that_names_something_outside_says_so():
    """A new option for a file or a model has to carry the mark."""
    for method in METHODS.values():
        for field in dataclasses.fields(method.Options):
            if "folder" in field.metadata.get("help", "").lower() or "file" in field.metadata.get("help", "").lower():
                assert field.name in method.outside, field.name
