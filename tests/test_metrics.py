"""Histograms that count when somebody asks tell the same as those that count at once."""

from prometheus_client import CollectorRegistry, Histogram

from rota.metrics import Spans

SEEN = [0.0, 0.0005, 0.001, 0.0011, 0.2, 1.0, 59.9, 4000.0]
BOUNDS = (0.001, 0.1, 1, 60)


def told(kind: type[Histogram], labels: tuple[str, ...], *, times: int = 1) -> list[tuple[str, dict[str, str], float]]:
    registry = CollectorRegistry()
    metric = kind("spans", "How long.", labels, buckets=BOUNDS, registry=registry)
    child = metric.labels(*labels) if labels else metric
    for _ in range(times):
        for each in SEEN:
            child.observe(each)
    for _ in range(2):  # asking changes nothing
        [found] = registry.collect()
    return [
        (each.name, each.labels, round(each.value, 3)) for each in found.samples if not each.name.endswith("_created")
    ]


def test_what_was_noted_is_counted_when_it_is_asked_for() -> None:
    for labels in ((), ("executor",)):
        assert told(Spans, labels) == told(Histogram, labels)


def test_no_more_is_noted_than_fits() -> None:
    times = 3 * Spans._MOST_NOTED // len(SEEN)
    assert told(Spans, (), times=times) == told(Histogram, (), times=times)
