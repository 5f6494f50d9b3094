"""What the tokens of a model cost."""

from dataclasses import dataclass

from rota.errors import Invalid
from rota.model.config_fields import Fields

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens. What was read from the provider's cache costs as other input unless told."""

    input: float
    output: float
    cached_input: float | None = None

    def cost(self, given: int, taken: int, cached: int = 0) -> float:
        """Money for one answer, of whose input so much was cached."""
        of_cached = self.input if self.cached_input is None else self.cached_input
        cached = min(cached, given)
        return ((given - cached) * self.input + cached * of_cached + taken * self.output) / MILLION


def read_prices(value: object, at: str) -> Prices:
    fields = Fields(value, "input output cached_input", at)
    given, taken = fields.read("input", _price), fields.read("output", _price)
    if given is None or taken is None:
        raise Invalid("give the price of a million tokens as input and as output", field=at)
    return Prices(given, taken, fields.read("cached_input", _price))


def _price(value: object, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise Invalid("must be a number of 0 or more", field=at)
    return float(value)
