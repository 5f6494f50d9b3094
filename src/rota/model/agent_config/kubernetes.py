"""What the configuration of an agent that runs as a Kubernetes Job may say, and what holds where it says nothing."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from rota.errors import Invalid
from rota.model import config_fields as reading
from rota.model.config_fields import OUTPUT_LIMIT, Fields, did_you_mean
from rota.model.duration import parse_duration

NOBODY = 65532  # the user of images that are made to run without root; it owns nothing on the node
START_TIMEOUT = timedelta(minutes=10)
KEEP = timedelta(minutes=10)
LONGEST_KEEP = timedelta(days=7)
HIGHEST_USER = 2**31 - 1
MOST = 50
REQUESTS = {"cpu": "250m", "memory": "256Mi", "ephemeral-storage": "256Mi"}
LIMITS = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"}
OURS = "rota/"

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,499}")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_ZERO = re.compile(r"0+[smhd]?")
_SCALE = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)},
}
_KNOWN = (
    "image image_pull_policy image_pull_secrets command args env working_dir resources run_as_user run_as_group "
    "fs_group read_only_root service_account service_account_token node_selector tolerations priority_class "
    "runtime_class labels annotations start_timeout keep_finished output_limit success_exit_codes"
)
_NOT_HERE = {
    "privileged": "an agent's container never has more rights than its user; a privileged one is not offered",
    "namespace": "the operator chooses the namespace, by ROTA_KUBERNETES_NAMESPACE",
    "stdin": "a pod has no standard input; the prompt is a file, at ROTA_PROMPT_FILE",
    "limits": "say it as resources.limits",
    "timeout": "a run's timeout is the automation's; it becomes the Job's deadline",
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str | None
    operator: str
    value: str | None
    effect: str | None
    seconds: int | None


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    image: str
    image_pull_policy: str | None
    image_pull_secrets: tuple[str, ...]
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str | None
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    run_as_user: int
    run_as_group: int
    fs_group: int
    read_only_root: bool
    service_account: str | None
    service_account_token: bool
    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    priority_class: str | None
    runtime_class: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    start_timeout: timedelta
    keep_finished: timedelta
    output_limit: int
    success_exit_codes: frozenset[int]


def read_kubernetes(config: Mapping[str, Any]) -> KubernetesConfig:
    for name in reading.read_object(config, "config"):
        if name in _NOT_HERE:
            raise Invalid(_NOT_HERE[name], field=f"config.{name}")
    fields = Fields(config, _KNOWN)
    requests, limits = fields.read("resources", _resources) or _resources({}, "config.resources")
    user = reading.otherwise(fields.read("run_as_user", _user), NOBODY)
    group = reading.otherwise(fields.read("run_as_group", _user), user)
    return KubernetesConfig(
        image=_image(config.get("image"), "config.image"),
        image_pull_policy=fields.read("image_pull_policy", _one_of("Always", "IfNotPresent", "Never")),
        image_pull_secrets=fields.read("image_pull_secrets", _dns_names) or (),
        command=fields.read("command", reading.read_argv) or (),
        args=fields.read("args", reading.read_texts) or (),
        env=fields.read("env", reading.read_env) or {},
        working_dir=fields.read("working_dir", reading.read_absolute),
        requests=requests,
        limits=limits,
        run_as_user=user,
        run_as_group=group,
        fs_group=reading.otherwise(fields.read("fs_group", _user), group),
        read_only_root=reading.otherwise(fields.read("read_only_root", _flag), True),
        service_account=fields.read("service_account", _dns_name),
        service_account_token=reading.otherwise(fields.read("service_account_token", _flag), False),
        node_selector=fields.read("node_selector", _labels) or {},
        tolerations=fields.read("tolerations", _tolerations) or (),
        priority_class=fields.read("priority_class", _dns_name),
        runtime_class=fields.read("runtime_class", _dns_name),
        labels=fields.read("labels", _own_labels) or {},
        annotations=fields.read("annotations", _annotations) or {},
        start_timeout=fields.read("start_timeout", reading.read_wait) or START_TIMEOUT,
        keep_finished=reading.otherwise(fields.read("keep_finished", _keep), KEEP),
        output_limit=reading.otherwise(fields.read("output_limit", reading.read_size), OUTPUT_LIMIT),
        success_exit_codes=fields.read("success_exit_codes", reading.read_exit_codes) or frozenset({0}),
    )


def check_kubernetes(config: Mapping[str, Any]) -> list[str]:
    """Warnings, for what is allowed and seldom meant."""
    read = read_kubernetes(config)
    return [*reading.open_secrets(read.env), *_loose_image(read), *_token(read)]


def _loose_image(config: KubernetesConfig) -> list[str]:
    last = config.image.rpartition("/")[2]
    if "@" in last or (":" in last and not last.endswith(":latest")):
        return []
    return ["config.image: names no version, so that two runs may run different programs; add a tag or a digest"]


def _token(config: KubernetesConfig) -> list[str]:
    if not config.service_account_token:
        return []
    return ["config.service_account_token: the agent can do at the cluster's API all that its service account may"]


def _image(value: object, at: str) -> str:
    if not isinstance(value, str) or not _IMAGE.fullmatch(value):
        raise Invalid("must name an image, such as registry.example/team/agent:1.4", field=at)
    return value


def _one_of(*choices: str) -> Callable[[Any, str], str]:
    def read(value: object, at: str) -> str:
        if value not in choices:
            raise Invalid(f"{value!r} is unknown{did_you_mean(str(value), choices)}", field=at)
        return str(value)

    return read


def _flag(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid("must be true or false", field=at)
    return value


def _user(value: object, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= HIGHEST_USER:
        raise Invalid(f"must be a number from 1 to {HIGHEST_USER}; 0 is root, which no agent runs as", field=at)
    return value


def _dns_name(value: object, at: str) -> str:
    if not isinstance(value, str) or not _DNS_NAME.fullmatch(value):
        raise Invalid("must be a name of Kubernetes: small letters, digits, '-' and '.'", field=at)
    return value


def _each(value: object, at: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST:
        raise Invalid(f"must be a list of at most {MOST}", field=at)
    return tuple(read(each, f"{at}[{number}]") for number, each in enumerate(value))


def _dns_names(value: object, at: str) -> tuple[str, ...]:
    return _each(value, at, _dns_name)


def _labels(value: object, at: str) -> dict[str, str]:
    labels = {_label_name(name, at): text for name, text in reading.read_object(value, at).items()}
    for name, text in labels.items():
        if not isinstance(text, str) or not _LABEL_VALUE.fullmatch(text):
            raise Invalid(
                "must be up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
                field=f"{at}.{name}",
            )
    return labels


def _label_name(name: str, at: str) -> str:
    if not _LABEL_NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is not a name such as team or example.com/team", field=at)
    return name


def _own_labels(value: object, at: str) -> dict[str, str]:
    return _not_reserved(_labels(value, at), at)


def _annotations(value: object, at: str) -> dict[str, str]:
    named = {
        _label_name(name, at): reading.read_text(text, f"{at}.{name}")
        for name, text in reading.read_object(value, at).items()
    }
    return _not_reserved(named, at)


def _not_reserved(named: dict[str, str], at: str) -> dict[str, str]:
    for name in named:
        prefix = name.rpartition("/")[0]
        if name.startswith(OURS) or prefix.endswith(("kubernetes.io", "k8s.io")):
            raise Invalid(
                "names under rota/, kubernetes.io/ and k8s.io/ are not an agent's to set", field=f"{at}.{name}"
            )
    return named


def _resources(value: object, at: str) -> tuple[dict[str, str], dict[str, str]]:
    """Requests and limits. What is not said is the default, but a default never contradicts what is said."""
    fields = Fields(value, "requests limits", at)
    asked, limits = fields.read("requests", _quantities) or {}, fields.read("limits", _quantities) or {}
    for name, text in asked.items():
        if name in limits and _amount(text) > _amount(limits[name]):
            raise Invalid(f"is more than limits.{name}, {limits[name]}", field=f"{at}.requests.{name}")
    all_limits = {name: _larger(text, asked.get(name)) for name, text in LIMITS.items()} | limits
    all_requests = {name: _smaller(text, limits.get(name)) for name, text in REQUESTS.items()} | asked
    return all_requests, all_limits


def _quantities(value: object, at: str) -> dict[str, str]:
    named = {_label_name(name, at): text for name, text in reading.read_object(value, at).items()}
    return {name: _quantity(text, f"{at}.{name}") for name, text in named.items()}


def _quantity(value: object, at: str) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text) or _amount(text) <= 0:
        raise Invalid("must be a quantity of Kubernetes, such as 500m, 2 or 512Mi", field=at)
    return text


def _amount(quantity: str) -> float:
    match = _QUANTITY.fullmatch(quantity)
    assert match
    return float(match[1]) * _SCALE[match[2] or ""]


def _larger(one: str, other: str | None) -> str:
    return one if other is None or _amount(one) >= _amount(other) else other


def _smaller(one: str, other: str | None) -> str:
    return one if other is None or _amount(one) <= _amount(other) else other


def _tolerations(value: object, at: str) -> tuple[Toleration, ...]:
    return _each(value, at, _toleration)


def _toleration(value: object, at: str) -> Toleration:
    fields = Fields(value, "key operator value effect seconds", at)
    operator = fields.read("operator", _one_of("Equal", "Exists")) or "Equal"
    key, text = fields.read("key", _label_name), fields.read("value", reading.read_text)
    if operator == "Exists":
        fields.none_of("value", because="with the operator Exists there is no value")
    elif key is None:
        raise Invalid("needs a key, unless its operator is Exists", field=f"{at}.key")
    return Toleration(
        key=key,
        operator=operator,
        value=text,
        effect=fields.read("effect", _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")),
        seconds=fields.read("seconds", reading.read_count),
    )


def _keep(value: object, at: str) -> timedelta:
    if (value == 0 and not isinstance(value, bool)) or (isinstance(value, str) and _ZERO.fullmatch(value.strip())):
        return timedelta()
    seconds = isinstance(value, int | float) and not isinstance(value, bool)
    keep = parse_duration(f"{value}s" if seconds else str(value), field=at)
    if keep > LONGEST_KEEP:
        raise Invalid("must be at most 7 days", field=at)
    return keep
