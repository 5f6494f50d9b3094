"""Agents' finished words as markup: Markdown without HTML, and of what that yields only the tags named here. What a
program printed is no Markdown, and is shown as it was said."""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LONGEST = 40_000  # longer ones are shown as they were said
MOST_MARKS = 8_000  # likewise: each takes the parser up to 30 µs, in which nobody else is answered
SCHEMES = {"http", "https", "mailto"}
TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong", "s",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
SPOKEN = {"code", "del", "em", "s", "strong"}
MARKS = frozenset("`*_~[!\\")
ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}, "pre": {"tabindex"}}
_LINE_END = re.compile(r"\r\n?|\n")  # as the parser counts lines
_LAID_OUT = re.compile(r" {2}|\t|.*\S {3,}\S")  # by blanks, which Markdown takes away
_TRACEBACK = re.compile(r" *Traceback \(most recent call last\):")
_SPECIAL_NAME = re.compile(r"(?<!\w)__[a-z][a-z0-9_]*__(?!\w)")
# Headings of a page belong to the page: those of an agent stand below them, and none skips a level.
HIGHEST, LOWEST = 3, 6


@lru_cache(maxsize=256)
def markdown(text: str) -> Markup:
    """Safe markup. All who watch a session get the same."""
    if _is_costly(text):
        return _as_said(text)
    import nh3  # noqa: PLC0415 - who serves no page never pays for it

    parser, links = _parser(), dict[str, Any]()
    tokens = parser.parse(text, links)
    if _is_printed(text, tokens):
        return _as_said(text)
    _lower_headings(tokens)
    clean = nh3.clean(
        parser.renderer.render(tokens, parser.options, links),
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes=SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # nosec B704 # noqa: S704 — cleaned by the line above


def _is_costly(text: str) -> bool:
    return len(text) > LONGEST or sum(map(text.count, MARKS)) > MOST_MARKS


def _as_said(text: str) -> Markup:
    return Markup('<div class="as-said">{}</div>').format(text)


def _is_printed(text: str, tokens: "Sequence[Token]") -> bool:
    """Whether a paragraph, outside of lists and fences, is a traceback or has lines whose blanks would be lost."""
    lines = _LINE_END.split(text)
    spans = [token.map for token in tokens if token.type == "paragraph_open" and not token.level and token.map]
    return any(_is_laid_out(lines[start:end]) for start, end in spans)


def _is_laid_out(lines: Sequence[str]) -> bool:
    return any(map(_TRACEBACK.match, lines)) or sum(bool(_LAID_OUT.match(line)) for line in lines) > 1


@lru_cache(maxsize=4096)
def inline(text: str) -> Markup:
    """A sentence of an agent where a link or a block has no place: in a question, or in a line of a list."""
    if MARKS.isdisjoint(text) or _is_costly(text):
        return escape(text)
    import nh3  # noqa: PLC0415

    return Markup(nh3.clean(_parser().renderInline(text), tags=SPOKEN, attributes={}))  # nosec B704 # noqa: S704 — cleaned


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    # What looks like an entity was written so by the agent, and stays.
    parser.disable(["entity", "html_block", "html_inline"])
    parser.inline.ruler.before("emphasis", "special_name", _special_name)
    parser.add_render_rule("image", _image)
    for name in ("fence", "code_block"):
        parser.add_render_rule(name, _code)
    return parser


def _special_name(state: Any, silent: bool) -> bool:
    """`__init__` is a name, not an emphasis."""
    found = _SPECIAL_NAME.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.pending += found.group()
    state.pos = found.end()
    return True


def _image(_: Any, tokens: Any, at: int, *__: Any) -> str:
    """A picture is a link to it: to show it would tell its server who reads, and when."""
    source = tokens[at].attrs.get("src", "")
    return Markup('<a href="{}">{}</a>').format(source, tokens[at].content or source)


def _lower_headings(tokens: "Sequence[Token]") -> None:
    """The highest heading of a text becomes an `h3`; each next one is at most one level below the one before."""
    levels = [int(token.tag[1]) for token in tokens if token.type == "heading_open"]
    above = HIGHEST - min(levels, default=0)
    level = HIGHEST - 1
    for token in tokens:
        if token.type == "heading_open":
            level = min(int(token.tag[1]) + above, level + 1, LOWEST)
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{level}"


def _code(_: Any, tokens: Any, at: int, *__: Any) -> str:
    """Wide code scrolls, also by keyboard."""
    return f'<pre tabindex="0"><code>{escape(tokens[at].content)}</code></pre>\n'
