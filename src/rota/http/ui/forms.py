"""Forms of the settings: what was typed stays when it is refused, and what is wrong with it stands beside its field."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from rota.errors import Conflict, Invalid, RotaError, TooMany
from rota.http.bodies import clean_text
from rota.http.context import Unit, refuse
from rota.http.errors import of_any, of_validation
from rota.http.ui.rendering import is_live, local, page, part

WRONG = (Invalid, Conflict, TooMany, ValidationError)


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a page as it was sent, and what is wrong with it by field; under "" what is wrong with all of it.
    `of` tells it from the page's other forms: the id of what it changes, or "new"."""

    of: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    def is_of(self, of: object) -> bool:
        return self.of == str(of)

    def typed(self, of: object, name: str, otherwise: Any = "") -> Any:
        """What the reader wrote there last, or what the page would have written."""
        return self.fields.get(name, otherwise) if self.is_of(of) else otherwise

    def wrong(self, of: object, name: str = "") -> str:
        return self.errors.get(name, "") if self.is_of(of) else ""

    def is_first_wrong(self, of: object, name: str) -> bool:
        return self.is_of(of) and next(iter(self.errors), None) == name


UNTOUCHED = Form()


async def typed(request: Request, *names: str) -> dict[str, str]:
    """The texts of a form; what is not there is empty."""
    sent = await request.form()
    return {name: _text(sent.get(name, ""), name) for name in names}


def _text(value: Any, name: str) -> str:
    return clean_text(value, name) if isinstance(value, str) else ""


def rejected(
    request: Request, wrong: RotaError | ValidationError, of: object, typed: Mapping[str, Any], *secret: str
) -> Form:
    """The form to be shown again, without its `secret` fields. Nothing of its transaction stays, and the audit log is
    told that it was refused."""
    told = of_validation(wrong.errors()) if isinstance(wrong, ValidationError) else of_any(wrong)
    refuse(request, told)
    found = told.get("errors") or [{"field": told.get("field", ""), "message": told["detail"]}]
    errors: dict[str, str] = {}
    for each in found:
        field = beside(each["field"], typed)
        errors.setdefault(field, _told(each["field"], field, each["message"]))
    return Form(str(of), {name: value for name, value in typed.items() if name not in secret}, errors, told["status"])


def beside(field: str, names: Collection[str]) -> str:
    """The field of the form that a refusal is about; none if it is about all of them."""
    while field and field not in names:
        field = field.rpartition(".")[0]
    return field


def _told(field: str, beside: str, message: str) -> str:
    """With the part that it is about, where a field of the form has several that go by names."""
    within = field.removeprefix(beside).lstrip(".")
    return f"{within}: {message}" if beside and within and not within.isdecimal() else message


def in_place(wrong: RotaError | ValidationError) -> RotaError:
    """For a page that still shows what was typed, which tells it in a notice."""
    if isinstance(wrong, RotaError):
        return wrong
    return Invalid(of_validation(wrong.errors())["errors"][0]["message"])


async def shown(unit: Unit, request: Request, template: str, form: Form, /, **facts: Any) -> Response:
    """A page of the settings, or for htmx what stands in it: `settings/x.html`, and `settings/_x.html` within it. The
    answer to a form is put in place of what htmx has shown."""
    facts["form"] = form
    if not is_live(request):
        response = await page(unit, request, template, **facts)
    else:
        folder, _, name = template.rpartition("/")
        response = part(unit, request, f"{folder}/_{name}", **facts)
        if request.method == "POST":
            response.headers.update({"HX-Retarget": "#results", "HX-Reswap": "innerHTML"})
    response.status_code = form.status
    return response


def gone(request: Request, to: str) -> Response:
    """After what a page is about was taken away: on to another page, also for htmx."""
    if not is_live(request):
        return RedirectResponse(local(to), 303)
    return Response(status_code=204, headers={"HX-Redirect": local(to)})
