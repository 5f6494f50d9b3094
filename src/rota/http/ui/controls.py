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
