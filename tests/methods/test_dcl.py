"""DCL against eq. 7 and 8, and against masked-language modelling, as loops in float64."""

from __future__ import annotations

import importlib.util
import math
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, SENTENCES, make_language_model
from transformers import AutoModelForMaskedLM

from hf_robustcse.data import ContrastiveCollator, load_corpus, tokenize_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.methods import build
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.synonyms import load_wordnet, read_word_list, replace_words
from hf_robustcse.trainer import RobustCSETrainer, RobustCSETrainingArguments

ALONE = {"dcl_augmentation": "dropout", "dcl_mlm_weight": 0.0, "dcl_hidden": 7, "dcl_width": 5}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return make_language_model(tmp_path_factory.mktemp("mlm") / "bert")


@pytest.fixture
def word_list(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("dog\tpuppy\thound\nbook\tnovel\n\nhouse \t home\nbig\tlarge\n", encoding="utf-8")
    return path


def make(folder, *, dropout=0.0, **options):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(folder, method="dcl", method_options=options, dropout=dropout).double().train()
    model.set_seed(5)
    return model


def tokens(model, texts=SENTENCES):
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def dcl_of(model):
    return model.method.methods["dcl"]


def shake(module, seed=0):
    """Move all weights, so that target and online network differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_target_follows_by_equation_7(bert, schedule):
    model = make(bert, **ALONE, dcl_momentum=0.8, dcl_momentum_schedule=schedule)
    method = dcl_of(model)
    pairs = [
        (f"{name}.{key}", dict(target.named_parameters())[key], theta)
        for name, target, online in (
            ("encoder", method.target.backbone, model.encoder.backbone),
            ("projection", method.target_projection, method.projection),
        )
        for key, theta in online.named_parameters()
    ]
    assert all(torch.equal(xi, theta) for _, xi, theta in pairs)  # it starts as a copy
    want = {name: xi.flatten().tolist() for name, xi, _ in pairs}
    for step in range(1, 5):
        shake(model.encoder, step)
        shake(method.projection, 10 + step)
        model.after_update(step / 4)
        tau = 0.8 if schedule == "constant" else 1 - 0.2 * (math.cos(math.pi * step / 4) + 1) / 2
        for name, xi, theta in pairs:
            want[name] = [tau * a + (1 - tau) * b for a, b in zip(want[name], theta.flatten().tolist(), strict=True)]
            assert xi.flatten().tolist() == pytest.approx(want[name], rel=1e-12, abs=1e-12)
    assert tau == (0.8 if schedule == "constant" else 1.0)


def linear(rows, layer):
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [[sum(a * b for a, b in zip(row, w, strict=True)) + c for w, c in zip(weight, bias, strict=True)]
            for row in rows]  # fmt: skip


def normalised(rows, layer, norm, running):
    """Column by column; `running` holds the running quadratic means, or None while the batch's are used."""
    count, weight, bias = len(rows), layer.weight.tolist(), layer.bias.tolist()
    out = [list(row) for row in rows]
    for k in range(len(rows[0])):
        column = [row[k] for row in rows]
        mean = sum(column) / count if norm == "batch" else 0.0
        square = sum((x - mean) ** 2 for x in column) / count
        if running is not None:
            square = running[k]
        for i, x in enumerate(column):
            out[i][k] = (x - mean) / math.sqrt(square + 1e-5) * weight[k] + bias[k]
    return out


def mlp(rows, layers, norm, running=None):
    rows = linear(rows, layers[0])
    if norm != "none":
        rows = normalised(rows, layers[1], norm, running)
    rows = [[max(x, 0.0) for x in row] for row in rows]
    return linear(rows, layers[-1])


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("norm", ["power", "batch", "none"])
def test_loss_is_equation_8_on_pairs(bert, norm, warmup):
    """On labelled pairs, so that X and X' differ; two steps, so that running statistics have moved."""
    model = make(bert, **ALONE, dcl_norm=norm, dcl_warmup=warmup)
    method = dcl_of(model)
    shake(model.encoder, 1)
    shake(method, 2)
    both = tokens(model)
    pairs = {key: value.view(2, 5, -1).transpose(0, 1).contiguous() for key, value in both.items()}
    model(**pairs)
    running = {}
    for name in ("projection", "predictor", "target_projection"):
        layer = getattr(method, name)[1]
        running[name] = layer.psi2.tolist() if norm == "power" and warmup == 0 else None
    with torch.no_grad():
        online = model.encoder(both["attention_mask"], input_ids=both["input_ids"]).tolist()
        target = method.target(both["attention_mask"], input_ids=both["input_ids"]).tolist()
    q = mlp(online, method.projection, norm, running["projection"])
    q = mlp(q, method.predictor, norm, running["predictor"])
    p = mlp(target, method.target_projection, norm, running["target_projection"])
    want = sum(4 - 2 * cosine(q[i], p[5 + i]) - 2 * cosine(q[5 + i], p[i]) for i in range(5)) / 5
    out = model(**pairs)
    assert set(out) == {"loss", "align"}
    assert out["align"].item() == pytest.approx(want, rel=1e-9) and out["loss"].item() == pytest.approx(want, rel=1e-9)


def test_only_the_online_network_gets_a_gradient(bert):
    model = make(bert, **ALONE)
    method = dcl_of(model)
    shake(method, 2)
    before = {key: value.clone() for key, value in method.target.state_dict().items()}
    model(**tokens(model))["loss"].backward()
    frozen = [*method.target.parameters(), *method.target_projection.parameters()]
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in frozen)
    for part in (model.encoder.backbone.get_input_embeddings(), method.projection, method.predictor):
        assert all(parameter.grad is not None for parameter in part.parameters())
    assert all(torch.equal(value, before[key]) for key, value in method.target.state_dict().items())


def test_masked_language_modelling_is_the_loop(language_model):
    model = make(language_model, **{**ALONE, "dcl_mlm_weight": 3.0, "dcl_mask_rate": 0.5})
    inputs = tokens(model)
    ids = inputs["input_ids"].tolist()
    generator = torch.Generator().manual_seed(5 << 32)
    noise = torch.randn(len(ids), len(ids[0]), 3, generator=generator).double().tolist()
    phi = [[[(1 + math.erf(z / math.sqrt(2))) / 2 for z in token] for token in row] for row in noise]
    special = set(model.tokenizer.all_special_ids) - {model.tokenizer.unk_token_id}
    masked, chosen = [list(row) for row in ids], []
    for i, row in enumerate(ids):
        for t, token in enumerate(row):
            if token in special or phi[i][t][0] >= 0.5:
                continue
            chosen.append((i, t))
            if phi[i][t][1] < 0.8:
                masked[i][t] = model.tokenizer.mask_token_id
            elif phi[i][t][1] < 0.9:
                masked[i][t] = int(phi[i][t][2] * len(model.tokenizer))
    assert {masked[i][t] == ids[i][t] for i, t in chosen} == {True, False}
    reference = AutoModelForMaskedLM.from_pretrained(language_model).double().eval()
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor(masked), attention_mask=inputs["attention_mask"]).logits.tolist()
    want = 0.0
    for i, t in chosen:
        want += math.log(sum(math.exp(v) for v in logits[i][t])) - logits[i][t][ids[i][t]]
    out = model(**inputs)
    assert out["mlm"].item() == pytest.approx(want / len(chosen), rel=1e-9)
    assert out["loss"].item() == pytest.approx(out["align"].item() + 3 * want / len(chosen), rel=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_own_language_model(family, encoders, tmp_path):
    """The same logits as the checkpoint's own model; nothing tied is a second parameter or saved."""
    folder = make_language_model(tmp_path / family, family)
    options = {"dcl_augmentation": "dropout", "dcl_hidden": 4, "dcl_width": 3}
    model = RobustCSEModel.from_encoder(folder, method="dcl", method_options=options).eval()
    reference = AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = tokens(model)
    with torch.no_grad():
        want = reference(**inputs).logits
        assert torch.allclose(dcl_of(model).mlm(**inputs), want, atol=1e-5)
        model.save_pretrained(tmp_path / "copy")
        again = RobustCSEModel.from_pretrained(tmp_path / "copy")
        assert torch.equal(dcl_of(again).mlm(**inputs), dcl_of(model).mlm(**inputs))
    decoder = dcl_of(again).mlm._model[0].get_output_embeddings()
    assert decoder.weight is again.encoder.backbone.get_input_embeddings().weight
    assert not any(value.shape == decoder.weight.shape for value in dcl_of(again).mlm.state_dict().values())
    with pytest.raises(UserError, match="has no trained head for masked tokens.*--dcl_mlm_weight 0"):
        RobustCSEModel.from_encoder(encoders[family], method="dcl", method_options=options)


@pytest.mark.parametrize("norm", ["power", "batch"])
def test_state_goes_through_the_files_and_a_seed_repeats(language_model, tmp_path, norm):
    options = {**ALONE, "dcl_mlm_weight": 1.0, "dcl_norm": norm, "dcl_warmup": 1, "dcl_mask_rate": 0.5}
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(language_model, method="dcl", method_options=options).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    inputs = tokens(model)

    def train(model, optimizer):
        model(**inputs)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        model.after_update(0.5)

    for _ in range(3):
        train(model, optimizer)
    model.save_pretrained(tmp_path)
    again = RobustCSEModel.from_pretrained(tmp_path).train()
    state = model.state_dict()
    assert state.keys() == again.state_dict().keys()
    assert all(torch.equal(value, state[key]) for key, value in again.state_dict().items())
    wanted = ["target.backbone", "target_projection", "predictor", "mlm", "noise.calls"]
    wanted += ["projection.1.psi2", "projection.1.nu"] if norm == "power" else ["projection.1.running_mean"]
    for key in wanted:
        assert any(name.startswith(f"method.methods.dcl.{key}") for name in state), key
    if norm == "power":
        assert dcl_of(again).predictor[1].nu.abs().sum() > 0
    torch.manual_seed(3)
    train(model, optimizer)
    torch.manual_seed(3)
    train(again, torch.optim.SGD([p for p in again.parameters() if p.requires_grad], lr=0.05))
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_words_are_replaced(word_list):
    synonyms = read_word_list(str(word_list))
    assert synonyms("hound") == ["dog", "puppy"] and synonyms("home") == ["house"] and synonyms("cat") == []
    text = "The Dog, a big dog-ish dog's BOOK (dog)."
    assert replace_words(text, synonyms, rate=1.0, seed=0) in {
        f"The {a}, a large dog-ish dog's Novel ({b})." for a in ("Puppy", "Hound") for b in ("puppy", "hound")
    }
    assert len({replace_words(text, synonyms, rate=0.5, seed=seed) for seed in range(40)}) > 5
    for seed in range(5):
        once = replace_words(text, synonyms, rate=0.0, seed=seed)
        assert once != text and once == replace_words(text, synonyms, rate=0.0, seed=seed)  # at least one word
    assert replace_words("nothing here", synonyms, rate=1.0, seed=0) == "nothing here"
    counts = sum("puppy" in replace_words("dog " * 200, synonyms, rate=0.3, seed=seed) for seed in range(3))
    assert counts == 3


def test_augmented_text_is_the_other_side(bert, word_list):
    """The same loss as of labelled pairs of the sentences and what the synonyms make of them."""
    options = {**ALONE, "dcl_augmentation": "wordlist", "dcl_wordlist": str(word_list), "dcl_norm": "none"}
    model = make(bert, **options)
    shake(dcl_of(model), 2)
    extras = model.method.collate(SENTENCES)
    others = [
        replace_words(text, read_word_list(str(word_list)), rate=dcl_of(model).options.dcl_rate, seed=5)
        for text in SENTENCES
    ]
    assert any(a != b for a, b in zip(SENTENCES, others, strict=True))
    wide = tokens(model, SENTENCES + others)
    pairs = {key: value.view(2, len(SENTENCES), -1).transpose(0, 1) for key, value in wide.items()}
    got = model(**tokens(model), **extras)["loss"]
    assert got.item() == pytest.approx(model(**pairs)["loss"].item(), rel=1e-9)
    ForkingPickler.dumps(model.method.collate)  # a worker of the data loader may be spawned
    model.method.attach_tokenizer(model.tokenizer, 4)
    assert model.method.collate(SENTENCES)["dcl_input_ids"].shape == (len(SENTENCES), 4)
    with pytest.raises(UserError, match="dcl needs the texts"):
        model(**tokens(model))


def test_training_moves_the_target_after_each_update(language_model, word_list, tmp_path):
    """Without momentum the target is the online network after every step, and stays it in the checkpoint."""
    options = {"dcl_augmentation": "wordlist", "dcl_wordlist": str(word_list), "dcl_momentum": 0.0}
    model = RobustCSEModel.from_encoder(language_model, method="dcl", method_options=options)
    start = model.encoder.embed(torch.arange(5)).detach().clone()
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    rows = tokenize_corpus(load_corpus(tmp_path / "corpus.txt"), model.tokenizer, 16, keep_text=True)
    arguments = RobustCSETrainingArguments(
        output_dir=str(tmp_path / "run"), per_device_train_batch_size=4, max_steps=3, save_steps=2, learning_rate=1e-2,
        eval_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=1,
    )  # fmt: skip
    collator = ContrastiveCollator(model.tokenizer, model.method.collate)
    trainer = RobustCSETrainer(model, arguments, train_dataset=rows, data_collator=collator)
    trainer.train()
    assert {"align", "mlm"} <= trainer.state.log_history[0].keys()
    for trained in (model, RobustCSEModel.from_pretrained(tmp_path / "run" / "checkpoint-2")):
        target = dcl_of(trained).target.backbone.state_dict()
        assert all(torch.equal(value, target[key]) for key, value in trained.encoder.backbone.state_dict().items())
    assert not torch.equal(model.encoder.embed(torch.arange(5)), start)


def test_wordnet_that_is_not_there(bert, monkeypatch, tmp_path):
    pytest.importorskip("nltk")
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    model = make(bert, dcl_mlm_weight=0.0)
    with pytest.raises(UserError, match="WORDNET_DIR.*apt install wordnet-base.*nltk.downloader"):
        model.method.collate(SENTENCES)


def test_nltk_that_is_not_there(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nltk.corpus.reader.wordnet", None)
    with pytest.raises(UserError, match=r"pip install hf_robustcse\[wordnet\]"):
        load_wordnet()


@pytest.mark.parametrize("subfolder", ["", "dict"])
def test_wordnet_in_a_named_folder(subfolder, monkeypatch, tmp_path):
    """A WordNet of two synsets, in the files of the real one."""
    pytest.importorskip("nltk")
    folder = tmp_path / subfolder
    folder.mkdir(exist_ok=True)
    licence, data, index = "  1 This is not the real one.\n", "", {}
    for words in (["car", "auto", "motor_car"], ["dog", "Canis_familiaris"]):
        offset = len(licence + data)
        index |= {word.lower(): f"{word.lower()} n 1 0 1 0 {offset:08d}  \n" for word in words}
        listed = " ".join(f"{word} 0" for word in words)
        data += f"{offset:08d} 06 n {len(words):02x} {listed} 000 | a gloss  \n"
    files = {f"{kind}.{pos}": licence for kind in ("data", "index") for pos in ("noun", "verb", "adj", "adv")}
    files |= {f"{pos}.exc": "" for pos in ("noun", "verb", "adj", "adv")} | {"cntlist.rev": "", "index.sense": ""}
    files |= {"data.noun": licence + data, "index.noun": licence + "".join(index[key] for key in sorted(index))}
    files["lexnames"] = "".join(f"{number:02d}\tname\t1\n" for number in range(45))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    monkeypatch.setattr("nltk.data.path", [])
    synonyms = load_wordnet()
    assert synonyms("car") == synonyms("cars") == ["auto", "motor car"]
    assert synonyms("dog") == ["Canis familiaris"] and synonyms("the") == synonyms("cat") == []


def test_wordnet():
    if importlib.util.find_spec("nltk") is None:
        pytest.skip("nltk is not installed")
    try:
        synonyms = load_wordnet()
    except UserError as error:
        pytest.skip(str(error))
    assert "automobile" in synonyms("car") and "car" not in synonyms("car")
    assert synonyms("the") == synonyms("qwertyzxc") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dcl_momentum": 1.5}, "--dcl_momentum must be"),
        ({"dcl_alpha": 1.0}, "--dcl_alpha must be"),
        ({"dcl_norm": "layer"}, "--dcl_norm must be one of power, batch, none"),
        ({"dcl_augmentation": "wordlist"}, "--dcl_wordlist FILE belong together"),
        ({"dcl_rate": float("nan")}, "--dcl_rate must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build("dcl", options)


@pytest.mark.parametrize(("text", "message"), [("alone\n", "no line with two"), (None, "cannot read the word list")])
def test_bad_word_lists(text, message, tmp_path):
    if text is not None:
        Path(tmp_path / "words").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_word_list(str(tmp_path / "words"))
