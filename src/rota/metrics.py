"""Counters and histograms for Prometheus, named with the project's verbs."""

from bisect import bisect_left
from collections import Counter as Counted
from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.samples import Sample


class Spans(Histogram):
    """What a busy worker observes thousands of times a second is only noted, and counted when somebody asks."""

    _MOST_NOTED = 10_000

    def _metric_init(self) -> None:
        super()._metric_init()
        self._noted: list[float] = []

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        if exemplar:
            super().observe(amount, exemplar)
        else:
            self._noted.append(amount)
            if len(self._noted) >= self._MOST_NOTED:
                self._count()

    def _count(self) -> None:
        noted, self._noted = self._noted, []
        self._sum.inc(sum(noted))
        for bucket, count in Counted(bisect_left(self._upper_bounds, each) for each in noted).items():
            self._buckets[bucket].inc(count)

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return super()._child_samples()


_SPANS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

FIRED = Counter("rota_runs_fired", "Runs started by the scheduler")
SKIPPED = Counter("rota_runs_skipped", "Slots that did not run, by reason", ["reason"])
CLAIMED = Counter("rota_runs_claimed", "Attempts begun by this process", ["executor"])
SETTLED = Counter("rota_runs_settled", "Attempts ended by this process, by outcome", ["outcome"])
RESCUED = Counter("rota_runs_rescued", "Runs taken back from lost workers")
LATENESS = Spans("rota_lateness_seconds", "Time from a slot to its run", buckets=_SPANS)
PICKUP = Spans("rota_pickup_seconds", "Time from a run's being ready to its attempt's beginning", buckets=_SPANS)
DURATION = Spans("rota_duration_seconds", "Running time of an attempt", ["executor"], buckets=_SPANS)
BUSY_PLACES = Gauge("rota_places_busy", "Places of this worker that are taken")
QUEUE_DEPTH = Gauge("rota_queue_depth", "Runs that were ready and waited for a place at the last snapshot")
OVERDUE_TRIGGERS = Gauge("rota_triggers_overdue", "Triggers due for more than a minute at the last snapshot")
