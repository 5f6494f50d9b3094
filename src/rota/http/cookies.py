"""The names of the cookies that sign people in."""

from starlette.requests import HTTPConnection

LOGIN, OIDC = "login", "oidc"


def is_https(connection: HTTPConnection) -> bool:
    """Whether browsers reach this server by https; behind a proxy, ROTA_URL says so."""
    url: str = connection.app.state.web.settings.url
    return connection.scope["scheme"] == "https" or url.startswith("https:")


def cookie_name(connection: HTTPConnection, name: str) -> str:
    """By https, a `__Host-` name, which browsers take from this host only, and only by https. By http, a name with the
    port: browsers send cookies to every port of a host, where another Rota may listen."""
    if is_https(connection):
        return f"__Host-rota_{name}"
    port = connection.headers.get("Host", "").rpartition(":")[2]
    return f"rota_{port if port.isdecimal() else 80}_{name}"


def login_of(connection: HTTPConnection) -> str:
    """The secret of the login that a browser sends; empty without one."""
    return connection.cookies.get(cookie_name(connection, LOGIN), "")
