"""Names that act in one of the places where reports show them."""

from __future__ import annotations

FIGURES = (
    "$\\frac{$ x", "$50% - $60%", "C$_$", "$10 to $20", "\\$5", "\\alpha^{", "_hidden", "__", "",
    "\x00\x01\x1b]52;c;QUFB\x07\x7f\x85\x9b", "\ud800 \udfff\udc80", "\u202eleft\u202c \u200fright",
    "x" * 10_000, "$" * 10_000, "a\nb\r\nc\td\u2028e\u2029f\x0bg", "\n" * 500,
    "\U00012345\U0010fffd\ue000 你好 🚀 \ufffe", "مرحبا שלום", "#0072b2",
    "--> ]]> <!-- &amp; &#x1b;",
    '"><script>alert(1)</script>', "url(#a) id=\"b\" href=\"#c\" font: 12px 'sans'",
)  # fmt: skip
"""Formulas, characters that no font has, lengths, SVG."""

MARKUP = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!-- ", "-->", "<b", "&lt;i&gt;",
    "[x](javascript:alert(1))", "![x](https://evil.example/x.png)", "<javascript:alert(1)>",
    "[x]: javascript:alert(1)", "[x][y]", "[^1]", "[ ] task", "https://evil.example/?a=b",
    "www.evil.example", "me@evil.example", "a | b || c", "\\", "\\|", "`", "``` ", "~~~", "**",
    "__x__",
    "*x*", "_x_", "~~x~~", "$x$", "# heading", "## ##", "- item", "+ item", "1. item", "2) item",
    "---", "===", "> quote", "    code", "\t code", "| a | b |\n|---|---|\n| c | d |",
    "x\n\n# heading\n\n<script>alert(2)</script>", "x\r# heading", "x\u2028# heading", "x  \ny",
    "{: onclick=alert(1)}", "\x1b[5;35m\x07\u202e", "\udc80", "]", "[", "!", ":smile:", "%PDF",
    "x\\\n- y",
)  # fmt: skip
"""What GitHub's Markdown or HTML reads as markup."""
