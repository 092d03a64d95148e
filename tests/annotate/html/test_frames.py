"""Raw pages in the report: they connect to no host, and lead nowhere."""

from __future__ import annotations

import html
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from bsmeta.annotate.html.frames import make_inert_html
from bsmeta.annotate.html.page import PageError
from tests.annotate.helpers import WORDS, annotate, write_pages
from tests.report import browser
from tests.report.browser import Browser
from tests.waiting import wait_until

HEAD = (
    '<link rel="preconnect" href="HOST">', '<link rel="dns-prefetch" href="HOST">',
    '<LINK REL=preload AS=image HREF="HOST/a">', '<link rel="prefetch" href="HOST/b">',
    '<link rel="prerender" href="HOST/c">', '<link rel="modulepreload" href="HOST/d">',
    '<link rel="stylesheet" href="HOST/e">', '<link rel="manifest" href="HOST/f">',
    '<link rel="icon" href="HOST/g">', '<base href="HOST/">',
    '<meta http-equiv="refresh" content="0; url=HOST/h">',
    '<meta http-equiv="Link" content="<HOST>; rel=preconnect">',
    '<style>@import "HOST/i"; body { background: url(HOST/j) }</style>',
    "<style>@font-face { font-family: x; src: URL('HOST/k') } p { font-family: x }</style>",
    '<script src="HOST/l"></script>',
    '<script type="speculationrules">{"prefetch": [{"urls": ["HOST/m"]}]}</script>',
)  # fmt: skip
BODY = (
    '<img src="HOST/n" srcset="HOST/o 2x">', '<img attributionsrc="HOST/p">',
    "<p style=\"background: url(HOST/q); list-style: image-set('HOST/r' 1x)\">x</p>",
    '<table background="HOST/s"><tr><td>x</table>', '<video src="HOST/t" poster="HOST/u"></video>',
    '<audio><source src="HOST/v"></audio>', '<iframe src="HOST/w"></iframe>',
    '<iframe srcdoc="<link rel=preconnect href=HOST>"></iframe>', '<object data="HOST/x"></object>',
    '<embed src="HOST/y">', '<input type="image" src="HOST/z">',
    '<svg><image href="HOST/1"/><use href="HOST/2#a"/><style>@import "HOST/3";</style></svg>',
    '<svg><a xlink:href="HOST/4"><set attributeName="href" to="HOST/5"/></a></svg>',
    '<math href="HOST/6"><mtext><link rel="preconnect" href="HOST"></mtext></math>',
    '<form action="HOST/7"><button formaction="HOST/8">x</button></form>',
    '<noscript><link rel="preconnect" href="HOST"></noscript>',
    '<template><link rel="preconnect" href="HOST"></template>',
    '<area href="HOST/9">', '<blockquote cite="HOST/10">x</blockquote>',
    # Elements that appear when what a parser has written is parsed again.
    '<form><math><mtext></form><form><mglyph><style></math><link rel="preconnect" href="HOST">',
)  # fmt: skip
LINK = '<a href="HOST/11" ping="HOST/12" style="position: fixed; inset: 0">x</a>'
FORBIDDEN = (
    "link, base, meta, iframe, object, embed, svg, math, template, [href], [src], [srcset], "
    "[action], [formaction], [ping], [poster], [background], [cite], [srcdoc], [attributionsrc]"
)
PIECES = st.lists(
    st.one_of(
        st.sampled_from((*HEAD, *BODY, LINK)),
        st.sampled_from(
            ("<table>", "<p>", "<b>", "</form>", "<form>", "<svg>", "</svg>", "<math>", "<mtext>",
             "<style>", "</style>", "<!--", "-->", "<select>", "<plaintext>", "<title>", "</title>",
             "<a href=x>", "<td>", "<noembed>", "<textarea>", "<foreignObject>", "text")
        ),
    ),
    max_size=12,
)  # fmt: skip


@given(PIECES)
def test_no_page_keeps_connections_or_links_to_elsewhere(pieces: list[str]) -> None:
    tree = LexborHTMLParser(make_inert_html("".join(pieces)))
    assert tree.css(FORBIDDEN) == []
    assert not [script for script in tree.css("script") if script.attributes]


def test_the_appearance_of_a_page_is_kept() -> None:
    page = (
        '<!DOCTYPE html><html lang="en"><head><title>A &amp; B</title>'
        "<style>p { color: red; background: url(data:image/png;base64,AA) }</style></head>"
        '<body class="a" bgcolor="#fff"><p id="b" style="color: blue">1 &lt; 2 <b>bold</b></p>'
        '<table border="1"><tbody><tr><td colspan="2">x</td></tr></tbody></table>'
        '<img src="data:image/gif;base64,R0" alt="dot" width="9"></body></html>'
    )
    assert make_inert_html(page) == page


def test_addresses_in_styles_are_removed() -> None:
    page = "<html><head>{}</head><body>{}</body></html>"
    style = "<style>{}</style>"
    text = '<p style="{}">x</p>'
    assert make_inert_html(
        page.format(style.format("@IMPORT 'http://h'; a { src: URL( http://h/a) }"),
                    text.format("background: url (\t'http://h' ), image-set('http://h' 1x)"))
    ) == page.format(
        style.format("none( 'http://h'; a { src: none( http://h/a) }"),
        text.format("background: none(\t'http://h' ), none('http://h' 1x)"),
    )  # fmt: skip


@pytest.mark.parametrize("page", ["<i>" * 30_000, f"<b {'a ' * 60_000}>"])
def test_a_page_that_takes_too_long_is_refused(page: str) -> None:
    with pytest.raises(PageError, match="too_"):
        make_inert_html(page)


def write_report(folder: Path, pages: list[str]) -> Path:
    """The report on raw pages, with a frame for each."""
    rows = [
        {"url": f"https://www.example.org/{number}", "html": f"<p>{WORDS}</p>{page}"}
        for number, page in enumerate(pages)
    ]
    source = write_pages(folder / "raw.jsonl.gz", rows)
    annotate(str(source), folder / "out", report=True, report_pages=len(pages))
    return folder / "out" / "report.html"


def test_the_frame_keeps_its_sandbox_and_its_policy(tmp_path: Path) -> None:
    report = LexborHTMLParser(write_report(tmp_path, ["".join((*HEAD, *BODY, LINK))]).read_text())
    (frame,) = report.css("iframe")
    assert "sandbox" in frame.attributes
    assert not frame.attributes["sandbox"]
    policy, _, rest = (frame.attributes["srcdoc"] or "").partition(">")
    assert policy == (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\""
    )
    page = LexborHTMLParser(rest)
    assert page.css(FORBIDDEN) == []
    assert WORDS.strip() in page.text()


def test_the_report_shows_why_a_page_is_missing(tmp_path: Path) -> None:
    """With its omitted end tags, this page has more tags than are parsed without a check."""
    report = LexborHTMLParser(write_report(tmp_path, ["<b>" * 12_000]).read_text())
    (frame,) = report.css("iframe")
    assert (frame.attributes["srcdoc"] or "").endswith(
        ">The raw page cannot be shown: too_deep: more than 5000 elements within each other."
    )


# --- in a browser -------------------------------------------------------------------------------


class Connections(socketserver.ThreadingTCPServer):
    """A server that records the first bytes of each connection and answers nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), None)  # type: ignore[arg-type]
        self.daemon_threads = True
        self.lines: list[bytes] = []

    def finish_request(self, request: object, client_address: object) -> None:
        self.lines.append(b"")  # connected, perhaps without a request
        request.settimeout(60)  # type: ignore[attr-defined]
        self.lines[-1] = request.recv(200)  # type: ignore[attr-defined]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def start_server() -> Iterator[Connections]:
    with Connections() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def browser_tab(tmp_path: Path) -> Iterator[Browser]:
    reason = browser.missing()
    if reason is not None:
        pytest.skip(reason)
    opened_browser = Browser(tmp_path / "profile")
    yield opened_browser
    opened_browser.close()


LOAD = """
return Promise.all([...document.querySelectorAll('iframe')].map(frame => new Promise(loaded => {
  frame.loading = 'eager'; frame.onload = loaded; frame.srcdoc = frame.srcdoc;
})));
"""
PLACES = """
return [...document.querySelectorAll('iframe')].map(frame => {
  frame.scrollIntoView(); const box = frame.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
});
"""


def list_connections(page: Path, server: Connections, browser_tab: Browser) -> int:
    """Loads a page and all its frames, and clicks into each; then waits for a known request.

    Connections begun earlier have arrived by then.
    """
    server.lines.clear()
    browser_tab.open(page, width=1000)
    browser_tab.run(LOAD)
    for left, top in browser_tab.run(PLACES):
        browser_tab.click(left, top)
    last = f"<img src='{server.address}/last'>"
    browser_tab.run(f"document.body.insertAdjacentHTML('beforeend', {last!r})")
    wait_until(lambda: any(line.startswith(b"GET /last") for line in [*server.lines]))
    return len(server.lines) - 1


@pytest.mark.slow
def test_a_browser_connects_to_no_host_of_the_pages(browser_tab: Browser, tmp_path: Path) -> None:
    with start_server() as server:
        pages = [
            part.replace("HOST", server.address) for part in ("".join(HEAD), "".join(BODY), LINK)
        ]
        report = write_report(tmp_path, pages)
        source = report.read_text()
        assert list_connections(report, server, browser_tab) == 0
        # The same pages as they are, in frames with the same sandbox and policy.
        policy = source.partition('srcdoc="')[2].partition("&lt;html")[0]
        raw = tmp_path / "raw.html"
        raw.write_text(
            "".join(
                f'<iframe sandbox srcdoc="{policy}{html.escape(page)}"></iframe>' for page in pages
            )
        )
        assert list_connections(raw, server, browser_tab) > 0
