"""Every statement that changes a run's status, by how it changes. Only `rota.runs` may import it."""

from rota.db.run_status.cancelling import Asked, end_parked, request_cancel, request_end_of_grants
from rota.db.run_status.claiming import Unreadable, claim
from rota.db.run_status.ending import end_of_grants, end_of_session, end_queued, end_stuck, end_waiting_except
from rota.db.run_status.holding import hold, hold_in_paused, let_go, lock_live
from rota.db.run_status.lanes import free_lanes, hold_all, hold_lanes, promote
from rota.db.run_status.news import Ended
from rota.db.run_status.parking import end_expired, fail_parked, go_on, resume, wait
from rota.db.run_status.settling import LostLease, lease_ended, settle, settlement_row, succeed
from rota.db.run_status.starting import start

__all__ = (
    "Asked", "Ended", "LostLease", "Unreadable", "claim", "end_expired", "end_of_grants", "end_of_session",
    "end_parked", "end_queued", "end_stuck", "end_waiting_except", "fail_parked", "free_lanes", "go_on",
    "hold", "hold_all", "hold_in_paused", "hold_lanes", "lease_ended", "let_go", "lock_live", "promote",
    "request_cancel", "request_end_of_grants", "resume", "settle", "settlement_row", "start", "succeed",
    "wait",
)  # fmt: skip
