"""The dashboard's files: nothing from elsewhere, nothing inline, text that can be read in both looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from walrq.http import pages

WEB = Path(pages.__file__).resolve().parent.parent / "web"
PAGES = sorted(WEB.glob("*.html"))
SCRIPTS = [WEB / f"{name}.js" for name in ("api", "dashboard", "dom", "format", "node", "queue")]
# What WCAG 2 asks of text (AA), and of the lines that make a control a control.
TEXT_MIN = 4.5
EDGE_MIN = 3.0


def colours() -> dict[str, tuple[str, str]]:
    """The style sheet's colours by name, (light, dark)."""
    found = re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\);", (WEB / "dashboard.css").read_text())
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = []
    for at in (1, 3, 5):
        value = int(colour[at : at + 2], 16) / 255
        parts.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    """The ratio of two colours, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(look: int) -> None:
    """Every colour of text on every ground it stands on."""
    colour = {name: pair[look] for name, pair in colours().items()}
    pairs = [
        (text, ground)
        for text in ("text", "muted", "accent", "danger", "warn", "good")
        for ground in ("bg", "surface", "raised")
    ]
    pairs += [("on-accent", "accent"), ("on-danger", "danger")]
    weak = {pair: contrast(colour[pair[0]], colour[pair[1]]) for pair in pairs}
    edges = {ground: contrast(colour["edge"], colour[ground]) for ground in ("bg", "surface")}

    assert {} == {pair: ratio for pair, ratio in weak.items() if ratio < TEXT_MIN}
    assert {} == {ground: ratio for ground, ratio in edges.items() if ratio < EDGE_MIN}
    assert 21 == round(contrast("#000000", "#ffffff"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_loads_its_own_files_only(page: Path) -> None:
    """No address of others, no inline script or style: the policy has no exception."""
    text = page.read_text()
    names = re.findall(r'(?:src|href)="([^"]+)"', text)

    assert [] == [name for name in names if not name.startswith(("/", "#"))]
    assert [] == [
        name for name in names if name.startswith("/web/") and not (WEB / name.removeprefix("/web/")).exists()
    ]
    assert None is re.search(r"<style|<script(?![^>]*src=)|\son\w+=|\sstyle=|https?://", text)


def test_scripts_make_text_and_never_markup() -> None:
    """What queues are called and messages hold is anybody's: there is no way from it to HTML or code."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
        r"|\beval\(|new Function|javascript:|import\(|https?://(?!www\.w3\.org/2000/svg)"
    )
    found = [(path.name, forbidden.findall(path.read_text())) for path in SCRIPTS]

    assert [] == [(name, words) for name, words in found if words]


def test_the_ancestors_words_are_on_the_page() -> None:
    """What its own tests looked for."""
    text = (WEB / "dashboard.html").read_text()

    assert "Distributed Task Queue Dashboard" in text
    assert "Queue Administration" in text


def test_pages_come_with_their_policy() -> None:
    """Both addresses, every file, and a tag that spares a browser from loading them again."""
    found = pages.load()
    page = found["/"].response(None)
    again = found["/dashboard"].response(page.headers["etag"])

    assert {"/", "/dashboard", "/docs", "/favicon.ico", "/web/dashboard.js", "/web/dashboard.css"} <= found.keys()
    assert ("text/html; charset=utf-8", 200, 304, b"") == (page.media, page.status, again.status, again.body)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
