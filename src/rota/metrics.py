"""Counters and histograms for Prometheus, named with the project's verbs."""

from prometheus_client import Counter, Gauge, Histogram

_SPANS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

FIRED = Counter("rota_runs_fired", "Runs started by the scheduler")
SKIPPED = Counter("rota_runs_skipped", "Slots that did not run, by reason", ["reason"])
CLAIMED = Counter("rota_runs_claimed", "Attempts begun by this process", ["executor"])
SETTLED = Counter("rota_runs_settled", "Attempts ended by this process, by outcome", ["outcome"])
RESCUED = Counter("rota_runs_rescued", "Runs taken back from lost workers")
LATENESS = Histogram("rota_lateness_seconds", "Time from a slot to its run", buckets=_SPANS)
PICKUP = Histogram("rota_pickup_seconds", "Time from a run's being ready to its attempt's beginning", buckets=_SPANS)
DURATION = Histogram("rota_duration_seconds", "Running time of an attempt", ["executor"], buckets=_SPANS)
BUSY_PLACES = Gauge("rota_places_busy", "Places of this worker that are taken")
QUEUE_DEPTH = Gauge("rota_queue_depth", "Runs that were ready and waited for a place at the last snapshot")
