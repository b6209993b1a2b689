"""The page in Chromium, used as a person would: each tab, the keyboard, a narrow screen.

Set ELECTRA_SCREENSHOTS to a folder to keep a picture of each tab.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from electra.play.server import serve
from electra.train.metrics_log import MetricsLog
from electra.train.report import write_report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
TEXT = "the old farmer went to the field to plough the barley ."
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def runs(finished, tmp_path_factory):
    """A folder with a run that may grow."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(finished, folder / "first")
    return folder


@pytest.fixture(scope="module")
def address(runs, tuned):
    pytest.importorskip("gradio")
    page, address = serve([str(runs / "first"), str(tuned)], device="cpu", wait=False)
    yield address
    page.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        profile = tmp_path_factory.mktemp("profile")
        context = driver.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1180, "height": 900},
        )
        context.set_default_timeout(15_000)
        yield context
        context.close()


@pytest.fixture
def page(browser, address):
    """A fresh page; at the end, all its requests went to our server and nothing failed."""
    page = browser.new_page()
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.get_by_role("button", name="Corrupt and detect").wait_for()
    yield page
    page.close()
    outside = [url for url in requests if not url.startswith((address, "data:", "blob:"))]
    assert len(requests) > 10
    assert not outside
    assert not errors


def open_tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def keep(page, name: str) -> None:
    if folder := os.environ.get("ELECTRA_SCREENSHOTS"):
        page.wait_for_timeout(400)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def text_box(page):
    return page.get_by_label("Text", exact=True).locator("visible=true")


def enter(box, text: str) -> None:
    """Fill a text box, again if need be: a tab that has just opened sets it to its default."""
    for _ in range(20):
        box.fill(text)
        box.page.wait_for_timeout(500)
        if box.input_value() == text:
            return
    raise AssertionError(f"the text box does not keep {text!r}")


def shares(page, where: str) -> list[str]:
    return page.locator(f"{where} .token small").all_inner_texts()


def test_corrupt_click_and_replace(page, choice):
    enter(text_box(page), TEXT)
    page.get_by_role("button", name="Corrupt and detect").click()
    page.locator("#heat .token").first.wait_for()
    assert page.locator("#proposals tbody tr").count() >= 1
    assert page.locator("#proposals .proposal").count() >= 5
    page.get_by_role("button", name="Detect only").click()
    page.locator("#proposals tbody").wait_for(state="detached")
    expected = [f"{t.replaced:.0%}" for t in choice.model.detect(TEXT)]
    assert shares(page, "#heat") == expected
    words = [t.token for t in choice.model.detect(TEXT)]
    index = words.index("farmer")
    page.locator("#heat .token").nth(index).click()
    page.locator("#details .proposal").first.wait_for()
    enter(page.get_by_label("Replacement"), "sailor")
    page.get_by_role("button", name="Replace").click()
    page.locator("#heat .token.replaced").wait_for()
    assert "sailor" in page.locator("#heat .token.replaced").inner_text()
    again = choice.model.detect(TEXT.replace("farmer", "sailor"))
    assert shares(page, "#heat") == [f"{t.replaced:.0%}" for t in again]
    keep(page, "corrupt")
    first = page.locator("#details .proposal").first
    token = first.locator("b").inner_text()
    first.click()  # a proposal replaces the token as well
    page.locator("#heat .token.chosen", has_text=token.removeprefix("##")).wait_for()


def test_text_is_shown_as_text(page):
    enter(text_box(page), "<img src=x onerror=window.hacked=1> ${window.hacked=1} {{value}} .")
    page.get_by_role("button", name="Detect only").click()
    page.locator("#heat .token").first.wait_for()
    page.locator("#heat .token").first.click()
    page.locator("#details .quoted").wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#heat img").count() == 0


def test_errors_are_sentences(page):
    enter(text_box(page), "   ")
    page.get_by_role("button", name="Detect only").click()
    page.get_by_text("The text is empty: type a sentence.").wait_for()
    keep(page, "error")


def test_the_game_with_the_keyboard(page):
    open_tab(page, "Can you beat it?")
    page.get_by_role("button", name="Your own texts").click()
    enter(page.get_by_label("One sentence per line"), TEXT)
    page.get_by_role("button", name="New round").click()
    page.locator("#board .word").first.wait_for()
    count = int(re.search(r"(\d+) words? w", page.locator("#status").inner_text())[1])
    page.locator("#board .word").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator("#board .word").nth(1).and_(page.locator(".chosen")).wait_for()
    page.wait_for_function("document.activeElement.dataset.index === '1'")  # it stays there
    assert f"1 of {count} chosen" in page.locator("#status").inner_text()
    colour = "getComputedStyle(document.querySelector('#board .word.chosen b')).color"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"  # white on blue
    keep(page, "game")
    page.get_by_role("button", name="Show the answer").click()
    page.locator("#status .verdict").wait_for()
    assert page.locator("#board .was-replaced").count() == count
    assert page.locator("#board .was-replaced s").count() == count  # what stood there before
    assert f"of {count}" in page.locator("#status .score").inner_text()
    keep(page, "answer")


def test_compare_and_score(page, choice):
    open_tab(page, "Compare")
    enter(text_box(page), TEXT)
    page.get_by_role("button", name="Compare").click()
    page.locator("#compared .token").first.wait_for()
    headings = page.locator("#compared h3").all_inner_texts()
    assert headings == ["first", "first, step 10"]
    now = [f"{t.replaced:.0%}" for t in choice.model.detect(TEXT)]
    assert shares(page, "#compared")[: len(now)] == now
    keep(page, "compare")
    open_tab(page, "Score")
    enter(page.get_by_label("Sentences"), f"{TEXT}\nfield field the the .")
    page.get_by_role("button", name="Rank by plausibility").click()
    page.locator("#ranked li").first.wait_for()
    found = [float(s.rstrip("%")) for s in page.locator("#ranked small").all_inner_texts()]
    assert len(found) == 2
    assert found[0] >= found[1]
    keep(page, "score")


def test_classify(page):
    open_tab(page, "Classify")
    enter(text_box(page), "the old baker and the bread")
    page.get_by_role("button", name="Classify").click()
    page.locator("#classified .answer").wait_for()
    assert page.locator("#classified .answer").inner_text() in ("bread", "cargo")
    assert page.locator("#classified .proposal").count() == 2
    keep(page, "classify")


def test_runs_are_live(page, runs):
    open_tab(page, "Runs")
    chart = page.locator("#runs .chart-plot > svg").first
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    chart.hover()
    values = page.locator("#runs .chart-values").first
    assert values.is_visible()
    assert re.match(r"step \d+\ntraining: [\d.]+", values.inner_text())
    keep(page, "runs")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert values.inner_text().startswith("step ")
    line = {"mlm_loss": 1.5, "tokens": 9, "seconds": 1.0, "tokens_per_second": 9.0}
    MetricsLog(runs / "first").write("train", 4321, **line)
    page.locator("#runs .runs td", has_text="4,321").wait_for()


def test_runs_are_drawn_when_their_tab_opens(browser, runs, monkeypatch):
    monkeypatch.setattr("electra.play.page.REFRESH_SECONDS", 3600)
    server, address = serve([str(runs / "first")], device="cpu", wait=False)
    page = browser.new_page()
    page.goto(address)
    open_tab(page, "Runs")
    page.locator("#runs .chart-plot > svg").first.wait_for()
    page.close()
    server.close()


def test_a_narrow_screen(page):
    page.set_viewport_size({"width": 390, "height": 800})
    enter(text_box(page), TEXT)
    page.get_by_role("button", name="Corrupt and detect").click()
    page.locator("#heat .token").first.wait_for()
    page.locator("#heat .token").nth(2).click()
    page.locator("#details .proposal").first.wait_for()
    keep(page, "narrow")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390  # nothing sticks out
    for token in page.locator("#heat .token").all():
        assert token.bounding_box()["height"] >= 24  # large enough for a finger
    page.locator(".overflow-menu > button").click()  # the tabs that do not fit are in a menu
    page.locator(".overflow-dropdown").get_by_text("Runs").click()
    page.locator("#runs .chart-plot > svg").first.wait_for()
    keep(page, "narrow-runs")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_scores_on_a_narrow_screen(page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator(".overflow-menu > button").click()
    page.locator(".overflow-dropdown").get_by_text("Score").click()
    lines = ["farmer " * count + "." for count in range(2, 7)]
    enter(page.get_by_label("Sentences"), "\n".join(lines))
    page.get_by_role("button", name="Rank by plausibility").click()
    page.locator("#ranked li").first.wait_for()
    keep(page, "narrow-score")
    for row in page.locator("#ranked li").all():  # in the first line of its sentence, not below
        score = row.locator("small").bounding_box()
        assert score["y"] + score["height"] / 2 < row.bounding_box()["y"] + 24


def test_dark_colours(page, address):
    page.goto(f"{address}?__theme=dark")
    page.get_by_role("button", name="Corrupt and detect").click()
    page.locator("#heat .token").first.wait_for()
    colour = "getComputedStyle(document.querySelector('#heat .token b')).color"
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate(colour))[:3])
    assert min(red, green, blue) > 180  # light on dark
    keep(page, "dark")


def test_a_report_on_a_phone(browser, runs, finished, tmp_path):
    """The page of `electra report`, opened as a file: curves answer to a finger."""
    (file,) = write_report([runs / "first", finished], tmp_path)
    page = browser.new_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    chart = page.locator(".chart-plot > svg").first
    chart.click()
    values = page.locator(".chart-values").first
    assert values.is_visible()
    box = values.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert re.match(r"step \d+\nfirst · training: [\d.]+", values.inner_text())
    keep(page, "report")
    page.close()
    assert requests == [file.as_uri()]
