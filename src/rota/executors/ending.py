"""How the end of a process reads in the ledger."""

import signal

from rota.errors import Invalid
from rota.executors.process import Ending, Exited, Killed, Unstarted, Vanished
from rota.model.outcome import ErrorClass, Failed

LONGEST = 500

_LIMITS = {signal.SIGXCPU: "over limits.cpu_seconds", signal.SIGXFSZ: "over limits.file_size"}


def failure(ending: Ending, program: str, last_words: str) -> Failed:
    """The outcome of a process that ended without success; `last_words` is the last line of its stderr."""
    match ending:
        case Exited(code):
            return Failed(ErrorClass.AGENT_ERROR, _with(f"exited with code {code}", last_words))
        case Killed(number):
            return Failed(ErrorClass.AGENT_ERROR, f"killed by signal {_signal_name(number)}")
        case Unstarted(reason, passing):
            return Failed(ErrorClass.EXECUTOR_ERROR, f"cannot start {program!r}: {reason}", retryable=passing)
        case Vanished():
            return Failed(ErrorClass.EXECUTOR_ERROR, f"nobody knows how {program!r} ended: its launcher was killed")


def misconfigured(mistake: Invalid) -> Failed:
    return Failed(ErrorClass.EXECUTOR_ERROR, f"{mistake.field}: {mistake.message}", retryable=False)


def unprepared(failure: OSError) -> Failed:
    """The machine is short of something, which may be otherwise next time."""
    return Failed(ErrorClass.EXECUTOR_ERROR, f"cannot prepare a process: {failure}")


def _with(fact: str, last_words: str) -> str:
    return f"{fact}: {last_words[:LONGEST]}" if last_words else fact


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number)
    except ValueError:
        return str(number)
    return _with(name.name, _LIMITS.get(name, ""))
