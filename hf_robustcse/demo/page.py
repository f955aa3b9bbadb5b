"""The demo's page: Gradio around `compute.Demo`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from typing import Any

from hf_robustcse.demo import views
from hf_robustcse.demo.compute import ATTACKS, DRAWN, LONGEST, MOST_EDITS, Demo, Step
from hf_robustcse.errors import UserError

_PAUSE = 0.3  # seconds between two edits, so that they can be watched
_EDITS = 8
_PAIRS = [
    ["The committee will publish the annual report on Tuesday.", "The yearly report comes out next week."],
    ["A young woman plays the guitar in the street.", "A girl is making music outdoors."],
    ["The tiger ate the meat.", "The central bank raised interest rates."],
]
_QUERIES = [
    "The band recorded a new album.",
    "A criminal is questioned by the police.",
    "The weather destroyed the crops.",
]
_ATTACKED = [
    ["The committee will publish the annual report next Tuesday.", "", "typos"],
    ["The doctor examined the patient and found nothing unusual.", "", "synonyms"],
    ["A young woman plays the guitar in the street.", "A girl is making music outdoors.", "deepwordbug"],
]
_EXPLAINED = {
    "typos": "Typos at random",
    "synonyms": "Synonyms at random",
    "deepwordbug": "DeepWordBug: the worst typos",
    "pwws": "PWWS: the worst synonyms",
    "textbugger": "TextBugger: the worst misspellings and near words",
    "textfooler": "TextFooler: the worst near words",
}


def gradio() -> Any:
    """The module.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import gradio
    except ImportError as error:
        raise UserError("the demo's page is made with Gradio: pip install hf_robustcse[demo]") from error
    return gradio


def build(demo: Demo, *, about: str = "", pause: float = _PAUSE) -> Any:
    """The page, to be given to `launch` with `views.CSS`.

    Args:
        demo: of two models.
        about: a line of Markdown on top.
        pause: seconds between two edits of an attack.

    Returns:
        A `gradio.Blocks`.

    Raises:
        UserError: if Gradio is not installed.
    """
    gr = gradio()

    def told(error: UserError) -> Any:
        """Bad input is told to the visitor, and what stands on the page stays."""
        gr.Warning(escape(str(error)), title="Please check the input")
        return gr.skip()

    def similarity(first: str, second: str) -> Any:
        try:
            values, notes = demo.similarity(first, second)
        except UserError as error:
            return told(error)
        return views.similarities(demo, values) + views.notes(notes)

    def search(query: str) -> Any:
        try:
            found, notes = demo.search(query)
        except UserError as error:
            return told(error)
        return views.hits(demo, found) + views.notes(notes)

    def attack(text: str, other: str, kind: str, target: int, edits: float, seed: float) -> Iterator[Any]:
        steps: list[Step] = []
        settings = {"attack": kind, "edits": int(edits or 0), "target": int(target or 0), "seed": int(seed or 0)}
        try:
            for step in demo.attack(text, other or "", **settings):
                if len(steps) > 1:
                    time.sleep(pause)
                steps.append(step)
                said = "<p>Searching …</p>" if kind not in DRAWN and not step.edits else ""
                shown = views.edited(step) + views.plot(demo, steps, settings["edits"]) + views.table(demo, steps)
                yield said + shown
        except UserError as error:
            yield told(error)
            return
        yield views.verdict(demo, steps, itself=not (other or "").strip()) + views.notes(demo.notes(text)) + shown

    def line(label: str, name: str, **more: Any) -> Any:
        # Beyond LONGEST the visitor is told; far beyond it the browser itself would choke on what was pasted.
        return gr.Textbox(label=label, elem_id=name, max_lines=4, max_length=10 * LONGEST, **more)

    names = " &nbsp;against&nbsp; ".join(views.name_of(model, number) for number, model in enumerate(demo.models))
    with gr.Blocks(title="Robust sentence embeddings", analytics_enabled=False) as page:
        gr.Markdown(f"# Robust sentence embeddings, side by side\n{names}{'<br>' + about if about else ''}")
        with gr.Tab("Similarity"):
            gr.Markdown("How similar do the models find two texts? The tick on a bar marks two unrelated sentences.")
            with gr.Row():
                first = line("First text", "first", value=_PAIRS[0][0])
                second = line("Second text", "second", value=_PAIRS[0][1])
            compare = gr.Button("Compare", variant="primary", elem_id="compare")
            cosines = gr.HTML(elem_id="cosines")
            gr.Examples(_PAIRS, [first, second], label="Examples: click, then Compare")
        with gr.Tab("Search"):
            gr.Markdown(f"Which of {len(demo.corpus):,} sentences are nearest to a query?")
            query = line("Query", "query", value=_QUERIES[0])
            find = gr.Button("Search", variant="primary", elem_id="find")
            found = gr.HTML(elem_id="found")
            gr.Examples(_QUERIES, [query], label="Examples: click, then Search")
        with gr.Tab("Attack it"):
            gr.Markdown("Change a sentence word by word, and watch which model still recognises it.")
            with gr.Row():
                with gr.Column(scale=2, min_width=320):
                    text = line("Sentence to attack", "text", value=_ATTACKED[0][0])
                    other = line("Compared with", "other", placeholder="the sentence itself, unchanged")
                    kind = gr.Radio(_choices(demo), value="typos", label="Attack", elem_id="kind")
                    target = gr.Radio(
                        [(name, number) for number, name in enumerate(demo.names)], value=0, visible=False,
                        label="Model that the search asks; the other one gets the same text", elem_id="target",
                    )  # fmt: skip
                    edits = gr.Slider(1, MOST_EDITS, _EDITS, step=1, label="Words to change", elem_id="edits")
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=99999, elem_id="seed")
                    go = gr.Button("Attack", variant="primary", elem_id="go")
                with gr.Column(scale=3, min_width=420):
                    shown = gr.HTML("<p class='quiet'>Press Attack.</p>", elem_id="shown")
            gr.Examples(_ATTACKED, [text, other, kind], label="Examples: click, then Attack")
        kind.change(lambda name: gr.Radio(visible=name not in DRAWN), kind, target, api_visibility="private")
        how = {"show_progress": "minimal", "concurrency_limit": 8}
        gr.on(
            [compare.click, first.submit, second.submit], similarity, [first, second], cosines, api_name="similarity",
            **how,
        )  # fmt: skip
        gr.on([find.click, query.submit], search, query, found, api_name="search", **how)
        settings = [text, other, kind, target, edits, seed]
        gr.on([go.click, text.submit, other.submit], attack, settings, shown, api_name="attack", **how)
    return page


def _choices(demo: Demo) -> list[tuple[str, str]]:
    """The attacks: those that lack WordNet say so, those that need a file that was not named are left out."""
    choices = []
    for name in ATTACKS:
        lacks = demo.missing(name)
        if lacks is None or name in ("synonyms", "pwws"):
            choices.append((f"{_EXPLAINED[name]} ({lacks})" if lacks else _EXPLAINED[name], name))
    return choices
