"""The demo's command line: which models, which corpus, where it listens.

Torch and Gradio are imported where they are used: help and usage errors need not wait for them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_robustcse.errors import Parser, UserError, command

if TYPE_CHECKING:
    from hf_robustcse.demo.compute import Demo

EMBEDDED, WORDNET = "embedded", "wordnet"
_MOST_UPLOADED = 1  # byte: the page takes no files


def parser() -> Parser:
    """The options."""
    options = Parser(prog="demo.py", description="Two sentence encoders side by side in a browser.", allow_abbrev=False)
    options.add_argument(
        "--model",
        default=EMBEDDED,
        help="folder or Hub id that sentence-transformers loads (default: the tiny encoder)",
    )
    options.add_argument("--compare_with", default=EMBEDDED, help="the second model, likewise")
    options.add_argument("--pooling", help="of --model, if it is a plain encoder: cls, mean, first-last, ...")
    options.add_argument("--compare_pooling", help="the same of --compare_with")
    options.add_argument("--corpus", help="to search: a file of sentences (default: a part of the embedded corpus)")
    options.add_argument("--max_corpus", type=int, default=1000, help="sentences of it that are read (default: 1000)")
    options.add_argument(
        "--synonyms", default=WORDNET, help="wordnet, or a file with tab-separated synonyms on each line"
    )
    options.add_argument(
        "--word_neighbours", help="word vectors or a table of neighbours, for the attacks textbugger and textfooler"
    )
    options.add_argument("--device", help="for example cpu or cuda:0 (default: an accelerator if there is one)")
    options.add_argument("--host", default="127.0.0.1", help="to listen at (default: this machine only)")
    options.add_argument("--port", type=int, default=7860, help="0 for any that is free (default: 7860)")
    options.add_argument("--share", action="store_true", help="also a public link through Gradio's servers")
    return options


def _names(models: Sequence[str], poolings: Sequence[str]) -> list[str]:
    """What the models are called on the page: a Hub id or the end of a path, and the pooling where that tells more.

    Raises:
        UserError: if they are one and the same.
    """
    ends = [
        "untrained tiny encoder" if model == EMBEDDED else "/".join(Path(model).parts[-2:]).lstrip("/.")
        for model in models
    ]
    full = [f"{end} ({pooling})" for end, pooling in zip(ends, poolings, strict=True)]
    if models[0] == models[1] and full[0] == full[1]:
        raise UserError(f"--model and --compare_with are the same model, {full[0]}: name two, or two poolings")
    if ends[0] != ends[1]:
        return [whole if model == EMBEDDED else end for model, end, whole in zip(models, ends, full, strict=True)]
    return full if full[0] != full[1] else [f"{name}, {which}" for name, which in zip(full, ("1", "2"), strict=True)]


def load(
    model: str = EMBEDDED,
    compare_with: str = EMBEDDED,
    *,
    pooling: str | None = None,
    compare_pooling: str | None = None,
    corpus: str | None = None,
    max_corpus: int = 1000,
    synonyms: str = WORDNET,
    word_neighbours: str | None = None,
    device: str | None = None,
) -> Demo:
    """The models, the corpus and the attacks of the options of the same names.

    Raises:
        UserError: if one of them cannot be loaded, or the corpus has fewer than two sentences.
    """
    from hf_robustcse.attacks.resources import Resources
    from hf_robustcse.attacks.resources.lexicons import load_neighbours
    from hf_robustcse.data import VIEWS, load_corpus
    from hf_robustcse.demo.compute import Demo, Model
    from hf_robustcse.evaluation.embedders import load_embedder
    from hf_robustcse.runs import EMBEDDED_CORPUS, EMBEDDED_ENCODER
    from hf_robustcse.synonyms import read_word_list

    if max_corpus < 2:
        raise UserError(f"--max_corpus must be at least 2, not {max_corpus}: a search needs two sentences")
    resources = Resources(synonyms=synonyms, word_neighbours=word_neighbours)
    if synonyms != WORDNET:
        read_word_list(synonyms)  # complains now, not at a visitor's click
    if word_neighbours:
        resources.neighbours = load_neighbours(word_neighbours)
    sentences = list(load_corpus(corpus or EMBEDDED_CORPUS, max_rows=max_corpus).dataset[VIEWS[0]])
    if len(sentences) < 2:
        raise UserError(f"--corpus {corpus}: a search needs at least two sentences")
    # Beside a trained model stands what it was trained from; beside itself, the untrained encoder pooled otherwise.
    poolings = (
        pooling or ("first-last" if model == EMBEDDED else None),
        compare_pooling or (("cls" if model == EMBEDDED else "first-last") if compare_with == EMBEDDED else None),
    )
    embedders = [
        load_embedder(EMBEDDED_ENCODER if name == EMBEDDED else name, pooling=pooled, device=device)
        for name, pooled in zip((model, compare_with), poolings, strict=True)
    ]
    names = _names((model, compare_with), [embedder.description["pooling"] for embedder in embedders])
    models = [Model(name, embedder, sentences) for name, embedder in zip(names, embedders, strict=True)]
    return Demo(models, sentences, resources)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Open the demo and serve it until it is interrupted.

    Args:
        argv: the options; None takes the process's.

    Raises:
        SystemExit: with code 2 for bad input.
    """
    options = vars(parser().parse_args(argv))
    host, port, share = (options.pop(name) for name in ("host", "port", "share"))
    from hf_robustcse.demo.page import build, gradio
    from hf_robustcse.demo.views import CSS

    # Both are read by Gradio: nothing is reported, and no visitor's calls are recorded.
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    gr = gradio()
    port = _free(host, port)
    about = ""
    if options["model"] == options["compare_with"] == EMBEDDED:
        about = "No model was named: two poolings of one untrained encoder stand in. `--model DIR` shows a trained one."
    page = build(load(**options), about=about)
    font = ["system-ui", "sans-serif"]  # a web font would be fetched from elsewhere
    theme = gr.themes.Default(primary_hue=gr.themes.colors.blue, font=font, font_mono=["ui-monospace", "monospace"])
    print(f"the demo is at http://{host}:{port} (Ctrl-C ends it)", flush=True)
    page.launch(
        server_name=host, server_port=port, share=share, theme=theme, css=CSS, footer_links=["gradio"], quiet=not share,
        pwa=False, ssr_mode=False, mcp_server=False, max_file_size=_MOST_UPLOADED,
        allowed_paths=[], enable_monitoring=False,
    )  # fmt: skip


def _free(host: str, port: int) -> int:
    """The port, or a free one for 0.

    Raises:
        UserError: if nothing can listen there.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}:{port} ({error}): choose another --port, or --host") from error
