"""What becomes of each element of a page: the rules of a profile, by the element's name."""

from __future__ import annotations

from typing import Literal

from selectolax.lexbor import LexborNode

Profile = Literal["published", "all"]


def names(words: str) -> frozenset[str]:
    """A set of element names, from a string of them."""
    return frozenset(words.split())


_NOT_TEXT = names("script style template iframe noembed noframes")
_REMOVED = names("header footer form")
_REMOVED_IF_SHORT = names("body div p section table ul ol dl")
LONGEST_REMOVED = 64
_FOLDED = names("div")
_BLOCKS = names(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
_SPACED = names(
    """address cite details datalist iframe img input label legend optgroup q select summary tbody
    td time"""
)

NOTHING, SPACE, LINE = range(3)  # separators; each number above LINE adds an empty line

KEEP, HOLLOW, BREAK, SKIP = range(4)

Rule = tuple[int, str, int, int, bool, bool]
"""How nodes of one name (not text) are handled.

The fields: the action (`KEEP`, `HOLLOW` to keep the tag without its content, `BREAK`, `SKIP` with
everything in it); the name; the separator that sets the element off, or what is removed; the number
of characters below which it is removed, counted before anything in it is; whether white space in it
is kept; whether it is folded with an element of its name that is the only one in it.
"""

_KNOWN_IDS = 1000  # lexbor's numbers of the names that it knows; other numbers differ by page


class Rules(dict[int, Rule]):
    """The rules for the names that lexbor numbers.

    Args:
        profile: `published` removes what the annotators of the published data remove; `all` keeps
            every tag.
    """

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._removes = profile == "published"

    def rule(self, node: LexborNode) -> Rule:
        """The rule for a node that has none yet."""
        name = (node.tag or "-").lower()
        separator = LINE if name in _BLOCKS else SPACE if name in _SPACED else NOTHING
        action, least = KEEP, 0
        if name == "br":
            action = BREAK
        elif name.startswith("-"):  # a comment, or another node that is not an element
            action = SKIP
        elif name in _NOT_TEXT:
            action = SKIP if self._removes else HOLLOW
        elif self._removes and name in _REMOVED:
            action = SKIP
        elif self._removes and name in _REMOVED_IF_SHORT:
            least = LONGEST_REMOVED + 1
        if action == SKIP and not name.startswith("-"):
            separator = SPACE
        folds = self._removes and name in _FOLDED
        rule = action, name, separator, least, name == "pre", folds
        if node.tag_id < _KNOWN_IDS:
            self[node.tag_id] = rule
        return rule
