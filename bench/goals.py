"""What was promised, and whether these figures keep it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{'met   ' if self.met else 'MISSED'}  {self.text}: {self.measured:,.2f} ({sign} {self.limit:,.2f})"


def at_least(text: str, measured: float, limit: float) -> Goal:
    return Goal(text, measured, limit, at_least=True)


def at_most(text: str, measured: float, limit: float) -> Goal:
    return Goal(text, measured, limit)
