"""What stands on pages by the hundred: an icon, how something stands, a button that changes something.

They are made here and not by macros since a list of fifty rows has over three hundred of them.
"""

from functools import lru_cache

from markupsafe import Markup, escape

from rota.http.ui.words import STATUS


@lru_cache(maxsize=256)
def icon(name: str) -> Markup:
    return Markup('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>').format(name)


@lru_cache(maxsize=256)
def pill(status: str, words: str = "") -> Markup:
    """How something stands: a word and a colour, never a colour alone."""
    return Markup('<span class="pill {}">{}</span>').format(status, words or STATUS[status])


MANY_LINES, MANY_LETTERS = 12, 1_000  # of what somebody wrote, from where on it is folded


def fold(text: str) -> Markup:
    """The switch that unfolds a long text, which stands right behind it and is cut by the style until then; nothing
    where it is short. All of the text is in the page, so that it is found and read aloud."""
    lines = text.count("\n") + 1
    if lines <= MANY_LINES and len(text) <= MANY_LETTERS:
        return Markup()
    return Markup(
        '<details class="fold"><summary><span class="folded">Show all{}</span><span class="unfolded">Show less</span>'
        "</summary></details>"
    ).format(f" {lines:,} lines" if lines > MANY_LINES else "")


def act(
    guard: Markup,
    action: str,
    label: str,
    to: str,
    of: str = "",
    kind: str = "",
    symbol: str = "",
    key: str = "",
    *,
    bald: bool = False,
) -> Markup:
    """A change as a plain form, with the `guard` that each carries; htmx sends it in place and shows the answer as a
    notice. A `bald` button shows its symbol alone, and its label to who hears the page or points at it.
    """
    where, name = escape(action), escape(f"{label}: {of}" if of else label)
    told = f' aria-label="{name}"' if of or bald else ""
    told += f' title="{escape(label)}"' if bald else ""
    told += f' data-key="{key}"' if key else ""
    shown = (icon(symbol) if symbol else "") + ("" if bald else escape(label))
    return Markup(  # nosec B704 # noqa: S704 — whatever comes from outside is escaped above
        f'<form class="act" method="post" action="{where}" hx-post="{where}" hx-target="#notice" '
        f'hx-disable="find button">{guard}<input type="hidden" name="next" value="{escape(to)}">'
        f'<button class="button {kind}"{told}>{shown}</button></form>'
    )
