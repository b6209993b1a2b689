"""The parts of the page as HTML; every text of a user is escaped."""

import html
import math
from collections.abc import Sequence
from typing import Any

from electra.hub.heat_map import CLOSING, JudgedToken, heat_map
from electra.hub.inference import PredictedToken
from electra.play.game import Round
from electra.play.scores import Ranked, summarise


def proposals(items: Sequence[PredictedToken], current: str, index: int | None = None) -> str:
    """Return tokens with their probabilities as bars; with an index they can be clicked."""
    rows = []
    for item in items:
        tag = "span" if index is None else "button"
        click = (
            ""
            if index is None
            else f'type="button" data-index="{index}" data-token="{html.escape(item.token)}" '
        )
        taken = " taken" if item.token == current else ""
        rows.append(
            f'<{tag} {click}class="proposal{taken}" style="--p:{item.probability:.3f}">'
            f"<b>{html.escape(item.token)}</b><small>{item.probability:.1%}</small></{tag}>"
        )
    return f'<div class="proposals">{"".join(rows)}</div>'


def all_proposals(tokens: Sequence[JudgedToken]) -> str:
    """Return a table of the masked tokens, what was sampled, and what the generator proposed."""
    rows = "".join(
        f"<tr><td>{html.escape(token.token if token.original is None else token.original)}</td>"
        f"<td><b>{html.escape(token.token)}</b></td>"
        f"<td>{proposals(token.proposals, token.token)}</td></tr>"
        for token in tokens
        if token.masked
    )
    if not rows:
        return ""
    return (
        '<h3>The generator’s proposals</h3><div class="wide-table"><table class="masks"><thead><tr>'
        "<th>masked</th><th>sampled</th><th>most likely tokens</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def token_panel(token: JudgedToken | None, index: int) -> str:
    """Return the details of the token that was clicked."""
    if token is None:
        return '<p class="hint">Click a token to replace it by hand.</p>'
    before = html.escape(token.original_text)
    origin = f" It replaces “{before}”." if before else ""
    found = (
        f"<p>The generator would put here:</p>{proposals(token.proposals, token.token, index)}"
        if token.proposals
        else ""
    )
    return (
        f'<p>Token {index + 1}: <b class="quoted">{html.escape(token.text)}</b>, '
        f"{token.suspicion:.1%} suspicious.{origin}</p>{found}"
    )


def game_board(game: Round) -> str:
    """Return the words of a round as buttons; after the end, with the answer."""
    if not game.words:
        return ""
    parts = []
    for number, word in enumerate(game.words):
        kinds = ["word"] + ["joined"] * (word.text in CLOSING)
        mine, its = number in game.chosen, number in game.suspected
        marks = ""
        if game.finished:
            kinds += ["was-replaced"] * word.replaced + ["wrong"] * (mine and not word.replaced)
            names = ["you"] * mine + ["model"] * its
            before = f"<s>{html.escape(word.original)}</s>" if word.replaced else ""
            marks = f"{before}<small>{' + '.join(names) or '&nbsp;'}</small>"
        elif mine:
            kinds.append("chosen")
        disabled = " disabled" if game.finished else ""
        parts.append(
            f'<button type="button" data-index="{number}" class="{" ".join(kinds)}" '
            f'aria-pressed="{str(mine).lower()}"{disabled}><b>{html.escape(word.text)}</b>{marks}'
            "</button>"
        )
    return f'<div class="tokens board">{"".join(parts)}</div>'


def game_status(game: Round) -> str:
    """Say how many words to find, or who won."""
    if not game.words:
        return '<p class="hint">Start a round: the generator replaces some words. Find them.</p>'
    count = len(game.replaced)
    words = "word was" if count == 1 else "words were"
    if not game.finished:
        return (
            f"<p><b>{count} {words} replaced.</b> Click what you suspect: "
            f"{len(game.chosen)} of {count} chosen.</p>"
        )
    mine, its = (len(game.replaced & found) for found in (game.chosen, game.suspected))
    verdict = "You win!" if mine > its else "The model wins." if its > mine else "A draw."
    return (
        f'<p class="verdict"><b>{verdict}</b> Of {count} replaced, you found {mine} and the model '
        f"{its}.</p><table class='score'><tr><th></th><th>found so far</th></tr>"
        f"<tr><td>you</td><td>{game.player} of {game.total}</td></tr>"
        f"<tr><td>model</td><td>{game.model} of {game.total}</td></tr></table>"
    )


def compared(name: str, tokens: Sequence[JudgedToken]) -> str:
    """Return one model's view of a text under its name."""
    return (
        f"<h3>{html.escape(name)}</h3><p class='hint'>{html.escape(summarise(tokens))}</p>"
        f"{heat_map(tokens, clicks=False)}"
    )


def ranking(items: Sequence[Ranked], energies: bool) -> str:
    """Return ranked sentences with their scores as bars.

    A log probability becomes the (geometric) mean probability of a token; energies have no unit,
    so their bars compare the sentences with each other.
    """
    low, high = items[-1].score, items[0].score
    rows = []
    for item in items:
        share = math.exp(item.score)
        if energies:
            share = (item.score - low) / (high - low) if high > low else 1.0
        score = f"{item.score:.3f}" if energies else f"{share:.1%}"
        rows.append(
            f'<li style="--p:{share:.3f}"><small>{score}</small>'
            f"<span>{html.escape(item.sentence)}</span></li>"
        )
    measure = (
        "pseudo-log-likelihood per token; higher is more plausible"
        if energies
        else "mean probability of its tokens to be original"
    )
    return (
        f'<ol class="ranking">{"".join(rows)}</ol>'
        f'<p class="hint">The score of a sentence is the {measure}.</p>'
    )


def record(found: dict[str, Any]) -> str:
    """Return what a fine-tuned model says: labels with bars, a value, tags, or an answer."""
    if "probabilities" in found:
        ordered = sorted(found["probabilities"].items(), key=lambda item: -item[1])
        tokens = [PredictedToken(token=str(label), probability=p) for label, p in ordered]
        return f'<p class="answer">{html.escape(str(found["label"]))}</p>' + proposals(
            tokens, str(found["label"])
        )
    if "tags" in found:
        pairs = zip(found["words"], found["tags"], strict=True)
        return '<div class="tokens">' + "".join(
            f'<span class="token{" replaced" if tag != "O" else ""}" style="--p:0">'
            f"<b>{html.escape(word)}</b><small>{html.escape(tag)}</small></span>"
            for word, tag in pairs
        ) + "</div>"  # fmt: skip
    if "answer" in found:
        return f'<p class="answer">{html.escape(found["answer"]) or "no answer"}</p>'
    return f'<p class="answer">{found["value"]:.3f}</p>'
