"""`run_attack.py` from its command line to its files, on a tiny classifier and a tiny encoder."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from html.parser import HTMLParser

import pytest
from run_attack_tools import attack, make_classifier, make_synonyms, records, results, rows, same, write_rows
from safetensors.torch import load_file, save_file
from tiny import make_language_model

from hf_robustcse.attack_runs.page import pieces
from hf_robustcse.attack_runs.records import Log, summarise
from hf_robustcse.report.read import Column, collect


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """The folder of a classifier, an encoder, data and synonyms."""
    folder = tmp_path_factory.mktemp("attack")
    make_classifier(folder / "classifier")
    make_language_model(folder / "encoder")  # without a pooler, whose weights are drawn as it is loaded
    write_rows(folder / "mr.tsv", rows(24))
    write_rows(folder / "train.tsv", rows(200, seed=1))
    make_synonyms(folder / "synonyms.txt")
    return folder


def common(ground, model="classifier"):
    return ["--model_name_or_path", ground / model, "--task", "MR", "--data_file", ground / "mr.tsv", "--attack",
            "pwws", "--synonyms", ground / "synonyms.txt", "--device", "cpu"]  # fmt: skip


def test_a_classifier_from_command_to_files(ground, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert attack(monkeypatch, *common(ground), "--num_examples", 20, "--output_dir", out) == 0
    printed = capsys.readouterr()
    assert "the first 20 of 24 rows" in printed.out and f"hf-robustcse report {out}" in printed.out
    assert "MR pwws: 100%" in printed.err and "queries" in printed.err
    lines = records(out)
    record = results(out)["attacks"]["MR"]["pwws"]
    assert [line["index"] for line in lines] == list(range(20))
    status = [line["status"] for line in lines]
    assert record["n"] == 20 == record["attempted"] + record["skipped"]
    assert record["succeeded"] == status.count("succeeded") > 0 and record["skipped"] == status.count("skipped") > 0
    assert record["success_rate"] == pytest.approx(100 * record["succeeded"] / record["attempted"])
    assert record["accuracy_before"] == pytest.approx(100 * record["attempted"] / 20)
    assert record["accuracy_after"] == pytest.approx(100 * status.count("failed") / 20)
    assert record["success_rate_low"] < record["success_rate"] <= record["success_rate_high"]
    tried = [line for line in lines if line["status"] != "skipped"]
    assert record["queries_per_example"] == pytest.approx(sum(line["queries"] for line in tried) / len(tried))
    assert record["recipe"]["recipe"] == "pwws" and record["recipe"]["transformation"]["resource"]
    for line in lines:
        assert (line["prediction_after"] != line["gold"]) is (line["status"] != "failed")
        before, after = pieces(line["original"]["text"], line["perturbed"]["text"], line["changed"])
        assert "".join(text for text, _ in before) == line["original"]["text"]
        assert "".join(text for text, _ in after) == line["perturbed"]["text"]
        assert [text for text, mark in before if mark] == [change["before"] for change in line["changed"]]
        assert [text for text, mark in after if mark] == [change["after"] for change in line["changed"]]
    assert not list(out.glob("*.part-*"))
    (row,) = collect([out]).rows
    assert row.scores[Column("attacks", "MR, pwws", "", "success_rate")].mean == pytest.approx(record["success_rate"])


def test_the_width_and_the_budget(ground, tmp_path, monkeypatch):
    for name, words in (("wide", []), ("narrow", ["--width", 1]), ("short", ["--query_budget", 12])):
        assert attack(monkeypatch, *common(ground), *words, "--output_dir", tmp_path / name) == 0
    same(records(tmp_path / "wide"), records(tmp_path / "narrow"))
    assert max(line["queries"] for line in records(tmp_path / "short")) <= 12
    record = results(tmp_path / "short")["attacks"]["MR"]["pwws"]
    assert record["out_of_budget"] == sum(line["out_of_budget"] for line in records(tmp_path / "short")) > 0
    assert record["query_budget"] == 12


def test_a_probe_is_trained_without_the_attacked_examples(ground, tmp_path, monkeypatch, capsys):
    # Copies with another case and spacing are the attacked examples all the same.
    copies = [(label, text.upper().replace(" ", "  ")) for label, text in rows(24)]
    train = write_rows(tmp_path / "train.tsv", [*copies[:5], *rows(200, seed=1)])
    words = [*common(ground, "encoder"), "--train_file", train, "--output_dir", tmp_path / "out"]
    assert attack(monkeypatch, *words) == 0
    assert "200 rows" in capsys.readouterr().out
    victim = results(tmp_path / "out")["protocol"]["victim"]
    assert (victim["kind"], victim["training"]["n"], victim["training"]["removed"]) == ("probe", 200, 5)
    record = results(tmp_path / "out")["attacks"]["MR"]["pwws"]
    assert record["attempted"] > 12  # better than chance: it has learnt something
    # The same victim is used again; the same command has nothing left to do.
    probe = hashlib.sha256((tmp_path / "out/victim/probe.safetensors").read_bytes()).hexdigest()
    assert attack(monkeypatch, *words) == 0
    assert "already finished: pwws" in capsys.readouterr().out
    assert hashlib.sha256((tmp_path / "out/victim/probe.safetensors").read_bytes()).hexdigest() == probe


def test_a_victim_is_fine_tuned_once(ground, tmp_path, monkeypatch, capsys):
    words = [*common(ground, "encoder"), "--train_file", ground / "train.tsv", "--victim", "finetuned",
             "--num_train_epochs", 1, "--learning_rate", 1e-3, "--output_dir", tmp_path / "out"]  # fmt: skip
    assert attack(monkeypatch, *words) == 0
    folder = tmp_path / "out/victim"
    assert (folder / "model.safetensors").is_file() and not list(folder.glob("checkpoint-*"))
    assert not (folder / "training_args.bin").exists()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    first = records(tmp_path / "out")
    (tmp_path / "out/results.json").unlink()
    assert attack(monkeypatch, *words) == 0
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    same(first, records(tmp_path / "out"))
    assert results(tmp_path / "out")["protocol"]["victim"]["training"]["num_train_epochs"] == 1


def test_a_second_attack_joins_the_first_and_another_setting_does_not(ground, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert attack(monkeypatch, *common(ground), "--output_dir", out) == 0
    swapped = [word if word != "pwws" else "random" for word in common(ground)]
    assert attack(monkeypatch, *swapped, "--output_dir", out) == 0
    assert set(results(out)["attacks"]["MR"]) == {"pwws", "random"}
    content = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    capsys.readouterr()
    for words, what in ((["--seed", 1], "another seed"), (["--num_examples", 7], "another examples"),
                        (["--query_budget", 5], "another query budget")):  # fmt: skip
        assert attack(monkeypatch, *common(ground), "--output_dir", out, *words) == 2
        error = capsys.readouterr().err
        assert what in error and "--overwrite_output_dir" in error
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == content
    assert attack(monkeypatch, *common(ground), "--output_dir", out, "--seed", 1, "--overwrite_output_dir") == 0
    assert set(results(out)["attacks"]["MR"]) == {"pwws"} and not (out / "MR-random.jsonl").exists()


def test_of_nli_only_the_hypothesis_changes(ground, tmp_path, monkeypatch):
    make_classifier(tmp_path / "nli", num_labels=3)
    texts = [text for _, text in rows(24, words=5)]
    lines = (f'{{"label": {i % 3}, "premise": "{a}", "hypothesis": "{b}"}}' for i, (a, b) in
             enumerate(zip(texts, texts[1:], strict=False)))  # fmt: skip
    (tmp_path / "snli.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = common(ground)
    words[1], words[3], words[5] = tmp_path / "nli", "snli", tmp_path / "snli.jsonl"
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 0
    lines = records(tmp_path / "out", "SNLI-pwws")
    assert all(line["original"]["premise"] == line["perturbed"]["premise"] for line in lines)
    assert any(line["original"]["hypothesis"] != line["perturbed"]["hypothesis"] for line in lines)


def test_a_classifier_with_named_classes_in_another_order(ground, tmp_path, monkeypatch):
    names = {"id2label": {0: "POSITIVE", 1: "NEGATIVE"}, "label2id": {"POSITIVE": 0, "NEGATIVE": 1}}
    make_classifier(tmp_path / "named", **names)
    flipped = write_rows(tmp_path / "flipped.tsv", [(1 - label, text) for label, text in rows(24)])
    words = common(ground)
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "one") == 0
    words[1], words[5] = tmp_path / "named", flipped
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "two") == 0
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert [line["perturbed"] for line in one] == [line["perturbed"] for line in two]


def test_rows_of_a_task_of_ones_own(ground, tmp_path, monkeypatch):
    make_classifier(tmp_path / "three", num_labels=3)
    own = write_rows(tmp_path / "own.tsv", [(i % 3, text) for i, (_, text) in enumerate(rows(9))])
    words = common(ground)
    words[1], words[3], words[5] = tmp_path / "three", "own", own
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 0
    assert len(records(tmp_path / "out", "own-pwws")) == 9


def test_poisoned_examples_hold_up_nobody(ground, tmp_path, monkeypatch):
    good = rows(12)
    giant = " ".join(text for _, text in rows(1250, seed=5))
    poison = [
        "",
        " ",
        "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 dog",
        "the \0 dog \x1b[31m",
        "\u202eالكلب يركض dog",
        "<script>alert(1)</script> & <b>dog</b>",
        "a" * 30000,
        giant,
    ]
    examples = [*({"label": i % 2, "text": text} for i, text in enumerate(poison * 2)),
                *({"label": label, "text": text} for label, text in good)]  # fmt: skip
    examples[8:16] = [{"label": 1 - line["label"], "text": line["text"]} for line in examples[:8]]
    path = tmp_path / "poison.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in examples), encoding="utf-8")
    words = common(ground)
    words[5], words[9] = path, make_synonyms(tmp_path / "few.txt", words=12)
    order = []
    write = Log.collect  # only the order in which examples end is watched

    def collect(self):
        order.extend(json.loads(line)["index"] for part in self.parts() for line in part.read_text().split("\n")[:-1])
        return write(self)

    monkeypatch.setattr(Log, "collect", collect)
    started = time.perf_counter()
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 0
    assert time.perf_counter() - started < 120
    longest = next(i for i in (7, 15) if records(tmp_path / "out")[i]["status"] != "skipped")
    assert order[-1] == longest and len(giant.split()) == 10000  # all others ended before it
    lines = records(tmp_path / "out")
    assert [line["original"]["text"] for line in lines] == [line["text"] for line in examples]
    words[5] = write_rows(tmp_path / "good.tsv", good)
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "good") == 0
    same(records(tmp_path / "good"), [{**line, "index": line["index"] - 16} for line in lines[16:]])

    class Page(HTMLParser):
        tags: set = set()

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

    page = (tmp_path / "out/MR-pwws.html").read_text(encoding="utf-8")
    Page().feed(page)
    assert "script" not in Page.tags and "b" not in Page.tags and "mark" in Page.tags
    assert not re.search("[\0\x1b\u202e]", page)


def test_a_nul_byte_in_a_table_is_a_character(ground, tmp_path, monkeypatch):
    write_rows(tmp_path / "nul.tsv", [(0, "the \0 dog"), *rows(5)])
    words = common(ground)
    words[5] = tmp_path / "nul.tsv"
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 0
    assert records(tmp_path / "out")[0]["original"] == {"text": "the \0 dog"}


def test_a_resource_that_changed_is_another_attack(ground, tmp_path, monkeypatch, capsys):
    words = common(ground)
    words[9] = make_synonyms(tmp_path / "synonyms.txt")
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 0
    make_synonyms(tmp_path / "synonyms.txt", words=9)
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "out") == 2
    assert "another synonyms.txt" in capsys.readouterr().err


def test_the_figures_of_hand_made_records():
    def line(status, queries=0, changed=0, words=10, over=False):
        return {"status": status, "queries": queries, "changed": [{}] * changed, "words": words, "out_of_budget": over,
                "seconds": 0.5}  # fmt: skip

    found = summarise([line("succeeded", 10, 2), line("succeeded", 30, 1), line("failed", 50, 9, over=True),
                       line("failed", 30), *[line("skipped", 1)] * 6])  # fmt: skip
    assert found["success_rate"] == 50 and found["accuracy_before"] == 40 and found["accuracy_after"] == 20
    assert found["queries_per_example"] == 30 and found["words_changed"] == pytest.approx(15)
    assert found["out_of_budget"] == 1 and found["queries_to_success"] == [10, 30] and found["seconds"] == 5
    # Wilson (1927): (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964, p = 1/2, n = 4
    assert found["success_rate_low"] == pytest.approx(15.00, abs=0.01)
    assert found["success_rate_high"] == pytest.approx(85.00, abs=0.01)
    nothing = summarise([line("skipped", 1)])
    assert nothing["success_rate"] is None and nothing["queries_per_example"] is None


def test_a_picture_of_several_victims(ground, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    for name in ("one", "two"):
        assert attack(monkeypatch, *common(ground), "--output_dir", tmp_path / name) == 0
        assert (tmp_path / name / "attacks.png").stat().st_size > 1000
    words = ["--figure", tmp_path / "one", tmp_path / "two/results.json", "--output_dir", tmp_path / "both"]
    assert attack(monkeypatch, *words) == 0
    assert (tmp_path / "both/attacks.png").stat().st_size > 1000


def test_a_resource_that_has_other_weights_now_is_refused(ground, masked_lm, tmp_path, monkeypatch, capsys):
    model = tmp_path / "masked-lm"
    shutil.copytree(masked_lm, model)
    words = [word if word != "pwws" else "bert-attack" for word in common(ground)]
    words += [
        "--masked_lm",
        model,
        "--sentence_encoder",
        "none",
        "--parameter",
        "k=2",
        "--output_dir",
        tmp_path / "out",
    ]
    assert attack(monkeypatch, *words) == 0
    assert str(model) in results(tmp_path / "out")["attacks"]["MR"]["bert-attack"]["resources"]
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if weights[name].is_floating_point())
    save_file({**weights, name: weights[name] + 1}, model / "model.safetensors", metadata={"format": "pt"})
    capsys.readouterr()
    assert attack(monkeypatch, *words) == 2
    assert "holds an attack with another masked-lm" in capsys.readouterr().err
