"""The trainer: accumulation, selection, guards, logging, options that must work."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import datasets
import pytest
import torch
from safetensors.torch import load_file
from tiny import SENTENCES, options_of

from hf_robustcse.data import ContrastiveCollator, Corpus, tokenize_corpus
from hf_robustcse.errors import TrainingStopped, UserError
from hf_robustcse.evaluation.sts import StsData
from hf_robustcse.methods import Contribution, Method, Stack, Term
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.trainer import RobustCSETrainer, RobustCSETrainingArguments

TEXTS = [f"{a} {b}" for a in SENTENCES for b in SENTENCES]


def pairs(split="dev", task="STSB"):
    rows = [(TEXTS[i], TEXTS[(7 * i) % 50], float(i % 6)) for i in range(40)]
    return StsData(task=task, split=split, subsets={"all": rows}, source="test", sha256="0")


def trainer_of(model, folder, *, dev=None, texts=TEXTS, **arguments):
    corpus = Corpus(dataset=datasets.Dataset.from_dict({"text": texts}), views=1, report=None)
    dev = {"stsb_dev": pairs()} if dev is None else dev
    settings = {"per_device_train_batch_size": 8, "max_steps": 4, "eval_steps": 2, "logging_steps": 1, "use_cpu": True,
                "disable_tqdm": True, "learning_rate": 1e-3, "eval_strategy": "steps" if dev else "no"}  # fmt: skip
    args = RobustCSETrainingArguments(output_dir=str(folder), **{**settings, **arguments})
    return RobustCSETrainer(
        model, args, train_dataset=tokenize_corpus(corpus, model.tokenizer, 32),
        data_collator=ContrastiveCollator(model.tokenizer), eval_dataset=dev,
    )  # fmt: skip


@pytest.fixture
def model(bert):
    torch.manual_seed(0)
    return RobustCSEModel.from_encoder(bert, method="vadv", method_options={"vadv_lambda": 1.0})


class PerSample(Method):
    """A loss that is a mean of one number per sentence, so that accumulation must not change its gradient."""

    name = "per_sample"
    contrastive = False

    def forward(self, batch):
        return Contribution(terms={"square": Term(batch.h.square().sum(dim=1).mean(), 1.0)})


# Of the methods, only DCL without normalisation and masked words has a loss that is a mean over sentences.
@pytest.mark.parametrize("method", ["square", "dcl"])
def test_accumulation_does_not_change_a_per_sample_gradient(method, bert, tmp_path):
    found = []
    for accumulation in (1, 2, 4):
        torch.manual_seed(0)
        if method == "dcl":
            options = options_of("dcl") | {"dcl_norm": "none"}
            model = RobustCSEModel.from_encoder(bert, method="dcl", method_options=options, dropout=0.0)
            for parameter in model.method.methods["dcl"].target.parameters():
                torch.nn.init.normal_(parameter, std=0.1)  # apart from the encoder, or there is nothing to learn
        else:
            model = RobustCSEModel.from_encoder(bert, dropout=0.0)
            model.method = Stack([PerSample()])
        trainer = trainer_of(
            model, tmp_path / f"{accumulation}", dev={}, texts=TEXTS[:8], max_steps=1, max_grad_norm=0.0, optim="sgd",
            learning_rate=1.0, lr_scheduler_type="constant", gradient_accumulation_steps=accumulation,
            per_device_train_batch_size=8 // accumulation,
        )  # fmt: skip
        start = {k: v.clone() for k, v in model.state_dict().items()}
        trainer.train()
        found.append({k: start[k] - v for k, v in model.state_dict().items() if v.dtype.is_floating_point})
    scale = max(g.abs().max() for g in found[0].values())
    assert scale > 1e-3
    for other in found[1:]:
        assert max((other[k] - g).abs().max() for k, g in found[0].items()) < 2e-6 * scale


def test_terms_and_metrics_are_logged(model, tmp_path):
    trainer = trainer_of(model, tmp_path)
    trainer.train()
    trained = [log for log in trainer.state.log_history if "loss" in log]
    assert len(trained) == 4
    for log in trained:
        assert log["loss"] == pytest.approx(log["contrastive"] + log["vadv"], abs=1e-3)
    evaluated = [log for log in trainer.state.log_history if "eval_stsb_dev_spearman" in log]
    assert [log["step"] for log in evaluated] == [2, 4]
    for metric in ("spearman", "alignment", "positive_cosine", "random_cosine", "embedding_std", "effective_rank"):
        assert f"eval_stsb_dev_{metric}" in evaluated[0]


def test_evaluation_scores_the_published_embedding(model, tmp_path):
    from hf_robustcse.evaluation.sts import evaluate_pairs

    trainer = trainer_of(model, tmp_path)
    metrics = trainer.evaluate()
    trainer.save_model(str(tmp_path / "model"))
    again = RobustCSEModel.from_pretrained(tmp_path / "model")
    assert metrics["eval_stsb_dev_spearman"] == pytest.approx(
        evaluate_pairs(again.encode, pairs().subsets)["spearman"], abs=1e-9
    )


def test_best_checkpoint_is_loaded_and_every_checkpoint_is_a_published_model(model, tmp_path):
    trainer = trainer_of(model, tmp_path, max_steps=6, save_total_limit=None)
    trainer.train()
    scores = {
        log["step"]: log["eval_stsb_dev_spearman"]
        for log in trainer.state.log_history
        if "eval_stsb_dev_spearman" in log
    }
    best = max(scores, key=scores.get)
    assert trainer.state.best_global_step == best
    for step in scores:
        loaded = RobustCSEModel.from_pretrained(tmp_path / f"checkpoint-{step}")
        same = torch.allclose(loaded.encode(SENTENCES), model.eval().encode(SENTENCES), atol=1e-7)
        assert same == (step == best)
        assert (tmp_path / f"checkpoint-{step}" / "1_Pooling" / "config.json").is_file()
        assert not list((tmp_path / f"checkpoint-{step}").glob("training_args.bin"))
    arguments = json.loads((tmp_path / f"checkpoint-{best}" / "training_args.json").read_text())
    assert arguments["per_device_train_batch_size"] == 8


def test_selection_on_a_test_set_is_refused(model, tmp_path):
    both = {"stsb_dev": pairs(), "sts12": pairs("test", "STS12")}
    with pytest.raises(UserError, match="on a test set"):
        trainer_of(model, tmp_path, dev=both, metric_for_best_model="sts12_spearman")
    with pytest.raises(UserError, match="on a test set"):
        trainer_of(model, tmp_path, dev=both, metric_for_best_model="eval_avg_spearman")
    with pytest.raises(UserError, match="test sets"):
        trainer_of(model, tmp_path, dev={"sts12": pairs("test", "STS12")})
    with pytest.raises(UserError, match="choose one of eval_stsb_dev_spearman"):
        trainer_of(model, tmp_path, metric_for_best_model="eval_sts")
    assert not trainer_of(model, tmp_path, dev=both).selected_on_test()
    named_alike = {"stsb_dev": pairs(), "stsb": pairs("test")}
    assert not trainer_of(model, tmp_path, dev=named_alike).selected_on_test()
    allowed = trainer_of(model, tmp_path, dev=both, metric_for_best_model="sts12_spearman", allow_test_selection=True)
    assert allowed.selected_on_test()
    lower = trainer_of(model, tmp_path, metric_for_best_model="stsb_dev_alignment")
    assert lower.args.greater_is_better is False


def test_a_term_that_is_not_finite_is_named(model, tmp_path):
    trainer = trainer_of(model, tmp_path)
    method = model.method.methods["vadv"]
    inner = method.forward

    def broken(batch):
        contribution = inner(batch)
        if trainer.state.global_step == 1:
            contribution.terms["vadv"].value = contribution.terms["vadv"].value * float("nan")
        return contribution

    method.forward = broken
    with pytest.raises(TrainingStopped, match=r"^vadv is not finite at step 2 .*contrastive"):
        trainer.train()
    saved = load_file(next(tmp_path.glob("not-finite-step-2-*.safetensors")))
    assert saved["input_ids"].shape[:2] == (8, 1)


def test_collapse_stops_the_run(model, tmp_path):
    trainer = trainer_of(model, tmp_path)

    def collapse(sentences):
        x = RobustCSEModel.encode(model, sentences)
        return x if trainer.state.global_step == 0 else 1 + 1e-4 * x

    trainer.encode = collapse
    trainer.evaluate()
    with pytest.raises(
        TrainingStopped, match=r"embeddings collapsed: eval_stsb_dev_embedding_std .* step 2.*contrastive"
    ):
        trainer.train()


def test_training_that_breaks_gives_sigterm_back(model, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    trainer = trainer_of(model, tmp_path, learning_rate=1e30, max_steps=20)
    with pytest.raises(TrainingStopped):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_process_never_becomes_data_parallel(tmp_path):
    args = RobustCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    _ = args.device
    args._n_gpu = 4
    assert args.n_gpu == 1
    assert args.train_batch_size == args.per_device_train_batch_size


def test_batch_of_one_is_refused(model, tmp_path):
    with pytest.raises(UserError, match="no negatives"):
        trainer_of(model, tmp_path, per_device_train_batch_size=1)


@pytest.mark.parametrize("dropout", ["shared", "independent", "off"])
def test_gradient_checkpointing_changes_nothing(bert, tmp_path, dropout):
    weights = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = RobustCSEModel.from_encoder(
            bert, method="vadv", method_options={"vadv_lambda": 1.0, "vadv_dropout": dropout}
        )
        trainer_of(model, tmp_path / f"{checkpointing}", dev={}, gradient_checkpointing=checkpointing).train()
        weights.append(model.state_dict())
    assert all(torch.allclose(v, weights[1][k], atol=1e-6) for k, v in weights[0].items())


def test_bfloat16_trains(model, tmp_path):
    trainer = trainer_of(model, tmp_path, bf16=True, max_steps=2)
    trainer.train()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(log["vadv"] > 0 for log in trainer.state.log_history if "vadv" in log)


@pytest.mark.slow
def test_torch_compile_trains(bert, tmp_path):
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = RobustCSEModel.from_encoder(
            bert, method="vadv", method_options={"vadv_lambda": 1.0, "vadv_dropout": "off"}, dropout=0.0
        )
        keys = list(model.state_dict())
        trainer = trainer_of(model, tmp_path / f"{compiled}", dev={}, torch_compile=compiled)
        trainer.train()
        losses.append([(log["contrastive"], log["vadv"]) for log in trainer.state.log_history if "loss" in log])
        assert list(model.state_dict()) == keys
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=2e-3)


def test_arguments_keep_eval_and_save_in_step(tmp_path):
    args = RobustCSETrainingArguments(output_dir=str(tmp_path), eval_steps=50, use_cpu=True)
    assert args.save_steps == 50 and args.load_best_model_at_end
    args = RobustCSETrainingArguments(output_dir=str(tmp_path), eval_strategy="no", use_cpu=True)
    assert not args.load_best_model_at_end
    assert {f.name for f in dataclasses.fields(args)} >= {"output_dir", "allow_test_selection"}
    assert Path(args.output_dir) == tmp_path
