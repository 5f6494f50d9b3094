"""Takes secrets out of what an agent says: exact values and their usual encodings, also when they come in pieces."""

import base64
import html
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from rota.model.text import obeyed_by_terminals, seen

MASK = "[redacted]"
SHORTEST = 8  # anything shorter stands in ordinary words too
SHORTEST_LINE = 16
MOST_SHOWN = 3  # of a secret's beginning, when an agent stops in the middle of it
LINES_OF_BASE64 = (76, 64)  # characters: of mail and the command of that name, of keys and certificates
_SEED = 8
_ESCAPE = re.compile("%[0-9A-F]{2}")


class _Pattern:
    """A text to be masked. Half of it is enough: who cuts an agent's words must not save a secret's beginning."""

    __slots__ = ("head", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.head = text[: max(SHORTEST, (len(text) + 1) // 2)]

    def spans(self, text: str, before: int) -> Iterator[tuple[int, int]]:
        """Where it stands, as far as it goes."""
        head = self.head
        at = text.find(head)
        while 0 <= at < before:
            yield at, at + self._shared(text, at, len(head))
            at = text.find(head, at + 1)

    def _shared(self, text: str, at: int, least: int) -> int:
        most = len(self.text)
        if text.startswith(self.text, at):
            return most
        while most - least > 1:
            middle = (least + most) // 2
            if text.startswith(self.text[:middle], at):
                least = middle
            else:
                most = middle
        return least

    def begun(self, text: str) -> int:
        """Where the end of the text may be the beginning of this one; the text's length if nowhere."""
        if text[-1:] not in self.text:  # the usual case, and a cheap one
            return len(text)
        at = max(0, len(text) - len(self.text) + 1)
        while (at := text.find(self.text[:_SEED], at)) >= 0:
            if self.text.startswith(text[at:]):
                return at
            at += 1
        for size in range(_SEED - 1, 0, -1):
            if text.endswith(self.text[:size]):
                return len(text) - size
        return len(text)


class Redactor:
    """Knows the secrets of one attempt. False if there are none, and then nothing has to pass through it."""

    def __init__(self, secrets: Iterable[str] = (), *, exactly: Iterable[str] = ()) -> None:
        """`exactly` are looked for as they are only, which is cheaper."""
        forms = dict.fromkeys([form for secret in secrets for form in _forms(secret.strip())])
        self._patterns = [_Pattern(form) for form in (*forms, *exactly)]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def text(self, text: str) -> str:
        """A text that comes in one piece."""
        return self.masked(text, len(text))[0] if self._patterns else text

    def value(self, value: Any) -> Any:
        """Every text in a JSON value, names of fields too."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(name)): self.value(each) for name, each in value.items()}
            case list() | tuple():
                return [self.value(each) for each in value]
            case bool() | None:
                return value
            case _:
                return value if self.text(str(value)) == str(value) else MASK

    def begun(self, text: str) -> int:
        """From where on the text may be the beginning of a secret that the next piece completes."""
        first = min((each.begun(text) for each in self._patterns), default=len(text))
        if obeyed_by_terminals(text):
            shown, where = seen(text)
            at = min((each.begun(shown) for each in self._patterns), default=len(shown))
            first = min([first, *where[at : at + 1]])
        return first

    def form_of(self, beginning: str) -> int | None:
        """Which form begins so; None for what begins none."""
        found = (at for at, each in enumerate(self._patterns) if beginning and each.text.startswith(beginning))
        return next(found, None)

    def begins(self, form: int, size: int) -> str:
        """So much of the beginning of a form; nothing of one that is no longer there."""
        return self._patterns[form].text[:size] if form < len(self._patterns) else ""

    def masked(self, text: str, before: int, shown: int = 0, covered: int = 0) -> tuple[str, int]:
        """The text up to `before` without what begins there and is secret, and how far the last secret reaches.

        The first `shown` characters were given out already, the first `covered` ones as a mask."""
        spans = [span for each in self._patterns for span in each.spans(text, before)]
        if obeyed_by_terminals(text):
            spans += self._spans_seen(text, before)
        if not spans:
            return text[shown:before], covered
        pieces = []
        for start, end in sorted(spans):
            if start >= covered:
                pieces += [text[shown:start], MASK]
            shown, covered = max(shown, end), max(covered, end)
        pieces.append(text[shown:before])
        return "".join(pieces), covered

    def _spans_seen(self, text: str, before: int) -> Iterator[tuple[int, int]]:
        """Where a secret stands with colours in it: pages leave them out."""
        shown, where = seen(text)
        for each in self._patterns:
            for start, end in each.spans(shown, bisect_left(where, before)):
                yield where[start], where[end - 1] + 1


NOTHING_SECRET = Redactor()


class Held(NamedTuple):
    """What a stream holds back, without a letter of it: so much of the beginning of a form of a secret, of which the
    first `shown` characters were given out, the first `covered` ones as a mask."""

    form: int
    size: int
    shown: int
    covered: int


class Stream:
    """One text that comes in pieces. Holds back only what may be the beginning of a secret."""

    def __init__(self, redactor: Redactor, held: Held | None = None) -> None:
        """`held`: where another stream of the same secrets has stopped."""
        self._redactor = redactor
        self._held = redactor.begins(held.form, held.size) if held else ""
        self._shown, self._covered = (held.shown, held.covered) if held and self._held else (0, 0)

    @property
    def held(self) -> Held | None:
        """From which another stream goes on; None if nothing is held."""
        held, places = self._held, (len(self._held), self._shown, self._covered)
        if obeyed_by_terminals(held):
            held, where = seen(held)
            places = (len(held), bisect_left(where, self._shown), bisect_left(where, self._covered))
        form = self._redactor.form_of(held)
        return None if form is None else Held(form, *places)

    def feed(self, piece: str) -> str:
        text = self._held + piece
        return self._told(text, self._redactor.begun(text))

    def pause(self) -> str:
        """Nothing may come for long: show a letter or two that were held back. A secret that goes on is masked."""
        if len(self._held) > MOST_SHOWN:
            return ""
        shown, self._shown = self._held[self._shown :], len(self._held)
        return shown

    def end(self) -> str:
        """What was held back and turned out to be nothing."""
        return self._told(self._held, len(self._held)) if self._held else ""

    def _told(self, text: str, before: int) -> str:
        told, covered = self._redactor.masked(text, before, self._shown, self._covered)
        self._held, self._covered = text[before:], max(0, covered - before)
        self._shown = max(0, self._shown - before, self._covered)
        return told


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, its long lines, and as JSON, URLs, HTML and base64 write it."""
    if len(secret) < SHORTEST:
        return
    yield secret
    yield from _long(secret.splitlines())
    for ascii_only in (True, False):
        dumped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield from (dumped, dumped.replace("/", "\\/"), dumped.translate(_NOT_IN_A_SCRIPT))
    for quoted in _in_urls(secret):
        yield quoted
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), quoted)
    escaped = html.escape(secret)
    yield from (escaped, escaped.replace("&#x27;", "&#39;"), html.escape(secret, quote=False))
    yield from _in_base64(secret.encode(errors="surrogatepass"))


def _in_urls(secret: str) -> Iterator[str]:
    """Languages do not agree on what needs no escape there: besides Python's own way, a browser's two and Java's."""
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (quote(secret, safe="!'()*"), quote(secret, safe="!'()*#$&+,/:;=?@"))
    yield quote_plus(secret, safe="*").replace("~", "%7E")


def _long(lines: Iterable[str]) -> Iterator[str]:
    yield from (line for each in lines if len(line := each.strip()) >= SHORTEST_LINE)


def _in_base64(secret: bytes) -> Iterator[str]:
    """Wherever it stands in what was encoded: without the characters that its neighbours have a share in."""
    for offset in range(3):
        whole = base64.b64encode(bytes(offset) + secret).decode()
        core = whole[-(-offset * 8 // 6) : (offset + len(secret)) * 8 // 6]
        yield core
        yield core.translate(_URL_SAFE)
        if offset == 0:  # many break what they write into lines, of which none need hold half of it
            yield from _long(core[at : at + size] for size in LINES_OF_BASE64 for at in range(0, len(core), size))


_URL_SAFE = str.maketrans("+/", "-_")
_NOT_IN_A_SCRIPT = str.maketrans({each: f"\\u{ord(each):04x}" for each in "&<>"})
