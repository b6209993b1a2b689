"""The page: Gradio components around the functions of this package."""

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import UserError, require
from electra.hub import heat_map
from electra.play import game, html, runs, scores, tokens
from electra.play.models import Choice
from electra.train import charts

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLE = "The chef cooked a meal for the guests and poured each of them a glass of wine."
PLAUSIBLE = (
    "The cat sat on the warm stone.\nThe cat sat on the warm of.\nCat the the on stone sat warm."
)
REFRESH_SECONDS = 3
CSS = (
    charts.STYLE + heat_map.STYLE + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
)
HEAD = f"<script>{charts.SCRIPT}</script>"
CLICKS = """
let last = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-index]');
  if (!button) return;
  last = button.dataset.index;
  trigger('click', {index: Number(last), token: button.dataset.token ?? ''});
});
watch('value', () => {  // the buttons are new: keep the keyboard where it was
  const nothing = !document.activeElement || document.activeElement === document.body;
  if (last !== null && nothing) element.querySelector(`[data-index="${last}"]`)?.focus();
});
"""
"""Pass clicks on the buttons of a heat map to Python."""


def build_page(models: Mapping[str, Choice], runs_folder: Path | None) -> Any:
    """Return the Gradio page; tabs that no model can serve are left out."""
    gr = require("gradio", "play")
    with gr.Blocks(title="electra play", analytics_enabled=False) as page:
        names = ", ".join(f"**{name}**" for name in models if ", step " not in name)
        gr.Markdown(f"# electra play\n{names}", elem_id="title")
        with gr.Tabs():
            both = _names(models, lambda c: c.detects and c.proposes)
            detectors = _names(models, lambda c: c.detects)
            if detectors:
                _corrupt_tab(gr, models, detectors)
            if both:
                _game_tab(gr, models, both)
            if detectors:
                _compare_tab(gr, models, detectors)
            if found := _names(models, lambda c: c.detects or c.scores):
                _score_tab(gr, models, found)
            if tuned := _names(models, lambda c: bool(c.task)):
                _classify_tab(gr, models, tuned)
            if runs_folder is not None:
                _runs_tab(gr, runs_folder)
    return page


def _names(models: Mapping[str, Choice], able: Callable[[Choice], bool]) -> list[str]:
    return [name for name, choice in models.items() if able(choice)]


def _shown(function: F) -> F:
    """Show a `UserError` on the page."""
    import gradio as gr

    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UserError as error:
            raise gr.Error(str(error), title="", print_exception=False) from None

    return wrapped  # type: ignore[return-value]


def _choose_model(gr: Any, names: list[str], label: str = "Model", at: int = 0) -> Any:
    return gr.Dropdown(names, value=names[at], label=label, visible=len(names) > 1)


def _text(gr: Any, value: str, label: str = "Text", lines: int = 3) -> Any:
    return gr.Textbox(value, label=label, lines=lines, max_lines=8, max_length=tokens.MAX_CHARS)


def _seed() -> int:
    return random.SystemRandom().randrange(2**31)


def _corrupt_tab(gr: Any, models: Mapping[str, Choice], names: list[str]) -> None:
    with gr.Tab("Corrupt and detect"):
        model = _choose_model(gr, names)
        text = _text(gr, EXAMPLE)
        with gr.Row():
            rate = gr.Slider(0.05, 0.5, 0.15, step=0.05, label="Mask rate")
            temperature = gr.Slider(0.1, 2.0, 1.0, step=0.1, label="Temperature")
        with gr.Row():
            corrupt = gr.Button("Corrupt and detect", variant="primary")
            detect = gr.Button("Detect only")
        state, index = gr.State([]), gr.State(-1)
        heat = gr.HTML(js_on_load=CLICKS, elem_id="heat")
        legend = gr.HTML(heat_map.legend(), visible=False)
        with gr.Column(visible=False, elem_id="panel") as panel:
            details = gr.HTML(js_on_load=CLICKS, elem_id="details")
            with gr.Row(equal_height=True):
                word = gr.Textbox(
                    show_label=False,
                    label="Replacement",
                    placeholder="Another word",
                    container=False,
                    max_length=tokens.MAX_REPLACEMENT_CHARS,
                    max_lines=1,
                    scale=3,
                    min_width=120,
                )
                replace = gr.Button("Replace", scale=1, min_width=100)
        table = gr.HTML(elem_id="proposals")

        def show(found: list[heat_map.JudgedToken], at: int, name: str) -> dict[Any, Any]:
            chosen = None
            if at >= 0:
                chosen = tokens.pick(found, at)
                if models[name].proposes:
                    chosen = tokens.with_proposals(models[name].model, found, at)
            return {
                state: found,
                index: at,
                heat: heat_map.heat_map(found, at),
                legend: gr.update(visible=True),
                panel: gr.update(visible=True),
                details: html.token_panel(chosen, at),
                word: "",
                table: html.all_proposals(found),
            }

        @_shown
        def on_corrupt(name: str, text: str, rate: float, temperature: float) -> dict[Any, Any]:
            if not models[name].proposes:
                raise UserError(f"{name} has no generator: use “Detect only”.")
            found = tokens.corrupt_and_detect(models[name].model, text, rate, temperature, _seed())
            return show(found, -1, name)

        @_shown
        def on_detect(name: str, text: str) -> dict[Any, Any]:
            return show(tokens.detect(models[name].model, text), -1, name)

        @_shown
        def on_token(name: str, found: Any, event: gr.EventData) -> dict[Any, Any]:
            return show(found, event.index, name)

        @_shown
        def on_proposal(name: str, found: Any, event: gr.EventData) -> dict[Any, Any]:
            new = tokens.replace_token(models[name].model, found, event.index, event.token)
            return show(new, event.index, name)

        @_shown
        def on_word(name: str, found: Any, at: int, word: str) -> dict[Any, Any]:
            if at < 0:
                raise UserError("No token is chosen: click one first.")
            return show(tokens.replace_token(models[name].model, found, at, word), at, name)

        out = [state, index, heat, legend, panel, details, word, table]
        quiet = {"outputs": out, "api_visibility": "private", "show_progress": "hidden"}
        corrupt.click(on_corrupt, [model, text, rate, temperature], **quiet)
        detect.click(on_detect, [model, text], **quiet)
        heat.click(on_token, [model, state], **quiet)
        details.click(on_proposal, [model, state], **quiet)
        replace.click(on_word, [model, state, index, word], **quiet)
        word.submit(on_word, [model, state, index, word], **quiet)


def _game_tab(gr: Any, models: Mapping[str, Choice], names: list[str]) -> None:
    with gr.Tab("Can you beat it?"):
        model = _choose_model(gr, names)
        with gr.Row():
            begin = gr.Button("New round", variant="primary")
            check = gr.Button("Show the answer", interactive=False)
        rate = gr.Slider(0.05, 0.4, 0.15, step=0.05, label="Mask rate")
        state = gr.State(game.Round())
        status = gr.HTML(html.game_status(game.Round()), elem_id="status")
        board = gr.HTML(js_on_load=CLICKS, elem_id="board")
        with gr.Accordion("Your own texts", open=False):
            own = _text(gr, "", "One sentence per line; each round takes one of them", lines=4)

        def show(now: game.Round) -> list[Any]:
            ready = bool(now.words) and not now.finished
            return [
                now,
                html.game_status(now),
                html.game_board(now),
                gr.update(interactive=ready, variant="primary" if ready else "secondary"),
                gr.update(variant="secondary" if ready else "primary"),
            ]

        @_shown
        def on_begin(name: str, now: game.Round, rate: float, own: str) -> list[Any]:
            seed = _seed()
            mine = scores.split_sentences(own) if own.strip() else game.SENTENCES
            text = game.sentence(seed, mine)
            return show(game.new_round(now, models[name].model, text, mask_rate=rate, seed=seed))

        @_shown
        def on_word(now: game.Round, event: gr.EventData) -> list[Any]:
            return show(game.toggle(now, event.index))

        def on_check(now: game.Round) -> list[Any]:
            return show(game.finish(now))

        quiet = {
            "outputs": [state, status, board, check, begin],
            "api_visibility": "private",
            "show_progress": "hidden",
        }
        begin.click(on_begin, [model, state, rate, own], **quiet)
        board.click(on_word, [state], **quiet)
        check.click(on_check, [state], **quiet)


def _compare_tab(gr: Any, models: Mapping[str, Choice], names: list[str]) -> None:
    with gr.Tab("Compare"):
        if len(names) < 2:
            gr.Markdown(
                "There is only one model: give several, as in `electra play runs/a runs/b`, or a "
                "run with several checkpoints."
            )
            return
        with gr.Row():
            first = _choose_model(gr, names, "First model")
            second = _choose_model(gr, names, "Second model", 1)
        text = _text(gr, EXAMPLE)
        button = gr.Button("Compare", variant="primary")
        found = gr.HTML(elem_id="compared")

        @_shown
        def on_compare(first: str, second: str, text: str) -> str:
            return "".join(
                html.compared(name, tokens.detect(models[name].model, text))
                for name in (first, second)
            )

        button.click(on_compare, [first, second, text], found, api_visibility="private")


def _score_tab(gr: Any, models: Mapping[str, Choice], names: list[str]) -> None:
    with gr.Tab("Score"):
        model = _choose_model(gr, names)
        text = _text(gr, PLAUSIBLE, "Sentences, one per line", lines=4)
        button = gr.Button("Rank by plausibility", variant="primary")
        found = gr.HTML(elem_id="ranked")

        @_shown
        def on_score(name: str, text: str) -> str:
            return html.ranking(scores.rank(models[name], text), models[name].scores)

        button.click(on_score, [model, text], found, api_visibility="private")


def _classify_tab(gr: Any, models: Mapping[str, Choice], names: list[str]) -> None:
    with gr.Tab("Classify"):
        model = _choose_model(gr, names)
        text = _text(gr, "", "Text")
        label = scores.second_text(models[names[0]])
        second = gr.Textbox(label=label, lines=3, max_length=tokens.MAX_CHARS, visible=bool(label))
        button = gr.Button("Classify", variant="primary")
        found = gr.HTML(elem_id="classified")

        def on_model(name: str) -> Any:
            label = scores.second_text(models[name])
            return gr.update(label=label, visible=bool(label))

        @_shown
        def on_classify(name: str, text: str, second: str) -> str:
            return html.record(scores.apply_task(models[name], text, second))

        model.change(on_model, [model], second, api_visibility="private")
        button.click(on_classify, [model, text, second], found, api_visibility="private")


def _runs_tab(gr: Any, folder: Path) -> None:
    with gr.Tab("Runs") as tab:
        known = list(runs.find_runs(folder))
        chosen = gr.CheckboxGroup(known, value=known[: runs.SHOWN_AT_FIRST], label="Runs")
        seen = gr.State("")
        found = gr.HTML(elem_id="runs")
        timer = gr.Timer(REFRESH_SECONDS)

        def on_tick(names: list[str], seen: str) -> Any:
            present = runs.find_runs(folder)
            now = runs.version(present, names)
            if now == seen:
                return gr.skip(), gr.skip(), gr.skip()
            curves = runs.render_runs(runs.read_runs(present, names))
            return gr.update(choices=list(present)), now, curves

        quiet = {
            "inputs": [chosen, seen],
            "outputs": [chosen, seen, found],
            "api_visibility": "private",
            "show_progress": "hidden",
        }
        tab.select(on_tick, **quiet)  # the timer's first tick would leave it empty for a while
        timer.tick(on_tick, **quiet)
        chosen.input(on_tick, **quiet)
