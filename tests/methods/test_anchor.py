"""Anchor against loops in float64; its teacher, its noise, and what it refuses."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tiny import SENTENCES

from hf_robustcse import augmentation
from hf_robustcse.augmentation import TextAugmentation
from hf_robustcse.data import ContrastiveCollator, load_corpus, tokenize_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.methods import build
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.typos import add_typos


def make(folder, *, method="anchor", dropout=0.0, **options):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(folder, method=method, method_options=options, dropout=dropout)
    model.set_seed(5)
    return model.double().train()


def tokens(model, texts):
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def with_noise(model, texts):
    return tokens(model, texts) | model.method.collate(texts)


def shake(module):
    """Move all weights, so that student and teacher differ."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def distance(rows, others):
    """The mean of |u - v|^2 over rows of length 1."""
    total = 0.0
    for a, b in zip(rows.tolist(), others.tolist(), strict=True):
        for x, y in zip(a, b, strict=True):
            total += (x / math.hypot(*a) - y / math.hypot(*b)) ** 2
    return total / len(rows)


@pytest.mark.parametrize("noise", ["typos", "synonyms", "pair"])
def test_loss_against_a_loop(bert, tmp_path, noise):
    options = {"anchor_noise": noise, "anchor_rate": 0.6, "anchor_weight": 0.7, "anchor_clean_weight": 3.0}
    if noise == "synonyms":
        words = tmp_path / "words.tsv"
        words.write_text("dog\tcat\nhouse\tcity\nbig\tsmall\n", encoding="utf-8")
        options["anchor_wordlist"] = str(words)
    model = make(bert, **options)
    before = copy.deepcopy(model.encoder)
    shake(model.encoder)
    if noise == "pair":
        texts, others = SENTENCES[:5], SENTENCES[5:]
        both = tokens(model, SENTENCES)
        given = {key: value.view(2, 5, -1).transpose(0, 1).contiguous() for key, value in both.items()}
    else:
        texts = SENTENCES
        make_noise = TextAugmentation(noise, rate=0.6, seed=5, word_list=options.get("anchor_wordlist"))
        others = [make_noise(text) for text in texts]
        assert others != texts
        given = with_noise(model, texts)
    output = model(**given)
    with torch.no_grad():
        clean = tokens(model, texts)
        taught = before(clean["attention_mask"], input_ids=clean["input_ids"])
        student = [
            model.encoder(some["attention_mask"], input_ids=some["input_ids"])
            for some in (clean, tokens(model, others))
        ]
    wanted = [distance(rows, taught) for rows in student]
    assert [float(output[name]) for name in ("clean", "anchor")] == pytest.approx(wanted, rel=1e-9)
    assert output["loss"].item() == pytest.approx(3.0 * wanted[0] + 0.7 * wanted[1], rel=1e-9)
    assert "contrastive" not in output


def test_before_the_first_step_a_sentence_stands_where_it_stood(bert):
    model = make(bert)
    output = model(**with_noise(model, SENTENCES))
    assert float(output["clean"]) == pytest.approx(0, abs=1e-12) and output["anchor"] > 1e-3


def test_the_teacher_never_moves_and_has_no_dropout(bert, tmp_path):
    model = make(bert, dropout=0.3)
    method = model.method.methods["anchor"]
    wanted = {key: value.clone() for key, value in method.teacher.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    batch = with_noise(model, SENTENCES)
    with torch.no_grad():
        taught = [method.teacher(batch["attention_mask"], input_ids=batch["input_ids"]) for _ in range(2)]
    assert torch.equal(*taught) and model.encoder.training and not method.teacher.training
    for _ in range(3):
        model(**batch)["loss"].backward()
        optimizer.step()
        model.after_update(0.5)
    student = model.encoder.backbone.get_input_embeddings().weight
    teacher = method.teacher.backbone.get_input_embeddings().weight
    assert not torch.equal(student, teacher)
    # Trained on from a checkpoint, T is what it was, not what the student has become.
    model.float().save_pretrained(tmp_path)
    again = RobustCSEModel.from_pretrained(tmp_path).train()
    for key, value in again.method.methods["anchor"].teacher.state_dict().items():
        assert torch.equal(value, wanted[key].to(value.dtype)), key
    assert not any(module.training for module in again.method.methods["anchor"].teacher.modules())


def test_the_noise_is_that_of_the_text_and_the_seed(bert, tmp_path):
    model = make(bert, anchor_rate=0.5)
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    corpus = tokenize_corpus(load_corpus(tmp_path / "text.txt"), model.tokenizer, 32, keep_text=True)
    collate = ContrastiveCollator(model.tokenizer, pickle.loads(pickle.dumps(model.method)).collate)
    batch = collate([corpus[row] for row in range(4)])
    wanted = model.tokenizer([add_typos(text, rate=0.5, seed=5) for text in SENTENCES[:4]], padding=True)
    assert batch["anchor_input_ids"].tolist() == wanted["input_ids"]
    model.set_seed(6)
    other = model.method.collate(SENTENCES[:4])["anchor_input_ids"]
    assert other.shape != batch["anchor_input_ids"].shape or not torch.equal(other, batch["anchor_input_ids"])


def test_stacked_on_a_contrastive_loss(bert):
    model, alone = make(bert, method="simcse+anchor", anchor_weight=0.5), make(bert, anchor_weight=0.5)
    torch.manual_seed(2)
    plain = make(bert, method="simcse")
    plain.encoder.load_state_dict(model.encoder.state_dict())
    batch = with_noise(model, SENTENCES)
    output, own = model(**batch), alone(**batch)
    contrastive = plain(**tokens(model, SENTENCES))["contrastive"]
    assert float(output["contrastive"]) == pytest.approx(float(contrastive))
    assert output["loss"].item() == pytest.approx(float(contrastive) + own["loss"].item())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"anchor_rate": 0.0}, "--anchor_rate must be above 0 and at most 1 for typos, not 0.0"),
        ({"anchor_weight": -1.0}, "--anchor_weight must be a number of at least 0"),
        ({"anchor_noise": "ocr"}, "--anchor_noise must be one of typos, synonyms, pair"),
        ({"anchor_wordlist": "words.tsv"}, "--anchor_wordlist belongs to synonyms, not to typos"),
    ],
)
def test_refused_options(options, words):
    with pytest.raises(UserError, match=words):
        build("anchor", options)


def test_a_word_list_that_only_a_checkpoint_names_is_not_read(bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.tsv").write_text("dog\tcat\n", encoding="utf-8")
    options = {"anchor_noise": "synonyms", "anchor_wordlist": "words.tsv"}
    RobustCSEModel.from_encoder(bert, method="anchor", method_options=options).save_pretrained(tmp_path / "model")
    (tmp_path / "words.tsv").unlink()
    model = RobustCSEModel.from_pretrained(tmp_path / "model")
    model.set_seed(1)
    with pytest.raises(UserError, match="used for training only if you name it too"):
        model.method.collate(SENTENCES)
    model = RobustCSEModel.from_pretrained(tmp_path / "model", method_options={"anchor_wordlist": "words.tsv"})
    with pytest.raises(UserError, match=r"cannot read the word list words\.tsv"):
        model.method.collate(SENTENCES)


def test_without_wordnet_the_option_that_helps_is_named(bert, monkeypatch):
    def absent(*, otherwise):
        raise UserError(f"no WordNet, or {otherwise}")

    monkeypatch.setattr(augmentation, "load_wordnet", absent)
    with pytest.raises(UserError, match="--anchor_wordlist"):
        make(bert, anchor_noise="synonyms").method.collate(SENTENCES)


def test_a_batch_without_its_texts_is_refused(bert):
    model = make(bert)
    with pytest.raises(UserError, match="keep_text=True"):
        model(**tokens(model, SENTENCES))
    with pytest.raises(UserError, match="attach_tokenizer"):
        build("anchor").collate(SENTENCES)
