"""Sign-in with an identity provider: OpenID Connect, authorization code with PKCE, state and nonce."""

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import httpx

from rota.access import throttling
from rota.access.signing_in import Visit, hashed, open_login
from rota.db import identities, people
from rota.db.pool import Connection, Database
from rota.errors import Forbidden, Unauthenticated
from rota.model.ids import UserId, new_id

ON_THE_WAY = timedelta(minutes=10)
# Signed with a key of the provider's, never with a secret that both know, and never unsigned.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
LEEWAY_SECONDS = 60
SECONDS = 10.0
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
UNREACHABLE = (httpx.HTTPError, httpx.InvalidURL)
NONSENSE = (ValueError, KeyError, TypeError, AttributeError)  # what it says is JSON, and nothing that is expected


class Sent(NamedTuple):
    """Where the browser goes, and the secret that it keeps meanwhile."""

    url: str
    browser: str


@dataclass(frozen=True, slots=True)
class Provider:
    """What the operator has set. `domains` are those whose e-mail addresses are let in, all if none is named; `level`
    is what somebody nobody invited becomes in `workspace`, or nothing."""

    issuer: str
    client_id: str
    client_secret: str
    domains: tuple[str, ...] = ()
    level: str = ""
    workspace: str = "default"

    async def send(self, db: Database, redirect_uri: str, to: str, visit: Visit) -> Sent:
        """Begin: what comes back must fit what is stored here, and come from the same browser."""
        await throttling.leave(db, visit.ip or "")
        state, nonce, browser = (secrets.token_urlsafe(32) for _ in range(3))
        verifier = secrets.token_urlsafe(48)
        found = await self._discover()
        async with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                found["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        async with db.transaction() as conn:
            await identities.begin(
                conn, ON_THE_WAY, state=hashed(state), browser=hashed(browser), nonce=nonce, verifier=verifier, next=to
            )
        return Sent(url, browser)

    async def receive(
        self, db: Database, redirect_uri: str, code: str, state: str, browser: str, visit: Visit
    ) -> tuple[str, str]:
        """The cookie's secret of whoever comes back, and the page they wanted."""
        async with db.transaction() as conn:
            begun = await identities.take(conn, hashed(state), hashed(browser))
        if not begun:
            raise _failed("This sign-in was not begun in this browser, is too old, or was used already.")
        claims = await self._claims(redirect_uri, code, begun)
        async with db.transaction() as conn:
            user_id = await self._person(conn, claims)
            login = await open_login(conn, user_id, visit)
        await throttling.come_back(db, visit.ip or "")
        return login, begun["next"]

    async def _claims(self, redirect_uri: str, code: str, begun: Mapping[str, str]) -> dict[str, Any]:
        from authlib.common.errors import AuthlibBaseError  # noqa: PLC0415 — only where people sign in so

        try:
            found = await self._discover()
            async with self._client(redirect_uri) as client:
                token = await client.fetch_token(
                    found["token_endpoint"], code=code, code_verifier=begun["verifier"], grant_type="authorization_code"
                )
            keys = await _fetch(found["jwks_uri"])
            id_token = str(token["id_token"])
        except (*UNREACHABLE, AuthlibBaseError, *NONSENSE):
            raise _failed("The identity provider did not confirm this sign-in.") from None
        return self._checked(id_token, keys, begun["nonce"])

    def _checked(self, id_token: str, keys: Any, nonce: str) -> dict[str, Any]:
        """What the provider says, if it is signed by it, for us, for this very sign-in, and not too old."""
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        wanted = {"iss": self.issuer, "aud": self.client_id, "nonce": nonce}
        essential = {name: {"essential": True, "value": value} for name, value in wanted.items()}
        times = {name: {"essential": True} for name in ("exp", "iat", "sub")}
        try:
            claims = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=ALGORITHMS).claims
            jwt.JWTClaimsRegistry(leeway=LEEWAY_SECONDS, **essential, **times).validate(claims)  # type: ignore[arg-type]
            _check_authorized_party(claims, self.client_id)
        except (JoseError, *NONSENSE):
            raise _failed("What the identity provider says about you cannot be trusted.") from None
        return claims

    async def _person(self, conn: Connection, claims: Mapping[str, Any]) -> UserId:
        email = str(claims.get("email", "")).strip().lower()
        if not email or claims.get("email_verified") is not True:
            raise Forbidden("Your identity provider has not verified your e-mail address.", code="email_unverified")
        if self.domains and email.rpartition("@")[2] not in self.domains:
            raise Forbidden("E-mail addresses of this domain are not let in here.", code="not_invited")
        subject = str(claims["sub"])
        known = await identities.find(conn, self.issuer, subject) or await self._of_address(conn, email, subject)
        if known and (known.get("disabled") or known.get("disabled_at")):
            raise Unauthenticated("This account is disabled. Ask whoever runs this server.", code="account_disabled")
        user_id = UserId(known["id"]) if known else await self._join(conn, email, str(claims.get("name") or ""))
        await people.prove(conn, user_id)
        if not await identities.find(conn, self.issuer, subject):
            await identities.add(conn, self.issuer, subject, user_id)
        return user_id

    async def _of_address(self, conn: Connection, email: str, subject: str) -> dict[str, Any] | None:
        """Whose address it is, unless the provider knows them as somebody else: addresses pass from one person to the
        next. Their row is held, so that of two who come at once one is first."""
        found = await people.find_user(conn, email, lock=True)
        known_as = await identities.subjects(conn, self.issuer, UserId(found["id"])) if found else []
        if known_as and subject not in known_as:
            raise Forbidden(
                "Your e-mail address belongs to an account that your identity provider knows as somebody else. If it is"
                " yours, whoever runs this server can let you in again: `rota users unlink`.",
                code="identity_taken",
            )
        return found

    async def _join(self, conn: Connection, email: str, name: str) -> UserId:
        workspace = await people.find_workspace(conn, self.workspace)
        if not self.level or not workspace:
            raise Forbidden("Nobody has invited this e-mail address. Ask an admin to.", code="not_invited")
        user_id = UserId(new_id())
        await people.add_user(conn, user_id, " ".join(name.split())[:200] or email.partition("@")[0], email)
        await people.add_member(conn, workspace["id"], user_id, self.level)
        return user_id

    def _client(self, redirect_uri: str) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client  # noqa: PLC0415

        return AsyncOAuth2Client(
            self.client_id, self.client_secret, redirect_uri=redirect_uri, scope="openid email profile",
            code_challenge_method="S256", timeout=SECONDS, verify=_tls(),
        )  # fmt: skip

    async def _discover(self) -> dict[str, str]:
        address = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = await _fetch(address)
        except (*UNREACHABLE, ValueError):
            raise _failed("The identity provider does not answer. Try again in a moment.") from None
        told = found if isinstance(found, dict) else {}
        if told.get("issuer") != self.issuer:
            raise _failed("The identity provider is another one than ROTA_OIDC_ISSUER names.")
        if missing := [name for name in ENDPOINTS if not isinstance(told.get(name), str)]:
            raise _failed(f"The identity provider does not say its {missing[0]}. Ask whoever runs this server.")
        return told


def _check_authorized_party(claims: Mapping[str, Any], client_id: str) -> None:
    """`azp`: the client that the token was made for. It must be us, and it must be there if there are several
    audiences (OpenID Connect Core 3.1.3.7)."""
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise ValueError("The token was made for another client.")


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates of all authorities takes 20 ms, which every request to the provider would repeat."""
    return httpx.create_ssl_context()


async def _fetch(address: str) -> Any:
    async with httpx.AsyncClient(timeout=SECONDS, verify=_tls()) as client:
        return (await client.get(address)).raise_for_status().json()


def _failed(message: str) -> Unauthenticated:
    return Unauthenticated(message, code="oidc_failed")
