"""The tools: each names the route of the API that carries it out, and says to a model what it is good for."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rota.model import scope
from rota.model.scope import Scope


class Effect(Enum):
    """What a call does to what is there: whether it only reads, ends or replaces something, and whether a second call
    with the same arguments does nothing more."""

    READS = (True, False, True)
    ADDS = (False, False, False)
    SETS = (False, False, True)
    ENDS = (False, True, True)

    def hints(self) -> dict[str, bool]:
        return dict(zip(("readOnlyHint", "destructiveHint", "idempotentHint"), self.value, strict=True))


READS, ADDS, SETS, ENDS = Effect


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    route: str
    effect: Effect
    description: str
    example: dict[str, Any] = field(default_factory=dict)
    body: str = ""  # which one, where the route takes several forms

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """Within the workspace."""
        return self.route.partition(" ")[2]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def needs(self) -> Scope:
        return scope.needed(self.method, self.path)


INSTRUCTIONS = """\
Rota is a duty roster for AI agents. An agent is who works. An automation is a saved prompt for an agent with \
triggers: a schedule, a webhook, an event, or the end of another automation. Each time one fires there is a run; a \
run that was skipped is in the list too, with its reason. A run works in a session, which holds everything that was \
said.
Look before you change: `list_automations`, `list_runs`, `read_transcript`. Before you save a schedule, show the \
person what `preview_schedule` says. Starting something returns at once, with a run that is `queued`: look at it \
again with `get_run`, and at its words with `read_transcript`. Automations and agents are named by id or slug, \
everything else by id. Lists give `next_cursor` while there is more; pass it as `cursor`. If you are not sure \
whether a call arrived, make it again with the same `idempotency_key`: it is done once."""

ID = "01a1e0db-2cd9-7826-809d-0931e0e98709"
WEEKDAYS = {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}

TOOLS = (
    # Automations
    Tool("list_automations", "GET /automations", READS,
         "List the saved automations, newest first, with their schedule in words, status, next fires and last run. "
         "Use it first, to find what is there and its slug.",
         {"limit": 10}),
    Tool("get_automation", "GET /automations/{automation}", READS,
         "Show one automation in full: prompt, triggers, policies, next three fires, last run, and why its slots "
         "are skipped if they are.",
         {"automation": "morning-digest"}),
    Tool("create_automation", "POST /automations", ADDS,
         "Save a prompt for an agent with a schedule or other triggers, so that Rota runs it then, again and again."
         " Needs an agent that exists (`list_agents`). Leave `schedule` out for one that is only run by hand. For a"
         " single task right now, `run_agent` is better.",
         {"name": "Morning digest", "agent": "digest", "prompt": "Summarise my inbox", "schedule": WEEKDAYS}),
    Tool("update_automation", "PATCH /automations/{automation}", ENDS,
         "Change an automation: only the fields you give are changed, but `schedule` or `triggers` replace all "
         "triggers it has. Runs already fired keep what they were fired with.",
         {"automation": "morning-digest", "schedule": {"every": "2h"}}),
    Tool("pause_automation", "POST /automations/{automation}/pause", ENDS,
         "Stop an automation from firing until it is resumed. Runs that wait are skipped; what runs finishes.",
         {"automation": "morning-digest"}),
    Tool("resume_automation", "POST /automations/{automation}/resume", SETS,
         "Let a paused automation fire again, counting from now.",
         {"automation": "morning-digest"}),
    Tool("delete_automation", "DELETE /automations/{automation}", ENDS,
         "Delete an automation: it fires no more. Its history stays readable, and `restore_automation` takes it "
         "back.",
         {"automation": "morning-digest"}),
    Tool("restore_automation", "POST /automations/{automation}/restore", SETS,
         "Take back the deletion of an automation, by its id (`list_automations` with `deleted` shows it). The next"
         " fire counts from now.",
         {"automation": ID}),
    Tool("run_automation", "POST /automations/{automation}/run", ADDS,
         "Run an automation now, also while it is paused; its schedule is not touched. Returns the run, which is "
         "queued. Refused with the run's id while one waits already.",
         {"automation": "morning-digest"}),
    Tool("preview_schedule", "POST /automations/preview", READS,
         "Say what a schedule would do before it is saved: in words, its next fires in UTC and in its own zone, and"
         " warnings about daylight saving. Saves nothing.",
         {"schedule": WEEKDAYS, "count": 3}),
    # Runs
    Tool("list_runs", "GET /runs", READS,
         "List runs, newest first; of one automation, of one session or with one status. Use it to see what ran, "
         "what failed and what was skipped and why.",
         {"status": "failed", "limit": 10}),
    Tool("get_run", "GET /runs/{run_id}", READS,
         "Show one run with the story of each attempt: when it began and ended, on which worker, its error or its "
         "summary, and what it used. Use it to wait for a run: ask again until `finished_at` is set.",
         {"run_id": ID}),
    Tool("cancel_run", "POST /runs/{run_id}/cancel", ENDS,
         "Cancel a run that has not ended. One that is at work is stopped by its worker, which takes a moment.",
         {"run_id": ID}),
    Tool("retry_run", "POST /runs/{run_id}/retry", ADDS,
         "Start a new run in place of one that failed, was cancelled or was skipped. The old one stays in the list.",
         {"run_id": ID, "idempotency_key": "retry-1"}),
    # Agents
    Tool("list_agents", "GET /agents", READS,
         "List the agents: who can be given work, what kind each is and whether it is active.",
         {"limit": 10}),
    Tool("get_agent", "GET /agents/{agent}", READS,
         "Show one agent with its configuration and instructions.",
         {"agent": "digest"}),
    Tool("list_executors", "GET /executors", READS,
         "List the kinds of agents, what each runs and needs, with an agent of that kind to begin with, and whether"
         " a worker serves it. Use it before `create_agent`.",
         {}),
    Tool("create_agent", "POST /agents", ADDS,
         "Save a new agent. `executor` is its kind and `config` is what that kind needs: `list_executors` shows "
         "both. For admins.",
         {"name": "Poet", "executor": "command", "config": {"argv": ["sh", "-c", "read topic; echo On $topic"]}}),
    Tool("run_agent", "POST /agents/{agent}/runs", ADDS,
         "Give an agent one task now, in a session of its own, without saving an automation. Returns the run, which"
         " is queued.",
         {"agent": "digest", "prompt": "Summarise the news of today"}),
    # Sessions
    Tool("list_sessions", "GET /sessions", READS,
         "List sessions, newest first. Each holds the conversation of a run or of several; `kind` interactive are "
         "chats.",
         {"kind": "interactive", "limit": 10}),
    Tool("get_session", "GET /sessions/{session_id}", READS,
         "Show one session: its kind, title, status and goal.",
         {"session_id": ID}),
    Tool("open_session", "POST /sessions", ADDS,
         "Open a conversation with an `agent`, with a first `prompt`; or, with `kind` background, give several "
         "agents a `goal` with `roles` and `tasks` that may depend on each other.",
         {"agent": "digest", "prompt": "What happened today?"}),
    Tool("read_transcript", "GET /sessions/{session_id}/transcript", READS,
         "Read what was said in a session, as a conversation, oldest first. `limit` counts events, of which several"
         " may be one line. Use it to see what an agent answered.",
         {"session_id": ID, "limit": 50}),
    Tool("read_session_events", "GET /sessions/{session_id}/events", READS,
         "Read the log of a session event by event, oldest first, with every detail of tools, tasks and messages. "
         "`after` gives only what is newer than that number. `read_transcript` is shorter.",
         {"session_id": ID, "after": 120, "limit": 50}),
    Tool("follow_up", "POST /sessions/{session_id}/messages", ADDS,
         "Say something more to the agent of a session. It becomes a run, which sees all that was said before.",
         {"session_id": ID, "prompt": "And what of last week?"}, body="TurnIn"),
    Tool("send_message", "POST /sessions/{session_id}/messages", ADDS,
         "Leave a message for one role of a session in which several agents work, or for all of them. It starts no "
         "run; they find it in their inbox.",
         {"session_id": ID, "to": "planner", "body": "The deadline has moved to Friday."}, body="MessageIn"),
    Tool("list_artifacts", "GET /sessions/{session_id}/artifacts", READS,
         "List what agents left behind in a session: files, and links to things outside.",
         {"session_id": ID}),
    # What waits for people, and what happens outside
    Tool("list_approvals", "GET /approvals", READS,
         "List what agents have asked and wait for, with the options they give. `status` pending are those that "
         "wait.",
         {"status": "pending"}),
    Tool("answer_approval", "POST /approvals/{approval_id}", ENDS,
         "Answer an agent's question, for good; its run goes on with the answer. Answer only what the person you "
         "work for has decided: the agent asks because it must not decide alone.",
         {"approval_id": ID, "answer": "approve", "text": "Go ahead, but not on Sunday."}),
    Tool("post_event", "POST /events", ADDS,
         "Tell Rota that something happened: every automation with a trigger for this event runs, with `data` as "
         "its payload. Returns the runs.",
         {"event": "invoice.paid", "data": {"number": 17}, "key": "invoice-17"}),
    # The house
    Tool("get_workspace", "GET", READS,
         "Show the workspace: its name, zone and limits, and whether all its automations are paused, by whom and why.",
         {}),
    Tool("pause_workspace", "POST /pause", ENDS,
         "Pause all automations of the workspace, with a `reason` that everybody sees: no schedule, webhook or event "
         "starts a run until it is resumed, or until the end that `until` or `lasts` sets. Runs that wait are skipped; "
         "what runs finishes. For admins.",
         {"reason": "The database is being moved", "lasts": "2h"}),
    Tool("resume_workspace", "POST /resume", SETS,
         "Let all automations of a paused workspace fire again, counting from now. For admins.",
         {}),
    Tool("list_workers", "GET /workers", READS,
         "List the workers that run agents, whether they are alive, and what they are at. Use it when runs stay "
         "queued.",
         {}),
    Tool("get_usage", "GET /usage", READS,
         "Show what was spent in tokens, money and time, by day and automation; the last 30 days unless told.",
         {"since": "2026-06-01", "until": "2026-06-30"}),
    Tool("get_forecast", "GET /usage/forecast", READS,
         "Estimate what this month will cost, from what is spent and what the schedules will still fire.",
         {}),
)  # fmt: skip

BY_NAME = {tool.name: tool for tool in TOOLS}
