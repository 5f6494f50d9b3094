"""Takes secrets out of what an agent says: exact values and their usual encodings, also when they come in pieces."""

import base64
import html
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from rota.model.text import has_unseen, seen, without_unseen

MASK = "[redacted]"
SHORTEST = 8  # anything shorter stands in ordinary words too
SHORTEST_LINE = 16
MOST_SHOWN = 3  # of a secret's beginning, when an agent stops in the middle of it
LINES_OF_BASE64 = (76, 64)  # characters: of mail and the command of that name, of keys and certificates
LONGEST_REENCODED = 4096  # characters: an escape takes six characters for each, and all of them may be held back
MOST_UNSEEN = 4096  # characters without width, and of colours, that are held back
_SEED = 8
_LONG = 2048
_ESCAPE = re.compile("%[0-9A-F]{2}")
_MARKS = ("%", "\\", "&")


class _Pattern:
    """A text to be masked. Half of it is enough: who cuts an agent's words must not save a secret's beginning.

    `least` is how many characters of it stand for `SHORTEST` characters of the secret. Fewer are not masked."""

    __slots__ = ("head", "text")

    def __init__(self, text: str, least: int = SHORTEST) -> None:
        self.text = text
        self.head = text[: max(least, (len(text) + 1) // 2)]

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
        """Where the last `_SEED` characters or more may be the beginning of this one; the text's length if nowhere."""
        at = max(0, len(text) - len(self.text) + 1)
        while (at := text.find(self.text[:_SEED], at)) >= 0:
            if self.text.startswith(text[at:]):
                return at
            at += 1
        return len(text)


class _Patterns(list[_Pattern]):
    """Patterns with indexes over them, so that many cost little for a text that has none of them."""

    def __init__(self, patterns: Iterable[_Pattern]) -> None:
        super().__init__(patterns)
        self._begins = {each.text[:size] for each in self for size in range(1, _SEED)}
        self._pairs = {begin[-2:] for begin in self._begins}
        self._short = [each for each in self if len(each.text) <= _LONG]
        self._long = [each for each in self if len(each.text) > _LONG]
        self._inner = "\0".join(each.text for each in self._short)
        # Escapes all have a character that most texts lack.
        self._by_mark = dict[str, list[tuple[str, _Pattern]]]()
        for each in self:
            mark = next((mark for mark in _MARKS if mark in each.head), "")
            self._by_mark.setdefault(mark, []).append((each.head, each))

    def spans(self, text: str, before: int) -> list[tuple[int, int]]:
        """Where any of them stands, as far as it goes."""
        there = [
            each for mark, patterns in self._by_mark.items() if mark in text for head, each in patterns if head in text
        ]
        return [span for each in there for span in each.spans(text, before)]

    def begun(self, text: str) -> int:
        """Where the end of the text may be the beginning of any of them; the text's length if nowhere."""
        first = len(text)
        if len(text) >= _SEED:
            may_go_on = self._short if text[-_SEED:] in self._inner else ()
            first = min((each.begun(text) for each in (*may_go_on, *self._long)), default=first)
        if first == len(text):
            sizes = range(min(len(text), _SEED - 1), 0, -1) if text[-2:] in self._pairs else (1,)
            first -= next((size for size in sizes if text[-size:] in self._begins), 0)
        return first


class Redactor:
    """Knows the secrets of one attempt. False if there are none, and then nothing has to pass through it."""

    def __init__(self, secrets: Iterable[str] = (), *, exactly: Iterable[str] = ()) -> None:
        """`exactly` are looked for as they are only, which is cheaper."""
        values = [secret.strip() for secret in secrets]
        forms = dict.fromkeys(form for value in values for form in _forms(value))
        # Behind the others: `Held` counts forms, and a process with another version of Rota may have counted them.
        more = {text: least for value in values for text, least in _more_forms(value) if text not in forms}
        self._patterns = _Patterns(
            [*map(_Pattern, (*forms, *exactly)), *(_Pattern(text, least) for text, least in more.items())]
        )

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
        first = self._patterns.begun(text)
        if has_unseen(text):
            shown, where = seen(text)
            at = self._patterns.begun(shown)
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
        spans = self._patterns.spans(text, before)
        if has_unseen(text):
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
        """Where a secret stands with colours or characters without width in it: nobody sees them."""
        shown, where = seen(text)
        for start, end in self._patterns.spans(shown, bisect_left(where, before)):
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
        if has_unseen(held):
            held, where = seen(held)
            places = (len(held), bisect_left(where, self._shown), bisect_left(where, self._covered))
        form = self._redactor.form_of(held)
        return None if form is None else Held(form, *places)

    @property
    def held_back(self) -> int:
        """How many characters are held back, those without width included."""
        return len(self._held)

    def feed(self, piece: str) -> str:
        text = self._held + piece
        return self._told(text, self._redactor.begun(text))

    def pause(self) -> str:
        """Nothing may come for long: show a letter or two that were held back. A secret that goes on is masked."""
        if self.held_back > MOST_SHOWN:
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
        if len(self._held) > MOST_UNSEEN and has_unseen(self._held):
            self._drop_unseen()
        return told

    def _drop_unseen(self) -> None:
        """Without this, a letter of a secret and then characters without width would be held back for ever."""
        held, where = without_unseen(self._held)
        if len(self._held) - len(held) > MOST_UNSEEN:
            self._held, self._shown = held, bisect_left(where, self._shown)
            self._covered = bisect_left(where, self._covered)


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


def _more_forms(secret: str) -> Iterator[tuple[str, int]]:
    """The secret as hexadecimal digits, as base64 of base64, with every character escaped, escaped twice, and without
    characters that nobody sees. Each comes with how many of its characters stand for `SHORTEST` of the secret's."""
    if not SHORTEST <= len(secret) <= LONGEST_REENCODED:
        return
    if len(visible := seen(secret)[0]) >= SHORTEST:
        yield visible, SHORTEST
    data = secret.encode(errors="surrogatepass")
    yield from _in_hex(data)
    for once in dict.fromkeys(_in_base64(data, lines=False)):
        for twice in _in_base64(once.encode(), lines=False):
            yield twice, min(len(twice), 2 * SHORTEST)
    yield from _wholly_escaped(secret, data)
    escaped_twice = (
        quote(quote(secret, safe=""), safe=""),
        quote(quote_plus(secret), safe=""),
        _in_json(_in_json(secret)),
    )
    for each in (*escaped_twice, repr(data)[2:-1]):
        yield each, SHORTEST


def _in_hex(data: bytes) -> Iterator[tuple[str, int]]:
    for separator in ("", ":", "-", " "):
        digits = separator.join(f"{byte:02x}" for byte in data)
        least = SHORTEST * (2 + len(separator)) - len(separator)
        yield from ((digits, least), (digits.upper(), least))


def _wholly_escaped(secret: str, data: bytes) -> Iterator[tuple[str, int]]:
    """Every character as a URL, a string of a program, JSON and HTML can write it."""
    pairs = secret.encode("utf-16-be", errors="surrogatepass")
    units = [int.from_bytes(pairs[at : at + 2], "big") for at in range(0, len(pairs), 2)]
    points = [ord(each) for each in secret]
    styles = {"%{:02x}": data, "\\x{:02x}": data, "\\u{:04x}": units, "&#x{:x};": points, "&#{};": points}
    for style, numbers in styles.items():
        for each in (style, style.replace("x}", "X}")):
            pieces = [each.format(number) for number in numbers]
            yield "".join(pieces), len("".join(pieces[:SHORTEST]))


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_urls(secret: str) -> Iterator[str]:
    """Languages do not agree on what needs no escape there: besides Python's own way, a browser's two and Java's."""
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (quote(secret, safe="!'()*"), quote(secret, safe="!'()*#$&+,/:;=?@"))
    yield quote_plus(secret, safe="*").replace("~", "%7E")


def _long(lines: Iterable[str]) -> Iterator[str]:
    yield from (line for each in lines if len(line := each.strip()) >= SHORTEST_LINE)


def _in_base64(secret: bytes, *, lines: bool = True) -> Iterator[str]:
    """Wherever it stands in what was encoded: without the characters that its neighbours have a share in."""
    for offset in range(3):
        whole = base64.b64encode(bytes(offset) + secret).decode()
        core = whole[-(-offset * 8 // 6) : (offset + len(secret)) * 8 // 6]
        yield core
        yield core.translate(_URL_SAFE)
        if lines and offset == 0:  # many break what they write into lines, of which none need hold half of it
            yield from _long(core[at : at + size] for size in LINES_OF_BASE64 for at in range(0, len(core), size))


_URL_SAFE = str.maketrans("+/", "-_")
_NOT_IN_A_SCRIPT = str.maketrans({each: f"\\u{ord(each):04x}" for each in "&<>"})
