-- Why: the first schema. Later migrations add tables and columns; none should have to move one.
-- Locks: none that matter, every table is new.

-- Who -----------------------------------------------------------------------------------------------------------------

CREATE TABLE workspaces (
    id               uuid PRIMARY KEY,
    slug             text NOT NULL UNIQUE CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name             text NOT NULL,
    timezone         text NOT NULL DEFAULT 'UTC',
    minimum_interval interval,
    max_concurrent   integer CHECK (max_concurrent > 0),
    created_at       timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
    id            uuid PRIMARY KEY,
    name          text NOT NULL,
    email         text UNIQUE,
    password_hash text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    disabled_at   timestamptz
);

CREATE TABLE members (
    workspace_id uuid NOT NULL REFERENCES workspaces,
    user_id      uuid NOT NULL REFERENCES users,
    level        text NOT NULL CHECK (level IN ('viewer', 'member', 'admin')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, user_id)
);
CREATE INDEX members_of_user ON members (user_id);

-- API tokens, browser logins and one-time links: only the SHA-256 of each secret is kept.
CREATE TABLE tokens (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    user_id      uuid NOT NULL,
    name         text NOT NULL,
    secret_hash  bytea NOT NULL UNIQUE,
    scopes       text[] NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, user_id) REFERENCES members
);

CREATE TABLE logins (
    secret_hash  bytea PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);
CREATE INDEX logins_of_user ON logins (user_id);

CREATE TABLE sign_in_links (
    secret_hash bytea PRIMARY KEY,
    user_id     uuid NOT NULL REFERENCES users,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL
);

-- Authority and money -------------------------------------------------------------------------------------------------

CREATE TABLE accounts (
    workspace_id uuid NOT NULL REFERENCES workspaces,
    id           uuid NOT NULL,
    name         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, id)
);

CREATE TABLE grants (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL,
    user_id      uuid NOT NULL,
    account_id   uuid NOT NULL,
    scopes       text[] NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, user_id) REFERENCES members,
    FOREIGN KEY (workspace_id, account_id) REFERENCES accounts
);
CREATE INDEX grants_of_user ON grants (workspace_id, user_id);

-- What and when -------------------------------------------------------------------------------------------------------

CREATE TABLE agents (
    workspace_id   uuid NOT NULL REFERENCES workspaces,
    id             uuid NOT NULL,
    slug           text NOT NULL,
    name           text NOT NULL,
    executor       text NOT NULL,
    config         jsonb NOT NULL,
    instructions   text NOT NULL DEFAULT '',
    pool           text NOT NULL DEFAULT 'default',
    max_concurrent integer CHECK (max_concurrent > 0),
    status         text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused')),
    revision       integer NOT NULL DEFAULT 1,
    created_by     uuid NOT NULL REFERENCES users,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz,
    PRIMARY KEY (workspace_id, id)
);
CREATE INDEX agents_capped ON agents (workspace_id, id) WHERE max_concurrent IS NOT NULL;
CREATE UNIQUE INDEX agents_slug ON agents (workspace_id, slug) WHERE deleted_at IS NULL;

CREATE TABLE automations (
    workspace_id         uuid NOT NULL REFERENCES workspaces,
    id                   uuid NOT NULL,
    slug                 text NOT NULL,
    name                 text NOT NULL,
    agent_id             uuid NOT NULL,
    owner_id             uuid NOT NULL REFERENCES users,
    grant_id             uuid NOT NULL,
    revision             integer NOT NULL DEFAULT 1,
    status               text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused')),
    paused_reason        text,
    prompt               text,
    input                jsonb,
    session              text NOT NULL DEFAULT 'new' CHECK (session IN ('new', 'same')),
    session_id           uuid,
    overlap              text CHECK (overlap IN ('skip', 'queue_one', 'queue_all', 'allow', 'replace')),
    catch_up             text NOT NULL DEFAULT 'one' CHECK (catch_up IN ('one', 'skip', 'all')),
    catch_up_limit       integer CHECK (catch_up_limit > 0),
    late_after           interval NOT NULL DEFAULT '60 seconds',
    max_attempts         integer NOT NULL DEFAULT 1 CHECK (max_attempts > 0),
    max_rescues          integer NOT NULL DEFAULT 2 CHECK (max_rescues >= 0),
    timeout              interval NOT NULL DEFAULT '1 hour',
    start_within         interval NOT NULL DEFAULT '15 minutes',
    approval_expires     interval NOT NULL DEFAULT '24 hours',
    pause_after_failures integer CHECK (pause_after_failures > 0),
    failures             integer NOT NULL DEFAULT 0,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    deleted_at           timestamptz,
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, agent_id) REFERENCES agents,
    FOREIGN KEY (workspace_id, grant_id) REFERENCES grants,
    CHECK (prompt IS NOT NULL OR input IS NOT NULL),
    CHECK (catch_up <> 'all' OR catch_up_limit IS NOT NULL)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX automations_slug ON automations (workspace_id, slug) WHERE deleted_at IS NULL;
CREATE INDEX automations_of_agent ON automations (workspace_id, agent_id);

-- The immutable specification of an automation, or of an agent for runs without one, as it was saved.
CREATE TABLE revisions (
    workspace_id uuid NOT NULL REFERENCES workspaces,
    subject_id   uuid NOT NULL,
    revision     integer NOT NULL,
    spec         jsonb NOT NULL,
    created_by   uuid NOT NULL REFERENCES users,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, subject_id, revision)
);

CREATE TABLE triggers (
    workspace_id        uuid NOT NULL,
    id                  uuid NOT NULL,
    automation_id       uuid NOT NULL,
    kind                text NOT NULL CHECK (kind IN ('cron', 'every', 'at', 'webhook', 'event', 'after')),
    cron                text,
    every               interval,
    time_of_day         time,
    at                  timestamptz,
    timezone            text NOT NULL,
    event               text,
    after_automation_id uuid,
    after_on            text[],
    editor_mode         text CHECK (editor_mode IN ('interval', 'weekly', 'advanced')),
    editor              jsonb,
    overlap             text CHECK (overlap IN ('skip', 'queue_one', 'queue_all', 'allow', 'replace')),
    anchor_at           timestamptz NOT NULL,
    starts_at           timestamptz,
    ends_at             timestamptz,
    max_fires           integer CHECK (max_fires > 0),
    fires               integer NOT NULL DEFAULT 0,
    jitter              interval,
    enabled             boolean NOT NULL DEFAULT true,
    next_fire_at        timestamptz,
    parked_error        text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, automation_id) REFERENCES automations,
    FOREIGN KEY (workspace_id, after_automation_id) REFERENCES automations,
    CHECK ((kind = 'cron') = (cron IS NOT NULL)),
    CHECK ((kind = 'every') = (every IS NOT NULL)),
    CHECK ((kind = 'at') = (at IS NOT NULL)),
    CHECK ((kind = 'event') = (event IS NOT NULL)),
    CHECK ((kind = 'after') = (after_automation_id IS NOT NULL))
) WITH (fillfactor = 80);
-- The only thing the scheduler looks for.
CREATE INDEX triggers_due ON triggers (next_fire_at) WHERE next_fire_at IS NOT NULL;
CREATE INDEX triggers_of_automation ON triggers (workspace_id, automation_id);
CREATE UNIQUE INDEX triggers_webhook ON triggers (id) WHERE kind = 'webhook';
CREATE INDEX triggers_of_event ON triggers (workspace_id, event) WHERE kind = 'event';
CREATE INDEX triggers_after ON triggers (workspace_id, after_automation_id) WHERE kind = 'after';

-- Triggers have no column that could hold a secret: what a webhook is signed with is here, sealed by the vault.
CREATE TABLE webhook_secrets (
    workspace_id uuid NOT NULL,
    trigger_id   uuid NOT NULL,
    id           uuid NOT NULL,
    sealed       bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    PRIMARY KEY (workspace_id, trigger_id, id),
    FOREIGN KEY (workspace_id, trigger_id) REFERENCES triggers ON DELETE CASCADE
);

-- What happened -------------------------------------------------------------------------------------------------------

-- Sessions and events are written only together with a run or under the session's own lock, which guards their keys:
-- foreign keys here would cost a third of a fire.
CREATE TABLE sessions (
    workspace_id  uuid NOT NULL,
    id            uuid NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('interactive', 'automation', 'background')),
    status        text NOT NULL DEFAULT 'active'
                  CHECK (status IN ('draft', 'active', 'paused', 'done', 'failed', 'archived')),
    origin        text NOT NULL,
    title         text,
    automation_id uuid,
    agent_id      uuid NOT NULL,
    owner_id      uuid NOT NULL,
    last_seq      bigint NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, id)
) WITH (fillfactor = 50);

-- grant_id and agent_id are copied from the automation, whose foreign keys guard them: here each would make
-- every run lock the same few rows.
CREATE TABLE runs (
    workspace_id        uuid NOT NULL,
    id                  uuid NOT NULL,
    automation_id       uuid,
    trigger_id          uuid,
    session_id          uuid,
    agent_id            uuid NOT NULL,
    grant_id            uuid NOT NULL,
    revision            integer NOT NULL,
    status              text NOT NULL CHECK (status IN
                        ('queued', 'running', 'awaiting_approval', 'succeeded', 'failed', 'skipped', 'cancelled')),
    source              text NOT NULL CHECK (source IN
                        ('schedule', 'run_now', 'webhook', 'event', 'after', 'task', 'chat', 'retry')),
    slot                timestamptz,
    missed_count        integer NOT NULL DEFAULT 0,
    missed_since        timestamptz,
    idempotency_key     text,
    prompt              text,
    input               jsonb,
    payload             jsonb,
    retry_of            uuid,
    created_by          uuid,
    lane                uuid,
    priority            smallint NOT NULL DEFAULT 2,
    queue               uuid NOT NULL,  -- the workspace, or the agent if it may run only so many at once
    pool                text NOT NULL,
    executor            text NOT NULL,
    max_attempts        integer NOT NULL DEFAULT 1,
    max_rescues         integer NOT NULL DEFAULT 2,
    timeout             interval NOT NULL,
    start_within        interval,
    queued_at           timestamptz NOT NULL DEFAULT now(),
    ready_at            timestamptz,
    started_at          timestamptz,
    finished_at         timestamptz,
    attempt             integer NOT NULL DEFAULT 0,
    tries               integer NOT NULL DEFAULT 0,
    rescues             integer NOT NULL DEFAULT 0,
    worker_id           text,
    lease_until         timestamptz,
    attempt_token_hash  bytea,
    cancel_requested_at timestamptz,
    cancel_reason       text,
    skip_reason         text CHECK (skip_reason IN ('prior_in_flight', 'missed', 'paused', 'deleted', 'agent_paused',
                        'grant_revoked', 'grant_expired', 'grant_scope', 'budget')),
    error_class         text CHECK (error_class IN ('agent_error', 'executor_error', 'timeout', 'stuck', 'stalled',
                        'budget_exceeded', 'grant_invalid', 'approval_refused', 'approval_expired',
                        'cancelled_by_user', 'replaced')),
    error_detail        text,
    summary             text,
    trace_id            text NOT NULL,
    PRIMARY KEY (workspace_id, id),
    FOREIGN KEY (workspace_id, automation_id) REFERENCES automations,
    FOREIGN KEY (workspace_id, session_id) REFERENCES sessions,
    CHECK ((status IN ('succeeded', 'failed', 'skipped', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((status = 'skipped') = (skip_reason IS NOT NULL)),
    CHECK ((status IN ('failed', 'cancelled')) = (error_class IS NOT NULL)),
    CHECK (status <> 'running' OR (worker_id IS NOT NULL AND lease_until IS NOT NULL AND attempt > 0)),
    CHECK (status = 'skipped' OR session_id IS NOT NULL)
) WITH (fillfactor = 50);

-- Promise 1: at most one run for each slot and for each idempotency key of a trigger.
CREATE UNIQUE INDEX runs_one_per_slot ON runs (workspace_id, trigger_id, slot) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX runs_one_per_key ON runs (workspace_id, trigger_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- Promise 3: at most one run holds a lane. A queued run holds it as soon as it is ready.
CREATE UNIQUE INDEX runs_one_per_lane ON runs (workspace_id, lane)
    WHERE lane IS NOT NULL
      AND (status IN ('running', 'awaiting_approval') OR (status = 'queued' AND ready_at IS NOT NULL));
CREATE INDEX runs_waiting_for_lane ON runs (workspace_id, lane, priority, id)
    WHERE status = 'queued' AND ready_at IS NULL;
CREATE INDEX runs_ready ON runs (workspace_id, queue, pool, executor, priority, ready_at)
    WHERE status = 'queued' AND ready_at IS NOT NULL;
-- Without lease_until: a renewal then stays on its page. Those that run are few, so a rescue may look at all of them.
CREATE INDEX runs_running ON runs (workspace_id, agent_id) WHERE status = 'running';
CREATE INDEX runs_in_flight ON runs (workspace_id, automation_id)
    WHERE status IN ('queued', 'running', 'awaiting_approval');
CREATE INDEX runs_of_automation ON runs (workspace_id, automation_id, id);
CREATE INDEX runs_of_session ON runs (workspace_id, session_id, id);

-- Promise 4: how a run ended never changes.
CREATE FUNCTION refuse_change_of_ended_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.status, NEW.finished_at, NEW.attempt, NEW.skip_reason, NEW.error_class, NEW.error_detail, NEW.summary)
       IS DISTINCT FROM
       (OLD.status, OLD.finished_at, OLD.attempt, OLD.skip_reason, OLD.error_class, OLD.error_detail, OLD.summary)
    THEN
        RAISE EXCEPTION 'run % has ended as %; it cannot change', OLD.id, OLD.status USING ERRCODE = 'RT001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_ended_stay BEFORE UPDATE ON runs FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION refuse_change_of_ended_run();

-- One log for each session, one sequence: seq comes from sessions.last_seq under the session's row lock,
-- so the order is the order of commits.
CREATE TABLE events (
    workspace_id uuid NOT NULL,
    session_id   uuid NOT NULL,
    seq          bigint NOT NULL,
    kind         text NOT NULL CHECK (kind IN
                 ('run', 'task', 'message', 'output', 'tool', 'approval', 'artifact', 'session')),
    run_id       uuid,
    attempt      integer,
    data         jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, session_id, seq)
);

-- A repeated request that starts a run finds the run it started before.
CREATE TABLE start_keys (
    workspace_id uuid NOT NULL REFERENCES workspaces,
    key          text NOT NULL,
    body_hash    bytea NOT NULL,
    run_id       uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, key)
);

-- One row for each run, attempt and unit, so that a repeat never charges twice.
CREATE TABLE usage (
    workspace_id uuid NOT NULL,
    run_id       uuid NOT NULL,
    attempt      integer NOT NULL,
    unit         text NOT NULL,
    amount       numeric NOT NULL CHECK (amount >= 0),
    account_id   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, run_id, attempt, unit),
    FOREIGN KEY (workspace_id, run_id) REFERENCES runs,
    FOREIGN KEY (workspace_id, account_id) REFERENCES accounts
);

-- The fleet: processes, not tenants, so no workspace.
CREATE TABLE workers (
    id           text PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    places       integer NOT NULL,
    busy         integer NOT NULL DEFAULT 0,
    kinds        text[] NOT NULL,
    pools        text[] NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    stopped_at   timestamptz
);
