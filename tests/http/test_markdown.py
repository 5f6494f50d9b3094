"""What agents say as markup: what it may become, and that nothing they write runs, loads or hides where a link leads."""

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from rota.http.ui.markdown import ATTRIBUTES, LONGEST, SPOKEN, TAGS, inline, markdown

VECTORS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](vbscript:msgbox(1))",
    "[x](file:///etc/passwd)",
    "<javascript:alert(1)>",
    "![x](javascript:alert(1))",
    '![a"onerror="alert(1)](https://x/)',
    "![x](https://evil.example/pixel.png)",
    "[x]: javascript:alert(1)\n\n[x]",
    "[x](https://x/ \"title' onmouseover='alert(1)\")",
    "```<script>\n</code></pre><script>alert(1)</script>\n```",
    '```" onclick="alert(1)\nx\n```',
    "    <script>alert(1)</script>",
    "a</hx-partial><hx-partial hx-target='body'>b",
    "<div hx-get='/w/default' hx-trigger='load'>",
    "<a href='https://x/' style='position:fixed;inset:0'>x</a>",
    "| <script> | b |\n|---|---|\n| <b onclick=x> | y |",
    "<math><mtext></mtext><mglyph><svg><mtext><style><path id='</style><img onerror=alert(1) src>'>",
    "# <form action=https://evil.example><button>Sign in</button>",
    "<base href=https://evil.example>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
)


class Elements(HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def is_harmless(markup: str) -> bool:
    for tag, has in Elements(markup).found:
        extra = set(has) - ATTRIBUTES.get(tag, set()) - ({"rel"} if tag == "a" else set())
        as_said = tag == "div" and has == {"class": "as-said"}
        if not as_said and (tag not in TAGS or extra):
            return False
        if tag == "a" and "href" in has and not (has["href"] or "").startswith(("http://", "https://", "mailto:")):
            return False
    return True


def is_plain(markup: str) -> bool:
    return all(tag in SPOKEN and not has for tag, has in Elements(markup).found)


@pytest.mark.parametrize("said", VECTORS)
def test_nothing_that_agents_write_runs_or_loads(said: str) -> None:
    assert is_harmless(markdown(said)), markdown(said)
    assert is_plain(inline(said)), inline(said)


@given(
    st.lists(st.sampled_from([*VECTORS, "\n", "\n\n", "`", "```", "*", "[", "](", ")", "<", ">", '"', "|", "# "])).map(
        "".join
    )
)
def test_nothing_that_it_is_put_together_from_does_either(said: str) -> None:
    assert is_harmless(markdown(said))
    assert is_plain(inline(said))


def test_links_say_nothing_of_the_reader_and_lend_no_weight() -> None:
    assert markdown("[docs](https://example.org/a?b=1&c=2)") == (
        '<p><a href="https://example.org/a?b=1&amp;c=2" rel="noopener noreferrer nofollow">docs</a></p>\n'
    )


def test_a_picture_from_elsewhere_is_a_link_to_it() -> None:
    shown = markdown("![a chart](https://example.org/chart.png)")
    assert "<img" not in shown
    assert 'href="https://example.org/chart.png"' in shown
    assert ">a chart</a>" in shown


def test_what_people_expect_of_markdown() -> None:
    shown = markdown("# Found\n\nTwo *owners*, **one** `file`:\n\n1. a\n2. b\n\n| x | y |\n|---|---|\n| 1 | 2 |\n")
    for each in (
        "<h3>Found</h3>",
        "<em>owners</em>",
        "<strong>one</strong>",
        "<code>file</code>",
        "<li>a</li>",
        "<td>1</td>",
    ):
        assert each in shown


def test_headings_begin_below_those_of_the_page_and_skip_no_level() -> None:
    shown = markdown("## Found\n\n#### Two\n\n## Next\n\n### Three\n")
    assert re.findall(r"<(h\d)>", shown) == ["h3", "h4", "h3", "h4"]


def test_lines_stay_lines_and_entities_stay_as_written() -> None:
    assert markdown("one\ntwo &amp; <b>") == "<p>one<br>\ntwo &amp;amp; &lt;b&gt;</p>\n"


FAILURE = """\
Loading __main__
Traceback (most recent call last):
  File "load.py", line 3, in __init__
    raise KeyError(name)
KeyError: 'a *b* c'
# 3 rows failed"""


@pytest.mark.parametrize(
    "said",
    [
        FAILURE,
        FAILURE.replace("\n", "\r\n"),
        f"It broke:\n\n{FAILURE}",
        "Traceback (most recent call last):\nKeyError: 1",
        '{\n  "a": 1,\n  "b": 2\n}',
        "Filesystem   Use%\n/dev/root     40%",
        "At:\n\tone\n\ttwo",
    ],
)
def test_what_a_program_printed_is_shown_as_it_was_said(said: str) -> None:
    assert markdown(said) == Markup('<div class="as-said">{}</div>').format(said)


@pytest.mark.parametrize(
    "said",
    [
        f"It broke:\n\n```\n{FAILURE}\n```\n",
        "One:\n\n- a\n  goes on\n  and on\n  - b\n    - c\n\nEnd.",
        "Code:\n\n    x = 1\n    y = 2\n",
        "| a    | b    |\n|------|------|\n| 1    | 2    |",
        "A sentence.  Another.\nOne more.  And one.",
        "I saw `Traceback (most recent call last):` there.",
    ],
)
def test_what_is_written_in_markdown_stays_that(said: str) -> None:
    assert "as-said" not in markdown(said)


def test_the_names_of_programs_are_no_emphasis() -> None:
    assert markdown("in __init__ of snake_case_name") == "<p>in __init__ of snake_case_name</p>\n"
    assert inline("in __init__") == "in __init__"
    assert "<strong>two words</strong>" in markdown("__two words__")


def test_what_is_too_long_is_shown_as_it_was_said() -> None:
    said = "<b>*x* " * (LONGEST // 7 + 1)
    shown = markdown(said)
    assert shown.startswith('<div class="as-said">&lt;b&gt;*x*')


@pytest.mark.parametrize("marks", ["[", "*_", "![[", "[a](", "~~a", "a_", "**a*", "`", "\\`"])
def test_so_many_marks_that_all_would_wait_are_shown_as_they_were_said(marks: str) -> None:
    many = marks * (LONGEST // len(marks))
    began = time.process_time()
    assert markdown(many) == f'<div class="as-said">{many}</div>'
    assert inline(many) == many
    assert time.process_time() - began < 0.1  # 0.3 to 1.2 s where they are parsed


def test_a_long_report_is_still_set() -> None:
    report = "Some **bold**, `code`, an __init__ and a [link](https://rota.test).\n\n" * (LONGEST // 70)
    assert markdown(report).count("<strong>bold</strong>") == LONGEST // 70


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("See `runbooks/exports.md`.", "See <code>runbooks/exports.md</code>."),
        ("**Three** of *many*, 2 * 3 * 4, snake_case_name", "<strong>Three</strong> of <em>many</em>, 2 * 3 * 4, snake_case_name"),
        ("cut in the middle of `a na", "cut in the middle of `a na"),
        ("[a link](https://example.org) and ![a picture](https://example.org/x.png)", "a link and a picture"),
        ("first\nthen `x`", "first\nthen <code>x</code>"),
        ("<b>`<script>`</b> & [x](javascript:alert)", "&lt;b&gt;<code>&lt;script&gt;</code>&lt;/b&gt; &amp; [x](javascript:alert)"),
        ("# no heading, - no list", "# no heading, - no list"),
        ("&lt; `x`", "&amp;lt; <code>x</code>"),
    ],
)  # fmt: skip
def test_a_sentence_in_a_list_has_no_links_and_no_blocks(said: str, shown: str) -> None:
    assert str(inline(said)) == shown
