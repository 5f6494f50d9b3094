"""Headers of requests, and credentials in the place of `${NAME}`."""

import re
from collections.abc import Mapping

from rota.errors import Invalid
from rota.model.config_fields import BLANK, read_text

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")


def read_header_value(value: object, at: str) -> str:
    text = read_text(value, at).strip()
    if not _HEADER_VALUE.fullmatch(text):
        raise Invalid("must be one line of ASCII characters", field=at)
    return text


def fill(text: str, values: Mapping[str, str], at: str) -> str:
    """A text with values in the place of `${NAME}`. No refusal repeats any of them."""
    for name in BLANK.findall(text):
        if name not in values:
            raise Invalid(f"the agent is given no credential as {name}", field=at)
    return BLANK.sub(lambda blank: values[blank[1]].strip(), text)


def fill_header(text: str, values: Mapping[str, str], at: str) -> str:
    """A header with values in the place of `${NAME}`."""
    return read_header_value(fill(text, values, at), at)
