"""Who asks, and what their level lets them do."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from rota.errors import Forbidden
from rota.model.grant_scope import AGENT_RUN, ANY_AGENT, WORKSPACE_READ
from rota.model.ids import AccountId, AutomationId, GrantId, RunId, SessionId, TokenId, UserId, WorkspaceId
from rota.model.scope import Scope


class Level(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


_ORDER = [Level.VIEWER, Level.MEMBER, Level.ADMIN]


@dataclass(frozen=True, slots=True)
class Reach:
    """What the token of an attempt may read: its session, its automation, and what its grant names."""

    session_id: SessionId
    automation_id: AutomationId | None
    grant_id: GrantId
    account_id: AccountId
    scopes: frozenset[str]

    @property
    def is_whole_workspace(self) -> bool:
        return WORKSPACE_READ in self.scopes

    def has_agent(self, agent_id: UUID) -> bool:
        return not self.scopes.isdisjoint((ANY_AGENT, f"{AGENT_RUN}{agent_id}"))


@dataclass(frozen=True, slots=True)
class Caller:
    """A member of a workspace, or an agent at work on a member's grant, who may read only and has a `reach`."""

    workspace_id: WorkspaceId
    workspace_slug: str
    timezone: str
    user_id: UserId
    name: str
    level: Level
    agent_in_session: SessionId | None = None
    token_id: TokenId | None = None
    scopes: frozenset[Scope] | None = None  # of the token; a person at a browser has no need of any
    login_id: UUID | None = None
    unnoted: bool = False  # for a minute or more nobody wrote down that the token or login is used
    run_id: RunId | None = None
    attempt: int | None = None
    reach: Reach | None = None

    @property
    def is_admin(self) -> bool:
        return self.level == Level.ADMIN

    def must_be(self, level: Level, to: str) -> None:
        if _ORDER.index(self.level) < _ORDER.index(level):
            raise Forbidden(f"You are a {self.level} here; to {to} you must be {_article(level)}.", needs=level)

    def owns(self, owner_id: UserId | None) -> bool:
        """Members look after what is theirs, admins after everything."""
        return self.is_admin or (self.level == Level.MEMBER and owner_id == self.user_id)

    def must_own(self, owner_id: UserId, to: str) -> None:
        self.must_be(Level.MEMBER, to)
        if not self.owns(owner_id):
            raise Forbidden(f"Only its owner or an admin may {to}.", needs=Level.ADMIN)


def _article(level: Level) -> str:
    return f"an {level}" if level == Level.ADMIN else f"a {level}"
