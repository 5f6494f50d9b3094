"""Where an agent may be called: every notation of an inner address is refused, and only an operator opens one."""

import json
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import Invalid
from rota.model.address import OPEN_PORTS, AllowList, Target, read_target

URLS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "http_urls.json").read_text())
VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "security.json").read_text())
PUBLIC = ip_address("93.184.216.34")


def verdict(url: str, *allow: str) -> str | None:
    """Why a URL may not be called, as far as it says so itself."""
    try:
        return AllowList(allow).objection(read_target(url, "url"))
    except Invalid as refusal:
        return refusal.message


BAD_URLS = [url for urls in URLS["bad"].values() for url in urls]


@pytest.mark.parametrize("url", [*VECTORS["deny"], *BAD_URLS])
def test_what_must_not_be_called_is_refused_before_any_name_is_looked_up(url: str) -> None:
    assert verdict(url)


NOT_PUBLIC = [
    *VECTORS["notes"]["python_3.11.7_is_global_true_but_must_deny"],
    *VECTORS["notes"]["is_private_false_but_must_deny"],
]


@pytest.mark.parametrize("network", [note.partition(" ")[0] for note in NOT_PUBLIC])
def test_what_the_library_takes_for_public_and_is_not_is_refused(network: str) -> None:
    """The library's own opinion of these changes from version to version."""
    found = ip_network(network)
    for address in (found[0], found[-1]):
        private_inside = ip_address("2002:a00:1::") if network.startswith("2002:") else address
        host = f"[{private_inside}]" if found.version == 6 else str(address)
        assert verdict(f"http://{host}/")


@pytest.mark.parametrize("url", [*VECTORS["allow"], *URLS["good"]])
def test_what_is_public_may_be_called(url: str) -> None:
    assert verdict(url) is None


@pytest.mark.parametrize("given", VECTORS["notes"]["getaddrinfo_accepts"][:-1])
def test_an_address_that_only_getaddrinfo_understands_is_no_address(given: str) -> None:
    with pytest.raises(Invalid, match="notation"):
        read_target(f"http://{given}/", "url")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/")),
        ("HTTP://Example.COM.:80/a%20b?c=d&e=/?#part", Target("http", "example.com", 80, "/a%20b?c=d&e=/?")),
        ("https://example.com?q", Target("https", "example.com", 443, "/?q")),
        ("https://8.8.8.8:443/", Target("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700:0::1111]:8443/x", Target("https", "2606:4700::1111", 8443, "/x")),
        ("https://xn--bcher-kva.example/", Target("https", "xn--bcher-kva.example", 443, "/")),
    ],
)
def test_a_url_is_read(url: str, target: Target) -> None:
    assert read_target(url, "url") == target


def test_the_host_is_named_with_its_port_where_that_is_not_the_usual_one() -> None:
    urls = ["https://a.example", "https://a.example:80", "http://[2606:4700::1]:80", "http://[2606:4700::1]:443"]
    authorities = [read_target(url, "url").authority for url in urls]
    assert authorities == ["a.example", "a.example:80", "[2606:4700::1]", "[2606:4700::1]:443"]


@pytest.mark.parametrize(
    "url",
    [
        *["", "example.com", "https:/example.com", "https:example.com", "https://", "https://:80/", "https://?", "ws://a.b"],
        *["https://a.b:0/", "https://a.b:65536/", "https://a.b:8०/", "https://a.b:/x", "https://a.b:80:80/"],
        *["https://a@b.example/", "https://@b.example/", "https://a:b@c.example", "https://a.example\\@b.example/"],
        *["https://a.example/ ", " https://a.example/", "https://a.example/\n", "https://a.example/\t", "https://a\0.b"],
        *["https://a..b/", "https://.a.b/", "https://-a.b/", "https://a-.b/", "https://a.b../", "https://a%2eb/"],
        *["https://\u212aelvin.example/", "https://b\u00fccher.example/", "https://a\u3002b/", "https://a.b/\u00fc"],
        *["https://[::1", "https://::1/", "https://[::1]x/", "https://[fe80::1%eth0]/", "https://[1.2.3.4]/", "https://[]/"],
        *["https://1.2.3/", "https://1.2.3.4.5/", "https://256.1.1.1/", "https://1.2.3.0x4/", "https://a.1/", "https://0x/"],
        *["https://a.example/%", "https://a.example/%zz", 'https://a.example/"', "https://a.example/<", "https://a.example/{"],
        *["https://" + "a" * 64 + ".example/", "https://" + "a." * 127 + "example/", "https://a.b/" + "x" * 4000],
        *[None, 1, ["https://a.example"]],
    ],
)  # fmt: skip
def test_what_readers_could_disagree_about_is_no_url(url: object) -> None:
    with pytest.raises(Invalid) as refusal:
        read_target(url, "config.url")
    assert refusal.value.field == "config.url"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("example.com", "must start with https:// or http://"),
        ("https://b\u00fccher.example/", "xn--"),
        ("https://me:pw@a.example/", "send them in a header"),
        ("https:///path", "write https://host/path"),
        ("https://[fe80::1%25eth0]/", "without %"),
        ("https://ex%61mple.com/", "write the name itself"),
        ("https://a.example:/", "leave out the colon or give a port"),
        ("https://a.example:x/", "a number from 1 to 65535"),
        ("https://a.example:65536/", "ports are 1 to 65535"),
        ("https://[2606:4700::1]:x/", "a number from 1 to 65535"),
        ("https://a.example/100%", "write %25"),
        ("https://a.example/{id}", "percent-encode"),
        ("https://127.1/", "such as 192.0.2.1"),
        ("https://a..example/", "labels of 1 to 63"),
        ("https://xn--a.example/", "not the xn--… form"),
        ("https://" + "a" * 3000 + "/", "aaa…' is not a host name"),
        ("https://a.example/" + "x" * 4000, "at most 4,000 characters"),
    ],
)
def test_a_refusal_says_what_would_be_right(url: str, advice: str) -> None:
    with pytest.raises(Invalid) as refusal:
        read_target(url, "config.url")
    assert advice in refusal.value.message
    assert len(refusal.value.message) < 250


@pytest.mark.parametrize(
    "name",
    [
        "b\u00fccher",
        "\u4e2d\u56fd",
        "\u043f\u0440\u0438\u043c\u0435\u0440",
        "\U0001f4a9",
        "fa\u00df",
        "\u0646\u0627\u0645\u0647\u200c\u0627\u06cc",
    ],
)
def test_an_international_name_can_be_saved_in_its_ascii_form(name: str) -> None:
    label = "xn--" + name.encode("punycode").decode()
    assert read_target(f"https://{label}.example/", "url").host == f"{label}.example"


@pytest.mark.parametrize("name", ["ab\u202ec", "a\u200bb", "a\u00a0b", "a\u0085b"])
def test_an_international_name_has_no_invisible_characters(name: str) -> None:
    with pytest.raises(Invalid, match="xn--"):
        read_target(f"https://xn--{name.encode('punycode').decode()}.example/", "url")


@given(st.text(max_size=30), st.sampled_from(["", "http://", "https://", "https://8.8.8.8"]))
def test_reading_never_fails_otherwise_and_keeps_only_what_belongs_into_a_request(text: str, start: str) -> None:
    try:
        target = read_target(start + text, "url")
    except Invalid:
        return
    whole = f"{target.scheme}://{target.authority}{target.path}"
    assert read_target(whole, "url") == target
    assert whole.isascii()
    assert whole.isprintable()
    assert not set(whole) & set(" \\#@") or "@" in target.path


@pytest.mark.parametrize(
    "address",
    [
        *["0.0.0.0", "127.0.0.1", "127.255.255.255", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1"],
        *["100.64.0.1", "100.127.255.255", "169.254.1.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.19.255.255"],
        *["198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"],
        *["168.63.129.16", "169.254.169.254", "::", "::1", "::7f00:1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8"],
        *["64:ff9b::808:808", "64:ff9b:1::808:808", "100::1", "2001::1", "2001:2::1", "2001:10::1", "2001:db8::1"],
        *["2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1"],
        *["ff02::1", "ff0e::1", "4000::1", "e000::1"],
    ],
)
def test_an_address_that_is_not_public_is_refused_whoever_has_it(address: str) -> None:
    target = read_target("https://a.example/", "url")
    assert AllowList().objection_to(target, ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.32.0.1",
        "169.253.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "3ffe::1",
    ],
)
def test_a_public_address_is_not(address: str) -> None:
    assert AllowList().objection_to(read_target("https://a.example/", "url"), ip_address(address)) is None


@pytest.mark.parametrize(
    "name",
    ["localhost", "LOCALHOST.", "a.localhost", "db", "metadata", "metadata.google.internal.", "x.internal", "nas.local",
     "instance-data", "metadata.goog", "kubernetes.default.svc", "a.localdomain"],
)  # fmt: skip
def test_a_name_of_an_inner_network_is_refused_whatever_its_address(name: str) -> None:
    assert verdict(f"http://{name}/")


@pytest.mark.parametrize(
    ("url", "allow"),
    [
        ("http://127.0.0.1/", "127.0.0.1"),
        ("http://127.0.0.1/", "127.0.0.0/8"),
        ("https://127.0.0.1/", "127.0.0.0/8"),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "127.0.0.0/8:8080"),
        ("http://127.0.0.1:8080/", "127.0.0.1:*"),
        ("http://[::1]/", "::1"),
        ("http://[::1]/", "[::1]"),
        ("http://[fd00::1]:8080/", "[fd00::/8]:8080"),
        ("http://[fd00::1]/", "fd00::/8"),
        ("http://localhost/", "localhost"),
        ("http://LocalHost.:8080/", "LOCALHOST:8080"),
        ("http://example.com:5432/", "example.com:5432"),
        ("http://169.254.169.254/", "169.254.169.254"),
        ("http://metadata.google.internal/", "metadata.google.internal"),
    ],
)
def test_an_operator_can_open_a_target(url: str, allow: str) -> None:
    assert verdict(url)
    assert verdict(url, "192.0.2.7:99", allow) is None


@pytest.mark.parametrize(
    ("url", "allow"),
    [
        ("http://127.0.0.1:8080/", "127.0.0.1"),
        ("http://127.0.0.1/", "127.0.0.1:8080"),
        ("http://127.0.0.2/", "127.0.0.1"),
        ("http://[::ffff:127.0.0.1]/", "127.0.0.1"),
        ("http://localhost/", "127.0.0.1"),
        ("http://a.nas.local/", "nas.local"),
        ("http://nas.local.example.internal/", "nas.local"),
        ("http://example.com:22/", "example.com:5432"),
        ("http://example.com:22/", "example.com"),
        ("http://169.254.169.254/", "169.254.0.0/16"),
        ("http://[fd00:ec2::254]/", "fd00::/8"),
    ],
)
def test_no_more_is_open_than_was_opened(url: str, allow: str) -> None:
    assert verdict(url, allow)


def test_a_name_that_was_opened_may_lead_anywhere_but_to_the_metadata_of_a_cloud() -> None:
    target = read_target("http://nas.local:8080/", "url")
    allowed = AllowList(["nas.local:8080"])
    assert allowed.objection_to(target, ip_address("192.168.1.9")) is None
    assert allowed.objection_to(target, ip_address("169.254.169.254"))


@pytest.mark.parametrize(
    "address",
    ["::ffff:169.254.169.254", "::a9fe:a9fe", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:100.100.100.200"],
)
@pytest.mark.parametrize("allow", ["nas.local:8080", "[::/0]:8080"])
def test_nor_to_the_metadata_of_a_cloud_in_disguise(allow: str, address: str) -> None:
    target = read_target("http://nas.local:8080/", "url")
    assert AllowList([allow]).objection_to(target, ip_address("::ffff:192.168.1.9")) is None
    assert AllowList([allow]).objection_to(target, ip_address(address))
    by_address = AllowList(["nas.local:8080"]).by_address(lambda _: [address])
    assert by_address.objection_at(ip_address(address), 8080, OPEN_PORTS)


def test_a_network_that_was_opened_is_reached_by_names_too() -> None:
    target, allowed = read_target("http://a.example:8080/", "url"), AllowList(["10.0.0.0/8:8080"])
    assert allowed.objection(target) is None
    assert allowed.objection_to(target, ip_address("10.0.0.1")) is None
    assert allowed.objection_to(target, ip_address("192.168.0.1"))
    assert allowed.objection_to(target, PUBLIC) == "port 8080 is not open"


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0",
        "a b",
        "http://a",
        "a:b",
        "a:0",
        "a:65536",
        "[::1",
        "[a]",
        "a/8",
        "::1:",
    ],
)
def test_an_entry_that_opens_nothing_is_refused_by_name(entry: str) -> None:
    with pytest.raises(Invalid) as refusal:
        AllowList([entry])
    assert refusal.value.field == "ROTA_HTTP_ALLOW"
