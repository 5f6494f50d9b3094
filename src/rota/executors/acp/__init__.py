"""The kind `acp`: any agent that speaks the Agent Client Protocol over its standard streams."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

from rota.errors import Invalid
from rota.executors.briefing import ALLOWED, environment, prepare_directory
from rota.executors.ending import misconfigured, unprepared
from rota.executors.process import GRACE, Spec, start
from rota.model import agent_config
from rota.model.agent_config import fill_server, read_acp
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome

LONGEST_POLITENESS = timedelta(seconds=2)


class AcpExecutor:
    """The end of a turn is the explicit completion; a process that merely ends has not completed."""

    kind = "acp"
    resumes = True

    def __init__(self, *, grace: timedelta = GRACE, allowed: Sequence[str] = ALLOWED) -> None:
        self._allowed = allowed
        # A turn is first cancelled in the protocol's own way; both ways together take no longer than the grace.
        self._politeness = min(grace / 2, LONGEST_POLITENESS)
        self._grace = grace - self._politeness

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config, which=shutil.which)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            config = read_acp(assignment.config)
            servers = [
                fill_server(server, assignment.environment, f"config.mcp_servers[{number}]")
                for number, server in enumerate(config.mcp_servers)
            ]
            attempts = await asyncio.to_thread(_attempts)
            prepare_directory(assignment)
            env = environment(assignment, config.env, self._allowed)
            spec = Spec(config.argv, env, assignment.directory.resolve(), config.limits, self._grace)
            program = start(spec)
        except Invalid as mistake:
            return misconfigured(mistake)
        except OSError as shortage:
            return unprepared(shortage)
        attempt = attempts.Attempt(assignment, config, desk, spec, servers=servers, politeness=self._politeness)
        outcome: Outcome = await attempt.attend(program)
        return outcome

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing: the agent dies with its worker."""


def _attempts() -> ModuleType:
    """What needs the protocol's library, which takes a second to import: when an agent runs, and not on the loop."""
    try:
        return import_module("rota.executors.acp.attempt")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "acp":
            raise
        raise Invalid(agent_config.missing_extra("acp"), field="executor") from missing
