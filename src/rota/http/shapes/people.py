"""Members, their tokens and logins, and the workspace."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, SecretStr

from rota.http.shapes.fields import Duration, Email, In, Instant, LevelName, Line, Name, Out, Patch, Reason, _lasting
from rota.model.scope import Scope


class MemberIn(In):
    email: Email
    name: Line = Field(default="", description="For a new account; else the e-mail's first part")
    level: LevelName = "member"
    password: SecretStr | None = Field(
        default=None, max_length=1000, description="For a new account, instead of a link"
    )


class MemberPatch(Patch):
    level: LevelName = "viewer"
    disabled: bool = Field(default=False, description="True: they are let in no more, until it is false again")


class MemberOut(Out):
    id: UUID = Field(description="Of the person, the same in every workspace")
    name: str
    email: str | None = Field(description="For admins, and one's own; else null")
    level: LevelName
    disabled: bool = Field(description="Their account is switched off: they are let in nowhere")
    created_at: datetime


class NewMemberOut(MemberOut):
    link: str | None = Field(description="Signs them in, once; null for who has an account already")


class LinkOut(Out):
    link: str


class TokenIn(In):
    name: Name
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(
        default_factory=lambda: list(Scope), min_length=1, max_length=len(Scope)
    )
    lasts: Annotated[Duration, AfterValidator(_lasting)] | None = Field(default=None, description="Null: until revoked")


class TokenOut(Out):
    id: UUID
    name: str
    user_id: UUID
    user: str
    scopes: list[Scope]
    status: Literal["valid", "revoked", "expired"]
    created_at: datetime
    last_used_at: datetime | None = Field(description="Noted once a minute")
    expires_at: datetime | None
    revoked_at: datetime | None


class NewTokenOut(TokenOut):
    secret: str = Field(description="Shown in this answer only")


class IdentityOut(Out):
    issuer: str = Field(description="The identity provider that knows you")
    created_at: datetime = Field(description="When you first signed in with it")


class MeOut(Out):
    id: UUID
    name: str
    email: str | None
    level: LevelName
    has_password: bool
    identities: list[IdentityOut]


class MePatch(Patch):
    name: Name


class PasswordIn(In):
    new: SecretStr = Field(max_length=1000)
    current: SecretStr = Field(default=SecretStr(""), max_length=1000, description="The one you have, if you have one")


class LoginOut(Out):
    id: UUID
    created_at: datetime
    last_used_at: datetime = Field(description="Noted once a minute")
    expires_at: datetime = Field(description="If it is not used until then")
    ip: str | None
    user_agent: str | None
    own: bool = Field(description="The one that asks")


class EndedOut(Out):
    ended: int


class PauseIn(In):
    reason: Reason = Field(description="Shown on every page and in “Why didn't it run?”")
    until: Instant | None = Field(default=None, description="Resume by itself then; null: until somebody resumes it")
    lasts: Annotated[Duration, AfterValidator(_lasting)] | None = Field(
        default=None, description="The end as a span from now, instead of `until`"
    )


class PauseOut(Out):
    reason: str
    paused_at: datetime
    paused_by: str = Field(description="Whoever gave the reason and the end that hold now")
    until: datetime | None = Field(description="When it is resumed by itself; null: when somebody resumes it")


class WorkspaceOut(Out):
    id: UUID
    slug: str
    name: str
    timezone: str
    minimum_interval: Duration | None
    max_concurrent: int | None
    max_schedules: int | None
    created_at: datetime
    level: LevelName = Field(description="Your own")
    pause: PauseOut | None = Field(description="Null unless all automations are paused")


class WorkspacePatch(Patch):
    name: Name = ""
    timezone: str = Field(default="UTC", max_length=64)
    minimum_interval: Annotated[Duration, AfterValidator(_lasting)] | None = None
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    max_schedules: int | None = Field(default=None, ge=1, le=1_000_000)
