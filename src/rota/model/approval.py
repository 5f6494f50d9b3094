"""A question to a person: what an agent may ask, how it may be answered, and what is answered beforehand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from rota.errors import Invalid
from rota.model.ids import ApprovalId, UserId
from rota.model.redaction import Redactor

LONGEST_QUESTION = 10_000
LONGEST_NAME = 200
MOST_OPTIONS = 20
PRE_APPROVAL = "pre_approval"  # who answered, when nobody had to


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to answer; `approves` tells whether the agent may go ahead."""

    id: str
    label: str
    approves: bool


APPROVE_OR_REFUSE = (Option("approve", "Approve", approves=True), Option("refuse", "Refuse", approves=False))


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question. Nobody is named when a pre-approval answered it."""

    approval_id: ApprovalId
    option_id: str
    approved: bool
    text: str | None
    answered_by: UserId | None


def as_json(answer: Answer) -> dict[str, Any]:
    """As agents in a process of their own are given it."""
    return {
        "approval_id": str(answer.approval_id),
        "option_id": answer.option_id,
        "approved": answer.approved,
        "text": answer.text,
        "answered_by": str(answer.answered_by) if answer.answered_by else None,
    }


@dataclass(frozen=True, slots=True)
class Question:
    """Asked again with the same key, in the same run, it is the same question and has the same answer."""

    text: str
    options: Sequence[Option] = APPROVE_OR_REFUSE
    detail: Mapping[str, Any] | None = None
    key: str | None = None

    @property
    def names(self) -> set[str]:
        """What a pre-approval may call it: its key, also without what tells it from others behind a `#`, or the tool it
        is about."""
        tool, key = (self.detail or {}).get("tool"), self.key or ""
        return {name for name in (self.key, key.rpartition("#")[0], tool) if isinstance(name, str) and name}


def without(question: Question, redactor: Redactor) -> Question:
    """The question as it may be read. What its options are called in the agent's code stays."""
    return Question(
        redactor.text(question.text),
        [replace(option, label=redactor.text(option.label)) for option in question.options],
        redactor.value(question.detail),
        redactor.value(question.key),
    )


def checked(question: Question) -> Question:
    """Refuse what no person could answer."""
    if not question.text.strip() or len(question.text) > LONGEST_QUESTION:
        raise Invalid(f"A question has 1 to {LONGEST_QUESTION:,} characters.", field="question")
    if question.key is not None and not 0 < len(question.key) <= LONGEST_NAME:
        raise Invalid(f"A key has 1 to {LONGEST_NAME} characters.", field="key")
    if not 0 < len(question.options) <= MOST_OPTIONS:
        raise Invalid(f"A question has 1 to {MOST_OPTIONS} options.", field="options")
    if len({option.id for option in question.options}) < len(question.options):
        raise Invalid("Each option needs an id of its own.", field="options")
    for option in question.options:
        if not 0 < len(option.id) <= LONGEST_NAME or not 0 < len(option.label) <= LONGEST_NAME:
            raise Invalid(f"An option's id and label have 1 to {LONGEST_NAME} characters.", field="options")
    return question


def chosen(options: Sequence[Option], answer: str) -> Option | None:
    """The option of that id; “approve” and “refuse” also stand for the first that does so."""
    by_id = next((option for option in options if option.id == answer), None)
    if by_id or answer not in {"approve", "refuse"}:
        return by_id
    return next((option for option in options if option.approves == (answer == "approve")), None)


def pre_approved(patterns: Sequence[str], question: Question) -> Option | None:
    """The option that an automation's pre-approvals choose, if one of them covers the question."""
    covered = any(fnmatchcase(name, pattern) for name in question.names for pattern in patterns)
    return chosen(question.options, "approve") if covered else None
