"""Which URLs Rota may request: a strict parser, the address rules, and the operator's exceptions. Pure.

Saving an agent and running it both call `read_target` and `AllowList.objection`, so that a URL that a run would refuse
is refused when it is saved. Names are resolved only by the run.
"""

import re
import unicodedata
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from rota.errors import Invalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DEFAULT_PORTS = {"http": 80, "https": 443}
OPEN_PORTS = frozenset(DEFAULT_PORTS.values())
EVERY_PORT = range(1, 65536)
LONGEST_URL = 4000
SETTING = "ROTA_HTTP_ALLOW"

_PATH = r"(?:[a-z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-f]{2})*"
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    rf"(?P<path>/{_PATH})?(?P<query>\?(?:{_PATH}|\?)*)?(?:#.*)?",
    re.IGNORECASE | re.ASCII,
)
# Frequent mistakes, each with what would be right. `_URL` refuses everything else that is not a URL.
_MISTAKES = {
    r".*[^\x21-\x7e]|.*\\": "contains a character that is not allowed in a URL; percent-encode it, and write an "
    "international host name in its xn--… form",
    r"(?!https?://)": "must start with https:// or http://",
    r"https?://[^/?#]*@": "must not contain a user name or password; send them in a header",
    r"https?://([/?#:]|\Z)": "has no host; write https://host/path",
    r"https?://\[[^\]/?#]*%": "must not have an IPv6 zone; write the address without %…",
    r"https?://[^/?#]*%": "must not have a percent-encoded host; write the name itself",
    r"https?://(\[[^\]/?#]*\]|[^:/?#\[]*):([/?#]|\Z)": "has an empty port; leave out the colon or give a port",
    r"https?://(\[[^\]/?#]*\]|[^:/?#\[]*):(?![0-9]{1,5}([/?#]|\Z))": "has a port that is not a number from 1 to 65535; "
    "write https://host:port/path, with an IPv6 address in brackets",
    r"[^#]*%(?![0-9a-f]{2})": "has a % that is not followed by two hexadecimal digits; write %25 for a literal %",
}
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OPENING = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}|\*))?")

# Names that no public service has; one without a dot is completed to a machine next door.
_INNER_NAME = re.compile(r"[^.]+|.+\.(localhost|localdomain|local|internal|svc|metadata)")
_METADATA_NAMES = {"metadata.google.internal", "metadata.goog", "metadata.tencentyun.com", "metadata", "instance-data"}

# Here clouds give credentials to whoever asks: a name or a wide network in the operator's list doesn't include them.
METADATA = frozenset(
    ip_address(each)
    for each in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)

# Our own table: what `ipaddress` calls global differs between versions of Python, and includes multicast.
_SPECIAL = {
    "this machine": "0.0.0.0/8 127.0.0.0/8 ::/127",
    "in a private network": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    "in a carrier's network": "100.64.0.0/10",
    "link-local": "169.254.0.0/16 fe80::/10",
    "multicast": "224.0.0.0/4 ff00::/8",
    "another address in disguise": "::ffff:0:0/96 ::/96 64:ff9b::/96 64:ff9b:1::/48 2002::/16 2001::/32 192.88.99.0/24",
    "reserved": "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 "
    "2001::/23 2001:db8::/32 3fff::/20",
}
_SPECIAL_NETWORKS = [(ip_network(each), what) for what, networks in _SPECIAL.items() for each in networks.split()]
_PUBLIC_SIX = IPv6Network("2000::/3")
_CARRYING = [IPv6Network(each) for each in ("::ffff:0:0/96", "::/96", "64:ff9b::/96")]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. `host` is lower case, without brackets or a last dot; `path` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def address(self) -> Address | None:
        """What the host says by itself, if it is no name."""
        return ip_address(self.host) if ":" in self.host or _ends_in_a_number(self.host) else None


def read_target(value: object, at: str) -> Target:
    """Parse a URL. Raises `Invalid` for anything that two parsers could understand differently."""
    if not isinstance(value, str) or len(value) > LONGEST_URL:
        raise Invalid(f"must be a URL of at most {LONGEST_URL:,} characters", field=at)
    for mistake, words in _MISTAKES.items():
        if re.match(mistake, value, re.DOTALL | re.IGNORECASE | re.ASCII):
            raise Invalid(words, field=at)
    match = _URL.fullmatch(value)
    if match is None:
        raise Invalid("is not a URL; write https://host/path and percent-encode special characters", field=at)
    scheme = match["scheme"].lower()
    port = _port(match["port"], at) if match["port"] else DEFAULT_PORTS[scheme]
    return Target(scheme, _host(match["host"], at), port, (match["path"] or "/") + (match["query"] or ""))


class AllowList:
    """Targets that may be called: public addresses on ports 80 and 443, and what the operator's entries add.

    An entry is a host, an address or a network, with an optional `:port` or `:*`. Without one it adds ports 80 and 443.
    """

    def __init__(self, entries: Iterable[str] = (), *, setting: str = SETTING) -> None:
        self._openings = [_opening(entry, setting) for entry in entries]

    def by_address(self, look_up: Callable[[str], Iterable[str]]) -> "AllowList":
        """The same with each name as the addresses it has now, for who sees addresses only."""
        found = AllowList()
        for each in self._openings:
            addresses = [ip_address(one) for one in look_up(each.name)] if each.name else []
            found._openings += [
                _Opening(None, ip_network(one), each.ports) for one in addresses if not _is_metadata(one)
            ]
            found._openings += [] if each.name else [each]
        return found

    def objection_at(self, address: Address, port: int, ports: Container[int]) -> str | None:
        """Why an address may not be called, where these ports are open and nothing but the address is known."""
        target = Target("http", str(address), port, "/")
        if any(opening.covers(target, address) for opening in self._openings):
            return None
        return _about_address(address) if port in ports else f"port {port} is not open"

    def objection(self, target: Target) -> str | None:
        """Return why a target may not be called, as far as is known without resolving its name; None if it may."""
        if target.address is not None:
            return self.objection_to(target, target.address)
        if any(opening.names(target) for opening in self._openings):
            return None
        if target.port not in OPEN_PORTS and not any(opening.may_lead_to(target) for opening in self._openings):
            return f"port {target.port} is not open"
        return _about_name(target.host)

    def objection_to(self, target: Target, address: Address) -> str | None:
        """Why a target may not be called at an address that its name was given."""
        if any(opening.covers(target, address) for opening in self._openings):
            return None
        if target.port not in OPEN_PORTS:
            return f"port {target.port} is not open"
        return _about_address(address)


PUBLIC_ONLY = AllowList()


@dataclass(frozen=True, slots=True)
class _Opening:
    """One entry of the list: either a name or a network."""

    name: str | None
    network: Network | None
    ports: Container[int]

    def names(self, target: Target) -> bool:
        return self.name == target.host and target.port in self.ports

    def may_lead_to(self, target: Target) -> bool:
        return self.network is not None and target.port in self.ports

    def covers(self, target: Target, address: Address) -> bool:
        if self.network is None:
            return self.names(target) and not _is_metadata(address)
        within = target.port in self.ports and address in self.network
        return within and (not _is_metadata(address) or self.network.num_addresses == 1)


def _is_metadata(address: Address) -> bool:
    """Also in disguise: some addresses of the sixth version only carry one of the fourth, which is then called."""
    if isinstance(address, IPv6Address):
        carried = IPv4Address(int(address) & 0xFFFFFFFF) if any(address in each for each in _CARRYING) else None
        address = carried or address.sixtofour or address
    return address in METADATA


def _about_name(host: str) -> str | None:
    if host in _METADATA_NAMES:
        return "it is the metadata service of a cloud"
    return "it is a name of an inner network" if _INNER_NAME.fullmatch(host) else None


def _about_address(address: Address) -> str | None:
    if address in METADATA:
        return "its address is the metadata service of a cloud"
    for network, what in _SPECIAL_NETWORKS:
        if address in network:
            return f"its address is {what}"
    if isinstance(address, IPv6Address) and address not in _PUBLIC_SIX:
        return "its address is reserved"
    return None


def _opening(entry: str, setting: str) -> _Opening:
    try:
        return _parsed(entry)
    except (Invalid, ValueError):
        wanted = "a host, an address or a network, with or without :port"
        raise Invalid(f"{setting}: {entry!r} is not {wanted}", field=setting) from None


def _parsed(entry: str) -> _Opening:
    bare_six = entry.count(":") > 1 and "[" not in entry
    match = _OPENING.fullmatch(f"[{entry}]" if bare_six else entry)
    if match is None:
        raise ValueError(entry)
    host, ports = match["six"] or match["host"], _ports(match["port"])
    if match["six"] or "/" in host or _ends_in_a_number(host):
        return _Opening(None, ip_network(host), ports)
    return _Opening(_host(host, SETTING), None, ports)


def _ports(text: str | None) -> Container[int]:
    match text:
        case None:
            return OPEN_PORTS
        case "*":
            return EVERY_PORT
        case _:
            return {_port(text, SETTING)}


def _port(text: str, at: str) -> int:
    if (port := int(text)) not in EVERY_PORT:
        raise Invalid(f"port {port} is out of range; ports are 1 to 65535", field=at)
    return port


def _host(text: str, at: str) -> str:
    host = text.lower().removesuffix(".")
    try:
        if host.startswith("["):
            return str(IPv6Address(host[1:-1]))
        if _ends_in_a_number(host):
            return str(IPv4Address(host))  # which takes neither 127.1 nor 0177.0.0.1, unlike getaddrinfo
    except ValueError:
        raise Invalid(
            f"{_shorten(text)} is not an IP address in its usual notation, such as 192.0.2.1 or [2001:db8::1]", field=at
        ) from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise Invalid(
            f"{_shorten(text)} is not a host name: labels of 1 to 63 letters, digits and inner hyphens, "
            "253 characters in all",
            field=at,
        )
    for label in host.split("."):
        if label.startswith("xn--") and not _is_international(label):
            raise Invalid(f"{_shorten(label)} is not the xn--… form of any international name", field=at)
    return host


def _is_international(label: str) -> bool:
    """Whether an `xn--` label encodes a name with characters that a name may have."""
    encoded = label.removeprefix("xn--")
    try:
        name = encoded.encode().decode("punycode")
        round_trip = name.encode("punycode").decode()
    except UnicodeError:
        return False
    return round_trip == encoded and not name.isascii() and not any(map(_is_invisible, name))


def _is_invisible(character: str) -> bool:
    """Controls, blanks and halves of characters; some scripts need the two joiners."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"} and character not in "\u200c\u200d"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}…")


def _ends_in_a_number(host: str) -> bool:
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
