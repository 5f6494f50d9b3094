"""How long the parts of the house wait for each other: derived from the lease, and in order, or nothing starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from rota.errors import CannotStart

STOP_AT = 0.85  # of the lease: who could not renew by then stops its agents
KILL_WITHIN = 0.1  # of the lease, between TERM and KILL: together they end before the lease does
ASK_AGAIN = 1.2  # of that: who kills its agent in order is not hurried
ANSWER_WITHIN = 0.5  # of the lease: a statement that got no answer is given up while its worker can still renew
LONGEST_IDLE = timedelta(seconds=15)  # between two statements of a transaction: its locks keep others waiting
IDLE_WITHIN = 0.75  # of the answer's time-out: the server ends an idle transaction
LOCK_WITHIN = 0.75  # of it: the server gives up waiting for a lock
STATEMENT_WITHIN = 0.9  # of it: the server ends a statement, and only later does the client hang up
LONGEST_SILENCE = 86_400  # seconds: the longest span between keep-alives that systems accept
LONGEST_KILL = timedelta(seconds=4)  # so that a cancelled agent is gone within five seconds


def kill_after(lease: timedelta) -> timedelta:
    return min(LONGEST_KILL, lease * KILL_WITHIN)


def ask_again_after(lease: timedelta) -> timedelta:
    """An executor that did not end is asked again after so long, which is still before the lease ends."""
    return kill_after(lease) * ASK_AGAIN


def keepalives(answer: timedelta) -> dict[str, int]:
    """How TCP notices that the other side is gone, while nothing is sent and while data is unacknowledged. The names
    are those of libpq; the server's settings have the prefix `tcp_`."""
    silence = min(answer.total_seconds(), LONGEST_SILENCE)
    seconds = max(1, int(silence / 3))
    return {
        "keepalives_idle": seconds, "keepalives_interval": seconds, "keepalives_count": 2,
        "tcp_user_timeout": int(silence * 1000),
    }  # fmt: skip


def transaction_limits(answer: timedelta) -> dict[str, str]:
    """Settings with which the server bounds a transaction, whatever becomes of its client: a frozen or disconnected
    process keeps no row locked for longer than a lease."""
    idle = min(LONGEST_IDLE, answer * IDLE_WITHIN)
    spans = {
        "idle_in_transaction_session_timeout": idle,
        "lock_timeout": answer * LOCK_WITHIN,
        "statement_timeout": answer * STATEMENT_WITHIN,
    }
    return {name: f"{_milliseconds(span)}ms" for name, span in spans.items()}


def session_limits(answer: timedelta) -> dict[str, str]:
    """The same for a whole session, and how the server notices that its client is unreachable."""
    tcp = {name if name.startswith("tcp_") else f"tcp_{name}": str(value) for name, value in keepalives(answer).items()}
    return {**transaction_limits(answer), **tcp}


def _milliseconds(span: timedelta) -> int:
    return max(1, min(int(span / timedelta(milliseconds=1)), LONGEST_SILENCE * 1000))


@dataclass(frozen=True, slots=True)
class Timeouts:
    """What an operator sets, and what follows from it. A run's own `timeout` ends an attempt; these end a silence."""

    lease: timedelta
    heartbeat: timedelta
    rescue: timedelta
    missed: int

    @property
    def dead(self) -> timedelta:
        """A worker not heard of for so long counts as dead."""
        return self.heartbeat * (self.missed + 1)

    @property
    def answer(self) -> timedelta:
        """A connection on which the database says nothing for so long is hung up."""
        return self.lease * ANSWER_WITHIN

    @property
    def stop(self) -> timedelta:
        """A worker that could not renew for so long stops its agents."""
        return self.lease * STOP_AT

    @property
    def kill(self) -> timedelta:
        """An agent that was asked to end is killed after so long."""
        return kill_after(self.lease)

    def check(self) -> None:
        """Refuse spans that would contradict each other."""
        for holds, variable, told in self._rules():
            if not holds:
                raise CannotStart(told, code="invalid_setting", field=variable)
        assert self.heartbeat <= self.answer < self.stop < self.stop + self.kill < self.lease
        assert self.stop + ask_again_after(self.lease) < self.lease

    def _rules(self) -> Iterator[tuple[bool, str, str]]:
        yield (
            self.heartbeat * 2 <= self.lease,
            "ROTA_LEASE_SECONDS",
            (
                f"ROTA_LEASE_SECONDS is {_seconds(self.lease)}; it must be at least {_seconds(self.heartbeat * 2)}, "
                "twice ROTA_HEARTBEAT_SECONDS, or leases end between heartbeats."
            ),
        )
        yield (
            self.rescue <= self.lease,
            "ROTA_RESCUE_SECONDS",
            (
                f"ROTA_RESCUE_SECONDS is {_seconds(self.rescue)}; it must be at most {_seconds(self.lease)}, "
                "as ROTA_LEASE_SECONDS, or lost runs wait longer for somebody to look than for their lease to end."
            ),
        )
        most = (self.lease + self.rescue) // self.heartbeat - 1
        yield (
            self.dead <= self.lease + self.rescue,
            "ROTA_DEAD_AFTER",
            (
                f"ROTA_DEAD_AFTER is {self.missed}; it must be at most {most}, or a worker would be shown as alive "
                "after its runs were taken from it: ROTA_HEARTBEAT_SECONDS times one more than it must be at most "
                "ROTA_LEASE_SECONDS and ROTA_RESCUE_SECONDS together."
            ),
        )


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.12g}"
