"""Views of sentences for positive pairs."""

from __future__ import annotations

import pytest
import torch
from tiny import SENTENCES

from hf_robustcse.errors import UserError
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.perturb import AUGMENTATIONS, augment

WORDS = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]).bool()


@pytest.fixture
def embeds():
    torch.manual_seed(0)
    return torch.rand(2, 12, 8, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_what_is_no_word_stays(kind, embeds):
    for _ in range(20):
        out = augment(embeds, WORDS, kind=kind, rate=0.5)
        assert torch.equal(out[~WORDS], embeds[~WORDS])
    assert torch.equal(augment(embeds, WORDS & False, kind=kind, rate=0.9), embeds)


def test_shuffle_keeps_the_words_and_changes_their_order(embeds):
    seen = set()
    for _ in range(60):
        out = augment(embeds, WORDS, kind="shuffle")
        for row in range(2):
            mine, theirs = (sorted(x[row][WORDS[row]].tolist()) for x in (out, embeds))
            assert mine == theirs
        seen.add(tuple(out[1, 1].tolist()))
    assert seen == {tuple(embeds[1, 1].tolist()), tuple(embeds[1, 2].tolist())}


def test_cutoffs_cut_what_they_say(embeds):
    cut = {
        kind: [augment(embeds, WORDS, kind=kind, rate=0.3)[0] == 0 for _ in range(400)] for kind in AUGMENTATIONS[2:]
    }
    for mask in cut["feature-cutoff"]:
        assert (mask[1:11] == mask[1]).all()
    for mask in cut["token-cutoff"] + cut["span-cutoff"]:
        assert (mask.all(dim=1) == mask.any(dim=1)).all()
    for mask in cut["span-cutoff"]:
        places = mask.any(dim=1).nonzero().flatten().tolist()
        assert len(places) == 3 and places == list(range(places[0], places[0] + 3))
    for kind, masks in cut.items():
        assert torch.stack(masks)[:, 1:11].double().mean() == pytest.approx(0.3, abs=0.03), kind
    starts = {mask.any(dim=1).nonzero()[0].item() for mask in cut["span-cutoff"]}
    assert starts == set(range(1, 9))


def test_the_model_contrasts_with_the_augmented_view(bert):
    losses = {}
    for kind in AUGMENTATIONS:
        torch.manual_seed(0)
        model = RobustCSEModel.from_encoder(bert, dropout=0.0, augmentation=kind, augmentation_rate=0.5).train()
        batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
        losses[kind] = model(batch["input_ids"], batch["attention_mask"])["loss"].item()
    assert all(loss != losses["dropout"] for kind, loss in losses.items() if kind != "dropout")


@pytest.mark.parametrize("option", [{"augmentation": "noise"}, {"augmentation_rate": 1.0}])
def test_bad_options(bert, option):
    with pytest.raises(UserError, match=f"--{next(iter(option))} must be"):
        RobustCSEModel.from_encoder(bert, **option)
