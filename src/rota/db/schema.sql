-- The schema as all migrations together leave it, for reading. Made by scripts/schema.py: change a migration, not this.
-- Every table with a workspace is put under row-level security by db/isolation.py, which is not repeated here.

CREATE FUNCTION mirror_live_runs() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
DECLARE
    spaces uuid[];
    ended uuid[];
    taken uuid[];
    queued uuid[];
    found integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO live_runs (workspace_id, id, automation_id, session_id, agent_id, lane, priority, source, waits)
        SELECT workspace_id, id, automation_id, session_id, agent_id, lane, priority, source,
               status = 'queued' AND ready_at IS NULL
          FROM written WHERE finished_at IS NULL;
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at, stuck_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at,
               CASE WHEN source <> 'task' THEN ready_at + start_within END
          FROM written WHERE status = 'queued' AND ready_at IS NOT NULL;
        INSERT INTO taken_runs (workspace_id, id, agent_id, session_id, status, leased)
        SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
          FROM written WHERE status IN ('running', 'awaiting_approval');
        RETURN NULL;
    END IF;
    SELECT array_agg(DISTINCT workspace_id),
           array_agg(id) FILTER (WHERE finished_at IS NOT NULL OR TG_OP = 'DELETE'),
           array_agg(id) FILTER (WHERE status IN ('running', 'awaiting_approval') AND TG_OP = 'UPDATE'),
           array_agg(id) FILTER (WHERE status = 'queued' AND TG_OP = 'UPDATE')
      INTO spaces, ended, taken, queued FROM written;
    IF ended IS NOT NULL THEN
        DELETE FROM live_runs WHERE workspace_id = ANY(spaces) AND id = ANY(ended);
        DELETE FROM taken_runs WHERE workspace_id = ANY(spaces) AND id = ANY(ended);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found < cardinality(ended) THEN
            DELETE FROM ready_runs WHERE id = ANY(ended);
        END IF;
    END IF;
    IF taken IS NOT NULL THEN
        DELETE FROM ready_runs WHERE id = ANY(taken);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found = cardinality(taken) THEN
            INSERT INTO taken_runs (workspace_id, id, agent_id, session_id, status, leased)
            SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
              FROM written WHERE status IN ('running', 'awaiting_approval');
        ELSE
            INSERT INTO taken_runs AS t (workspace_id, id, agent_id, session_id, status, leased)
            SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
              FROM written WHERE status IN ('running', 'awaiting_approval')
                ON CONFLICT (workspace_id, id) DO UPDATE SET status = excluded.status, leased = excluded.leased
             WHERE (t.status, t.leased) IS DISTINCT FROM (excluded.status, excluded.leased);
            UPDATE live_runs SET waits = false WHERE workspace_id = ANY(spaces) AND id = ANY(taken) AND waits;
        END IF;
    END IF;
    IF queued IS NOT NULL THEN
        DELETE FROM taken_runs WHERE workspace_id = ANY(spaces) AND id = ANY(queued);
        DELETE FROM ready_runs WHERE id = ANY(queued);
        INSERT INTO ready_runs (workspace_id, id, queue, pool, executor, priority, ready_at, stuck_at)
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at,
               CASE WHEN source <> 'task' THEN ready_at + start_within END
          FROM written WHERE status = 'queued' AND ready_at IS NOT NULL;
        UPDATE live_runs l
           SET waits = r.ready_at IS NULL, priority = r.priority, lane = r.lane
          FROM runs r
         WHERE l.workspace_id = ANY(spaces) AND l.id = ANY(queued) AND r.workspace_id = l.workspace_id AND r.id = l.id
           AND (l.waits, l.priority, l.lane) IS DISTINCT FROM (r.ready_at IS NULL, r.priority, r.lane);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION refuse_change_of_audit() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'DELETE' AND pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only ever added to' USING ERRCODE = 'RT002';
END $$;

CREATE FUNCTION refuse_change_of_ended_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF (NEW.status, NEW.finished_at, NEW.attempt, NEW.skip_reason, NEW.error_class, NEW.error_detail, NEW.summary)
       IS DISTINCT FROM
       (OLD.status, OLD.finished_at, OLD.attempt, OLD.skip_reason, OLD.error_class, OLD.error_detail, OLD.summary)
    THEN
        RAISE EXCEPTION 'run % has ended as %; it cannot change', OLD.id, OLD.status USING ERRCODE = 'RT001';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE abandonments (
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    executor text NOT NULL,
    pool text NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at timestamptz DEFAULT now() NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE accounts (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    currency text DEFAULT 'USD'::text NOT NULL,
    budget jsonb,
    updated_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT accounts_currency_check CHECK ((currency ~ '^[A-Z]{3}$'::text))
);

CREATE TABLE agents (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL,
    executor text NOT NULL,
    config jsonb NOT NULL,
    instructions text DEFAULT ''::text NOT NULL,
    pool text DEFAULT 'default'::text NOT NULL,
    max_concurrent integer,
    status text DEFAULT 'active'::text NOT NULL,
    revision integer DEFAULT 1 NOT NULL,
    created_by uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    credentials jsonb DEFAULT '{}'::jsonb NOT NULL,
    full_at timestamptz,
    CONSTRAINT agents_max_concurrent_check CHECK ((max_concurrent > 0)),
    CONSTRAINT agents_status_check CHECK ((status = ANY (ARRAY['active'::text, 'paused'::text])))
);

CREATE TABLE approvals (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    run_id uuid NOT NULL,
    session_id uuid NOT NULL,
    attempt integer NOT NULL,
    key text,
    question text NOT NULL,
    detail jsonb,
    options jsonb NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    option_id text,
    answer_text text,
    answered_by uuid,
    ran interval,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    asked_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamptz NOT NULL,
    answered_at timestamptz,
    CONSTRAINT approvals_check CHECK (((status = 'pending'::text) = (answered_at IS NULL))),
    CONSTRAINT approvals_check1 CHECK (((status = ANY (ARRAY['approved'::text, 'refused'::text])) = (option_id IS NOT NULL))),
    CONSTRAINT approvals_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'approved'::text, 'refused'::text, 'expired'::text, 'cancelled'::text])))
);

CREATE TABLE artifacts (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    session_id uuid NOT NULL,
    run_id uuid,
    attempt integer,
    name text NOT NULL,
    media_type text NOT NULL,
    uri text,
    sha256 bytea,
    size bigint,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT artifacts_check CHECK (((uri IS NULL) = (sha256 IS NOT NULL))),
    CONSTRAINT artifacts_check1 CHECK (((sha256 IS NULL) = (size IS NULL)))
);

CREATE TABLE audit (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    user_id uuid,
    token_id uuid,
    run_id uuid,
    ip text,
    action text NOT NULL,
    object_kind text NOT NULL,
    object_id text,
    status integer NOT NULL,
    code text,
    before jsonb,
    after jsonb,
    CONSTRAINT audit_check CHECK (((status < 400) = (code IS NULL)))
);

CREATE TABLE automations (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL,
    agent_id uuid NOT NULL,
    owner_id uuid NOT NULL,
    grant_id uuid NOT NULL,
    revision integer DEFAULT 1 NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    paused_reason text,
    prompt text,
    input jsonb,
    session text DEFAULT 'new'::text NOT NULL,
    session_id uuid,
    overlap text,
    catch_up text DEFAULT 'one'::text NOT NULL,
    catch_up_limit integer,
    late_after interval DEFAULT '00:01:00'::interval NOT NULL,
    max_attempts integer DEFAULT 1 NOT NULL,
    max_rescues integer DEFAULT 2 NOT NULL,
    timeout interval DEFAULT '01:00:00'::interval NOT NULL,
    start_within interval DEFAULT '00:15:00'::interval NOT NULL,
    approval_expires interval DEFAULT '24:00:00'::interval NOT NULL,
    pause_after_failures integer,
    failures integer DEFAULT 0 NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    pre_approvals text[] DEFAULT '{}'::text[] NOT NULL,
    credentials jsonb DEFAULT '{}'::jsonb NOT NULL,
    budget jsonb,
    max_task_depth integer DEFAULT 8 NOT NULL,
    max_tasks integer DEFAULT 100 NOT NULL,
    CONSTRAINT automations_catch_up_check CHECK ((catch_up = ANY (ARRAY['one'::text, 'skip'::text, 'all'::text]))),
    CONSTRAINT automations_catch_up_limit_check CHECK ((catch_up_limit > 0)),
    CONSTRAINT automations_check CHECK (((prompt IS NOT NULL) OR (input IS NOT NULL))),
    CONSTRAINT automations_check1 CHECK (((catch_up <> 'all'::text) OR (catch_up_limit IS NOT NULL))),
    CONSTRAINT automations_max_attempts_check CHECK ((max_attempts > 0)),
    CONSTRAINT automations_max_rescues_check CHECK ((max_rescues >= 0)),
    CONSTRAINT automations_max_task_depth_check CHECK ((max_task_depth > 0)),
    CONSTRAINT automations_max_tasks_check CHECK ((max_tasks >= 0)),
    CONSTRAINT automations_overlap_check CHECK ((overlap = ANY (ARRAY['skip'::text, 'queue_one'::text, 'queue_all'::text, 'allow'::text, 'replace'::text]))),
    CONSTRAINT automations_pause_after_failures_check CHECK ((pause_after_failures > 0)),
    CONSTRAINT automations_session_check CHECK ((session = ANY (ARRAY['new'::text, 'same'::text]))),
    CONSTRAINT automations_status_check CHECK ((status = ANY (ARRAY['active'::text, 'paused'::text])))
)
WITH (fillfactor='80');

CREATE TABLE checkpoints (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    thread uuid NOT NULL,
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    data bytea NOT NULL,
    stored_at timestamptz DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE contents (
    workspace_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size bigint NOT NULL,
    touched_at timestamptz DEFAULT now() NOT NULL,
    doomed_at timestamptz,
    CONSTRAINT contents_sha256_check CHECK ((length(sha256) = 32)),
    CONSTRAINT contents_size_check CHECK ((size >= 0))
);

CREATE TABLE credentials (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    usable_by text DEFAULT 'admin'::text NOT NULL,
    sealed bytea NOT NULL,
    key_id text GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape'::text)) STORED NOT NULL,
    created_by uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    last_used_at timestamptz,
    CONSTRAINT credentials_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'::text)),
    CONSTRAINT credentials_usable_by_check CHECK ((usable_by = ANY (ARRAY['admin'::text, 'member'::text])))
);

CREATE TABLE deliveries (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    role text NOT NULL,
    acked_at timestamptz
);

CREATE TABLE events (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    kind text NOT NULL,
    run_id uuid,
    attempt integer,
    data jsonb NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT events_kind_check CHECK ((kind = ANY (ARRAY['run'::text, 'task'::text, 'message'::text, 'output'::text, 'tool'::text, 'approval'::text, 'artifact'::text, 'session'::text])))
);

CREATE TABLE former_credentials (
    workspace_id uuid NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    credential_id uuid NOT NULL,
    name text NOT NULL,
    sealed bytea NOT NULL,
    key_id text GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape'::text)) STORED NOT NULL,
    replaced_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE grants (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    account_id uuid NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    automation_id uuid,
    replaces uuid,
    revoked_by uuid,
    expiry_told_at timestamptz
);

CREATE TABLE held_words (
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    form integer NOT NULL,
    size integer NOT NULL,
    shown integer NOT NULL,
    covered integer NOT NULL,
    held_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT held_words_covered_check CHECK ((covered >= 0)),
    CONSTRAINT held_words_form_check CHECK ((form >= 0)),
    CONSTRAINT held_words_shown_check CHECK ((shown >= 0)),
    CONSTRAINT held_words_size_check CHECK ((size > 0))
);

CREATE TABLE identities (
    issuer text NOT NULL,
    subject text NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE imported_parts (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    what text NOT NULL,
    name text NOT NULL,
    line integer NOT NULL,
    data jsonb NOT NULL,
    CONSTRAINT imported_parts_what_check CHECK ((what = ANY (ARRAY['role'::text, 'task'::text])))
);

CREATE TABLE live_runs (
    workspace_id uuid CONSTRAINT live_runs_workspace_id_not_null1 NOT NULL,
    id uuid CONSTRAINT live_runs_id_not_null1 NOT NULL,
    automation_id uuid,
    session_id uuid,
    agent_id uuid CONSTRAINT live_runs_agent_id_not_null1 NOT NULL,
    lane uuid,
    priority smallint CONSTRAINT live_runs_priority_not_null1 NOT NULL,
    source text CONSTRAINT live_runs_source_not_null1 NOT NULL,
    waits boolean NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');

CREATE TABLE logins (
    secret_hash bytea NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    last_used_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    idle interval DEFAULT '7 days'::interval NOT NULL,
    ip text,
    user_agent text
);

CREATE TABLE members (
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    level text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    removed_at timestamptz,
    CONSTRAINT members_level_check CHECK ((level = ANY (ARRAY['viewer'::text, 'member'::text, 'admin'::text])))
);

CREATE TABLE memory (
    workspace_id uuid NOT NULL,
    automation_id uuid NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    confidence double precision,
    expires_at timestamptz,
    run_id uuid,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT memory_confidence_check CHECK (((confidence >= (0)::double precision) AND (confidence <= (1)::double precision)))
);

CREATE TABLE migrations (
    number integer NOT NULL,
    name text NOT NULL,
    applied_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE notification_choices (
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    kind text NOT NULL,
    bell boolean NOT NULL,
    outward boolean NOT NULL,
    CONSTRAINT notification_choices_kind_check CHECK ((kind = ANY (ARRAY['run_failed'::text, 'needs_approval'::text, 'paused'::text, 'budget_low'::text, 'grant_expiring'::text])))
);

CREATE TABLE notification_outbox (
    workspace_id uuid NOT NULL,
    target_id uuid NOT NULL,
    kind text NOT NULL,
    subject_id uuid NOT NULL,
    automation_id uuid,
    run_id uuid,
    session_id uuid,
    approval_id uuid,
    grant_id uuid,
    account_id uuid,
    about text NOT NULL,
    detail text,
    count integer DEFAULT 1 NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE notification_targets (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    name text NOT NULL,
    scheme text NOT NULL,
    sealed bytea NOT NULL,
    key_id text GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape'::text)) STORED NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    not_before timestamptz DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    sent_at timestamptz,
    failed_at timestamptz,
    error text,
    given_up integer DEFAULT 0 NOT NULL
);

CREATE TABLE notifications (
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    id uuid NOT NULL,
    latest_id uuid NOT NULL,
    kind text NOT NULL,
    subject_id uuid NOT NULL,
    automation_id uuid,
    run_id uuid,
    session_id uuid,
    approval_id uuid,
    grant_id uuid,
    account_id uuid,
    about text NOT NULL,
    detail text,
    count integer DEFAULT 1 NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    read_at timestamptz,
    CONSTRAINT notifications_count_check CHECK ((count > 0)),
    CONSTRAINT notifications_kind_check CHECK ((kind = ANY (ARRAY['run_failed'::text, 'needs_approval'::text, 'paused'::text, 'budget_low'::text, 'grant_expiring'::text])))
);

CREATE TABLE oidc_sign_ins (
    state_hash bytea NOT NULL,
    browser_hash bytea NOT NULL,
    nonce text NOT NULL,
    verifier text NOT NULL,
    next text NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE TABLE pauses (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    reason text NOT NULL,
    paused_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    paused_by uuid NOT NULL,
    until timestamptz,
    resumed_at timestamptz,
    resumed_by uuid,
    CONSTRAINT pauses_reason_check CHECK ((reason <> ''::text))
);

CREATE TABLE rate_buckets (
    workspace_id uuid NOT NULL,
    key bytea NOT NULL,
    level double precision NOT NULL,
    taken integer NOT NULL,
    filled_at timestamptz NOT NULL
);

CREATE TABLE ready_runs (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    queue uuid NOT NULL,
    pool text NOT NULL,
    executor text NOT NULL,
    priority smallint NOT NULL,
    ready_at timestamptz NOT NULL,
    stuck_at timestamptz
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');

CREATE TABLE reservations (
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    holder_id uuid NOT NULL,
    unit text NOT NULL,
    month date NOT NULL,
    amount numeric NOT NULL,
    settled numeric,
    CONSTRAINT reservations_amount_check CHECK ((amount > (0)::numeric)),
    CONSTRAINT reservations_settled_check CHECK ((settled >= (0)::numeric))
);

CREATE TABLE revisions (
    workspace_id uuid NOT NULL,
    subject_id uuid NOT NULL,
    revision integer NOT NULL,
    spec jsonb NOT NULL,
    created_by uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE runs (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    automation_id uuid,
    trigger_id uuid,
    session_id uuid,
    agent_id uuid NOT NULL,
    grant_id uuid NOT NULL,
    revision integer NOT NULL,
    status text NOT NULL,
    source text NOT NULL,
    slot timestamptz,
    missed_count integer DEFAULT 0 NOT NULL,
    missed_since timestamptz,
    idempotency_key text,
    prompt text,
    input jsonb,
    payload jsonb,
    retry_of uuid,
    created_by uuid,
    lane uuid,
    priority smallint DEFAULT 2 NOT NULL,
    queue uuid NOT NULL,
    pool text NOT NULL,
    executor text NOT NULL,
    max_attempts integer DEFAULT 1 NOT NULL,
    max_rescues integer DEFAULT 2 NOT NULL,
    timeout interval NOT NULL,
    start_within interval,
    queued_at timestamptz DEFAULT now() NOT NULL,
    ready_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    attempt integer DEFAULT 0 NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    rescues integer DEFAULT 0 NOT NULL,
    worker_id text,
    lease_until timestamptz,
    attempt_token_hash bytea,
    cancel_requested_at timestamptz,
    cancel_reason text,
    skip_reason text,
    error_class text,
    error_detail text,
    summary text,
    trace_id text NOT NULL,
    budget jsonb,
    cancel_detail text,
    refused_tasks jsonb,
    CONSTRAINT runs_are_what_is_written CHECK (
CASE
    WHEN (finished_at IS NULL) THEN ((status = ANY ('{queued,running,awaiting_approval}'::text[])) AND (skip_reason IS NULL) AND (error_class IS NULL))
    WHEN (skip_reason IS NOT NULL) THEN ((status = 'skipped'::text) AND (error_class IS NULL))
    WHEN (error_class IS NULL) THEN (status = 'succeeded'::text)
    WHEN (error_class = ANY ('{cancelled_by_user,replaced}'::text[])) THEN (status = 'cancelled'::text)
    ELSE (status = 'failed'::text)
END),
    CONSTRAINT runs_at_work_are_leased CHECK (((status <> 'running'::text) OR ((worker_id IS NOT NULL) AND (lease_until IS NOT NULL) AND (attempt > 0)))),
    CONSTRAINT runs_error_class CHECK ((error_class = ANY ('{agent_error,executor_error,timeout,stuck,stalled,budget_exceeded,grant_invalid,approval_refused,approval_expired,cancelled_by_user,replaced}'::text[]))),
    CONSTRAINT runs_have_a_session CHECK (((session_id IS NOT NULL) OR (skip_reason IS NOT NULL))),
    CONSTRAINT runs_skip_reason CHECK ((skip_reason = ANY ('{prior_in_flight,missed,paused,deleted,agent_paused,grant_revoked,grant_expired,grant_scope,budget}'::text[]))),
    CONSTRAINT runs_source CHECK ((source = ANY ('{schedule,run_now,webhook,event,after,task,chat,retry}'::text[])))
)
WITH (fillfactor='42');

CREATE TABLE session_roles (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    name text NOT NULL,
    agent_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    grant_id uuid NOT NULL,
    named_by_agent boolean DEFAULT false NOT NULL
);

CREATE TABLE sessions (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    kind text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    origin text NOT NULL,
    title text,
    automation_id uuid,
    agent_id uuid,
    owner_id uuid NOT NULL,
    last_seq bigint DEFAULT 0 NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    goal text,
    has_tasks boolean DEFAULT false NOT NULL,
    imported jsonb,
    CONSTRAINT sessions_agent_check CHECK (((agent_id IS NOT NULL) OR (imported IS NOT NULL))),
    CONSTRAINT sessions_kind_check CHECK ((kind = ANY (ARRAY['interactive'::text, 'automation'::text, 'background'::text]))),
    CONSTRAINT sessions_status_check CHECK ((status = ANY (ARRAY['draft'::text, 'active'::text, 'paused'::text, 'done'::text, 'failed'::text, 'archived'::text])))
)
WITH (fillfactor='50');

CREATE TABLE sign_in_links (
    secret_hash bytea NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE TABLE snapshots (
    id uuid NOT NULL,
    taken_at timestamptz DEFAULT now() NOT NULL,
    host text NOT NULL,
    workers integer NOT NULL,
    sessions integer NOT NULL,
    running integer NOT NULL,
    queued integer NOT NULL,
    cpu_percent real,
    memory_mb real
);

CREATE TABLE spending (
    workspace_id uuid NOT NULL,
    holder_id uuid NOT NULL,
    month date NOT NULL,
    unit text NOT NULL,
    cap numeric NOT NULL,
    spent numeric NOT NULL,
    warned_at timestamptz,
    CONSTRAINT spending_cap_check CHECK ((cap > (0)::numeric)),
    CONSTRAINT spending_spent_check CHECK ((spent >= (0)::numeric))
);

CREATE TABLE start_keys (
    workspace_id uuid NOT NULL,
    key text NOT NULL,
    body_hash bytea NOT NULL,
    run_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TABLE taken_runs (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    agent_id uuid NOT NULL,
    session_id uuid,
    status text NOT NULL,
    leased boolean NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');

CREATE TABLE task_dependencies (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    task_id uuid NOT NULL,
    depends_on uuid NOT NULL,
    CONSTRAINT task_dependencies_check CHECK ((task_id <> depends_on))
);

CREATE TABLE tasks (
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    id uuid NOT NULL,
    key text NOT NULL,
    role text NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    unmet integer NOT NULL,
    prompt text,
    input jsonb,
    timeout interval NOT NULL,
    max_attempts integer DEFAULT 1 NOT NULL,
    batch uuid NOT NULL,
    added_by_run uuid,
    run_id uuid,
    reason text,
    created_at timestamptz DEFAULT now() NOT NULL,
    finished_at timestamptz,
    depth integer DEFAULT 1 NOT NULL,
    CONSTRAINT tasks_check CHECK (((prompt IS NOT NULL) OR (input IS NOT NULL))),
    CONSTRAINT tasks_check1 CHECK (((status <> ALL (ARRAY['ready'::text, 'done'::text, 'failed'::text])) OR (run_id IS NOT NULL))),
    CONSTRAINT tasks_check2 CHECK (((status = ANY (ARRAY['done'::text, 'failed'::text, 'skipped'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT tasks_depth_check CHECK ((depth > 0)),
    CONSTRAINT tasks_max_attempts_check CHECK ((max_attempts > 0)),
    CONSTRAINT tasks_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'ready'::text, 'done'::text, 'failed'::text, 'skipped'::text]))),
    CONSTRAINT tasks_unmet_check CHECK ((unmet >= 0))
)
WITH (fillfactor='70');

CREATE TABLE throttles (
    key bytea NOT NULL,
    tries integer NOT NULL,
    last_at timestamptz NOT NULL,
    open_at timestamptz NOT NULL
);

CREATE TABLE tokens (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    name text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT tokens_scopes_check CHECK (((scopes <> '{}'::text[]) AND (scopes <@ '{read,run,write,admin}'::text[])))
);

CREATE TABLE triggers (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    automation_id uuid NOT NULL,
    kind text NOT NULL,
    cron text,
    every interval,
    time_of_day time without time zone,
    at timestamptz,
    timezone text NOT NULL,
    event text,
    after_automation_id uuid,
    after_on text[],
    editor_mode text,
    editor jsonb,
    overlap text,
    anchor_at timestamptz NOT NULL,
    starts_at timestamptz,
    ends_at timestamptz,
    max_fires integer,
    fires integer DEFAULT 0 NOT NULL,
    jitter interval,
    enabled boolean DEFAULT true NOT NULL,
    next_fire_at timestamptz,
    parked_error text,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT triggers_check CHECK (((kind = 'cron'::text) = (cron IS NOT NULL))),
    CONSTRAINT triggers_check1 CHECK (((kind = 'every'::text) = (every IS NOT NULL))),
    CONSTRAINT triggers_check2 CHECK (((kind = 'at'::text) = (at IS NOT NULL))),
    CONSTRAINT triggers_check3 CHECK (((kind = 'event'::text) = (event IS NOT NULL))),
    CONSTRAINT triggers_check4 CHECK (((kind = 'after'::text) = (after_automation_id IS NOT NULL))),
    CONSTRAINT triggers_editor_mode_check CHECK ((editor_mode = ANY (ARRAY['interval'::text, 'weekly'::text, 'advanced'::text]))),
    CONSTRAINT triggers_kind_check CHECK ((kind = ANY (ARRAY['cron'::text, 'every'::text, 'at'::text, 'webhook'::text, 'event'::text, 'after'::text]))),
    CONSTRAINT triggers_max_fires_check CHECK ((max_fires > 0)),
    CONSTRAINT triggers_overlap_check CHECK ((overlap = ANY (ARRAY['skip'::text, 'queue_one'::text, 'queue_all'::text, 'allow'::text, 'replace'::text])))
)
WITH (fillfactor='80');

CREATE TABLE usage (
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    unit text NOT NULL,
    amount numeric NOT NULL,
    account_id uuid NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    recorded numeric DEFAULT 0 NOT NULL,
    CONSTRAINT usage_amount_check CHECK ((amount >= (0)::numeric)),
    CONSTRAINT usage_recorded_check CHECK ((recorded >= (0)::numeric))
);

CREATE TABLE usage_spans (
    workspace_id uuid NOT NULL,
    starts_at timestamptz NOT NULL,
    account_id uuid NOT NULL,
    unit text NOT NULL,
    amount numeric NOT NULL
);

CREATE TABLE usage_tallies (
    workspace_id uuid NOT NULL,
    until timestamptz NOT NULL
);

CREATE TABLE users (
    id uuid NOT NULL,
    name text NOT NULL,
    email text,
    password_hash text,
    created_at timestamptz DEFAULT now() NOT NULL,
    disabled_at timestamptz,
    admitted_by uuid,
    CONSTRAINT users_email_check CHECK ((email = lower(email)))
);

CREATE TABLE webhook_secrets (
    workspace_id uuid NOT NULL,
    trigger_id uuid NOT NULL,
    id uuid NOT NULL,
    sealed bytea NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz,
    key_id text GENERATED ALWAYS AS (encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape'::text)) STORED NOT NULL
);

CREATE TABLE workers (
    id text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    places integer NOT NULL,
    busy integer DEFAULT 0 NOT NULL,
    kinds text[] NOT NULL,
    pools text[] NOT NULL,
    started_at timestamptz DEFAULT now() NOT NULL,
    last_seen_at timestamptz DEFAULT now() NOT NULL,
    stopped_at timestamptz,
    at_work jsonb DEFAULT '[]'::jsonb NOT NULL,
    sandbox text
);

CREATE TABLE workspaces (
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL,
    timezone text DEFAULT 'UTC'::text NOT NULL,
    minimum_interval interval,
    max_concurrent integer,
    created_at timestamptz DEFAULT now() NOT NULL,
    max_schedules integer,
    full_at timestamptz,
    CONSTRAINT workspaces_max_concurrent_check CHECK ((max_concurrent > 0)),
    CONSTRAINT workspaces_max_schedules_check CHECK ((max_schedules > 0)),
    CONSTRAINT workspaces_slug_check CHECK ((slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);

CREATE TABLE write_keys (
    workspace_id uuid NOT NULL,
    scope_id uuid NOT NULL,
    key text NOT NULL,
    body_hash bytea NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

ALTER TABLE abandonments ADD CONSTRAINT abandonments_pkey PRIMARY KEY (workspace_id, run_id, attempt);
ALTER TABLE accounts ADD CONSTRAINT accounts_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE agents ADD CONSTRAINT agents_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE approvals ADD CONSTRAINT approvals_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE artifacts ADD CONSTRAINT artifacts_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE audit ADD CONSTRAINT audit_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE automations ADD CONSTRAINT automations_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (workspace_id, session_id, thread);
ALTER TABLE contents ADD CONSTRAINT contents_pkey PRIMARY KEY (workspace_id, sha256);
ALTER TABLE credentials ADD CONSTRAINT credentials_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE deliveries ADD CONSTRAINT deliveries_pkey PRIMARY KEY (workspace_id, session_id, seq, role);
ALTER TABLE events ADD CONSTRAINT events_pkey PRIMARY KEY (workspace_id, session_id, seq);
ALTER TABLE former_credentials ADD CONSTRAINT former_credentials_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE grants ADD CONSTRAINT grants_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE held_words ADD CONSTRAINT held_words_pkey PRIMARY KEY (workspace_id, run_id, attempt);
ALTER TABLE identities ADD CONSTRAINT identities_pkey PRIMARY KEY (issuer, subject);
ALTER TABLE imported_parts ADD CONSTRAINT imported_parts_pkey PRIMARY KEY (workspace_id, session_id, what, name);
ALTER TABLE live_runs ADD CONSTRAINT live_runs_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE logins ADD CONSTRAINT logins_id_key UNIQUE (id);
ALTER TABLE logins ADD CONSTRAINT logins_pkey PRIMARY KEY (secret_hash);
ALTER TABLE members ADD CONSTRAINT members_pkey PRIMARY KEY (workspace_id, user_id);
ALTER TABLE memory ADD CONSTRAINT memory_pkey PRIMARY KEY (workspace_id, automation_id, key);
ALTER TABLE migrations ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);
ALTER TABLE notification_choices ADD CONSTRAINT notification_choices_pkey PRIMARY KEY (workspace_id, user_id, kind);
ALTER TABLE notification_outbox ADD CONSTRAINT notification_outbox_pkey PRIMARY KEY (workspace_id, target_id, kind, subject_id);
ALTER TABLE notification_targets ADD CONSTRAINT notification_targets_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE notifications ADD CONSTRAINT notifications_pkey PRIMARY KEY (workspace_id, user_id, id);
ALTER TABLE oidc_sign_ins ADD CONSTRAINT oidc_sign_ins_pkey PRIMARY KEY (state_hash);
ALTER TABLE pauses ADD CONSTRAINT pauses_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE rate_buckets ADD CONSTRAINT rate_buckets_pkey PRIMARY KEY (workspace_id, key);
ALTER TABLE ready_runs ADD CONSTRAINT ready_runs_pkey PRIMARY KEY (id);
ALTER TABLE reservations ADD CONSTRAINT reservations_pkey PRIMARY KEY (workspace_id, run_id, holder_id, unit);
ALTER TABLE revisions ADD CONSTRAINT revisions_pkey PRIMARY KEY (workspace_id, subject_id, revision);
ALTER TABLE runs ADD CONSTRAINT runs_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE session_roles ADD CONSTRAINT session_roles_pkey PRIMARY KEY (workspace_id, session_id, name);
ALTER TABLE sessions ADD CONSTRAINT sessions_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE sign_in_links ADD CONSTRAINT sign_in_links_pkey PRIMARY KEY (secret_hash);
ALTER TABLE snapshots ADD CONSTRAINT snapshots_pkey PRIMARY KEY (id);
ALTER TABLE spending ADD CONSTRAINT spending_pkey PRIMARY KEY (workspace_id, holder_id, month, unit);
ALTER TABLE start_keys ADD CONSTRAINT start_keys_pkey PRIMARY KEY (workspace_id, key);
ALTER TABLE taken_runs ADD CONSTRAINT taken_runs_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE task_dependencies ADD CONSTRAINT task_dependencies_pkey PRIMARY KEY (workspace_id, session_id, task_id, depends_on);
ALTER TABLE tasks ADD CONSTRAINT tasks_pkey PRIMARY KEY (workspace_id, session_id, id);
ALTER TABLE throttles ADD CONSTRAINT throttles_pkey PRIMARY KEY (key);
ALTER TABLE tokens ADD CONSTRAINT tokens_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE tokens ADD CONSTRAINT tokens_secret_hash_key UNIQUE (secret_hash);
ALTER TABLE triggers ADD CONSTRAINT triggers_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE usage ADD CONSTRAINT usage_pkey PRIMARY KEY (workspace_id, run_id, attempt, unit);
ALTER TABLE usage_spans ADD CONSTRAINT usage_spans_pkey PRIMARY KEY (workspace_id, starts_at, account_id, unit);
ALTER TABLE usage_tallies ADD CONSTRAINT usage_tallies_pkey PRIMARY KEY (workspace_id);
ALTER TABLE users ADD CONSTRAINT users_email_key UNIQUE (email);
ALTER TABLE users ADD CONSTRAINT users_pkey PRIMARY KEY (id);
ALTER TABLE webhook_secrets ADD CONSTRAINT webhook_secrets_pkey PRIMARY KEY (workspace_id, trigger_id, id);
ALTER TABLE workers ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
ALTER TABLE workspaces ADD CONSTRAINT workspaces_pkey PRIMARY KEY (id);
ALTER TABLE workspaces ADD CONSTRAINT workspaces_slug_key UNIQUE (slug);
ALTER TABLE write_keys ADD CONSTRAINT write_keys_pkey PRIMARY KEY (workspace_id, scope_id, key);
CREATE INDEX abandonments_due ON abandonments USING btree (due_at);
CREATE UNIQUE INDEX accounts_name ON accounts USING btree (workspace_id, name);
CREATE INDEX accounts_with_budget ON accounts USING btree (workspace_id) WHERE (budget IS NOT NULL);
CREATE INDEX agents_capped ON agents USING btree (workspace_id, id) WHERE (max_concurrent IS NOT NULL);
CREATE UNIQUE INDEX agents_slug ON agents USING btree (slug, workspace_id) WHERE (deleted_at IS NULL);
CREATE INDEX approvals_by_status ON approvals USING btree (workspace_id, status, id);
CREATE INDEX approvals_of_run ON approvals USING btree (workspace_id, run_id);
CREATE INDEX approvals_of_session ON approvals USING btree (workspace_id, session_id, id);
CREATE UNIQUE INDEX approvals_one_per_key ON approvals USING btree (workspace_id, run_id, key) WHERE ((key IS NOT NULL) AND (status = ANY (ARRAY['pending'::text, 'approved'::text, 'refused'::text])));
CREATE INDEX approvals_pending ON approvals USING btree (expires_at) WHERE (status = 'pending'::text);
CREATE INDEX artifacts_by_time ON artifacts USING brin (created_at);
CREATE INDEX artifacts_of_content ON artifacts USING btree (workspace_id, sha256) WHERE (sha256 IS NOT NULL);
CREATE INDEX artifacts_of_session ON artifacts USING btree (workspace_id, session_id, id);
CREATE INDEX audit_by_time ON audit USING brin (created_at);
CREATE INDEX audit_of_action ON audit USING btree (workspace_id, action, id);
CREATE INDEX audit_of_object ON audit USING btree (workspace_id, object_kind, object_id, id);
CREATE INDEX audit_of_user ON audit USING btree (workspace_id, user_id, id);
CREATE INDEX audit_refused ON audit USING btree (workspace_id, id) WHERE (code IS NOT NULL);
CREATE INDEX automations_by_name ON automations USING btree (workspace_id, id) INCLUDE (name, slug, agent_id) WHERE (deleted_at IS NULL);
CREATE INDEX automations_failing_or_deleted ON automations USING btree (workspace_id, id) WHERE ((failures > 0) OR (deleted_at IS NOT NULL));
CREATE INDEX automations_of_agent ON automations USING btree (workspace_id, agent_id, id);
CREATE INDEX automations_of_grant ON automations USING btree (grant_id, workspace_id);
CREATE INDEX automations_of_owner ON automations USING btree (workspace_id, owner_id, id);
CREATE INDEX automations_paused ON automations USING btree (workspace_id, id) WHERE ((status = 'paused'::text) AND (deleted_at IS NULL));
CREATE UNIQUE INDEX automations_slug ON automations USING btree (slug, workspace_id) WHERE (deleted_at IS NULL);
CREATE INDEX automations_with_credentials ON automations USING btree (workspace_id, id) WHERE ((credentials <> '{}'::jsonb) AND (deleted_at IS NULL));
CREATE INDEX checkpoints_by_time ON checkpoints USING btree (stored_at);
CREATE INDEX contents_by_time ON contents USING btree (touched_at);
CREATE INDEX credentials_by_key ON credentials USING btree (key_id);
CREATE UNIQUE INDEX credentials_name ON credentials USING btree (workspace_id, name);
CREATE INDEX deliveries_unacked ON deliveries USING btree (workspace_id, session_id, role, seq) WHERE (acked_at IS NULL);
CREATE INDEX events_by_time ON events USING brin (created_at);
CREATE INDEX former_credentials_by_name ON former_credentials USING btree (workspace_id, name);
CREATE INDEX grants_ending ON grants USING btree (workspace_id, id) WHERE ((expires_at IS NOT NULL) AND (revoked_at IS NULL));
CREATE INDEX grants_expiring ON grants USING btree (expires_at) WHERE ((automation_id IS NOT NULL) AND (revoked_at IS NULL) AND (expiry_told_at IS NULL));
CREATE INDEX grants_of_automation ON grants USING btree (workspace_id, automation_id, id) WHERE (automation_id IS NOT NULL);
CREATE INDEX grants_of_user ON grants USING btree (workspace_id, user_id);
CREATE INDEX grants_revoked ON grants USING btree (workspace_id, id) WHERE (revoked_at IS NOT NULL);
CREATE INDEX held_words_old ON held_words USING btree (held_at);
CREATE INDEX live_runs_of_automation ON live_runs USING btree (automation_id, waits);
CREATE UNIQUE INDEX live_runs_one_per_lane ON live_runs USING btree (lane) WHERE ((lane IS NOT NULL) AND (NOT waits));
CREATE INDEX live_runs_waiting_for_lane ON live_runs USING btree (lane, priority, id) WHERE waits;
CREATE INDEX logins_of_user ON logins USING btree (user_id);
CREATE INDEX members_of_user ON members USING btree (user_id);
CREATE INDEX memory_expiring ON memory USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX notification_targets_by_key ON notification_targets USING btree (key_id);
CREATE INDEX notification_targets_of_user ON notification_targets USING btree (workspace_id, user_id);
CREATE INDEX notifications_by_subject ON notifications USING btree (workspace_id, subject_id) WHERE (read_at IS NULL);
CREATE INDEX notifications_by_time ON notifications USING btree (updated_at);
CREATE INDEX notifications_of_user ON notifications USING btree (workspace_id, user_id, latest_id);
CREATE UNIQUE INDEX notifications_unread ON notifications USING btree (workspace_id, user_id, kind, subject_id) WHERE (read_at IS NULL);
CREATE UNIQUE INDEX pauses_one_at_a_time ON pauses USING btree (workspace_id) WHERE (resumed_at IS NULL);
CREATE INDEX pauses_that_end ON pauses USING btree (until) WHERE (resumed_at IS NULL);
CREATE INDEX rate_buckets_by_time ON rate_buckets USING btree (filled_at);
CREATE INDEX ready_runs_in_order ON ready_runs USING btree (workspace_id, queue, pool, executor, priority, ready_at);
CREATE INDEX reservations_of_holder ON reservations USING btree (workspace_id, holder_id, month, unit);
CREATE INDEX runs_cancelled ON runs USING btree (workspace_id, id) WHERE (error_class = ANY (ARRAY['cancelled_by_user'::text, 'replaced'::text]));
CREATE INDEX runs_failed ON runs USING btree (workspace_id, id) WHERE (error_class <> ALL (ARRAY['cancelled_by_user'::text, 'replaced'::text]));
CREATE INDEX runs_of_agent ON runs USING btree (workspace_id, agent_id, id);
CREATE INDEX runs_of_automation ON runs USING btree (workspace_id, automation_id, id);
CREATE INDEX runs_of_person ON runs USING btree (workspace_id, created_by, id) WHERE (automation_id IS NULL);
CREATE INDEX runs_of_session ON runs USING btree (workspace_id, session_id, id);
CREATE UNIQUE INDEX runs_one_per_key ON runs USING btree (workspace_id, trigger_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE UNIQUE INDEX runs_one_per_slot ON runs USING btree (workspace_id, trigger_id, slot) WHERE (slot IS NOT NULL);
CREATE INDEX runs_skipped ON runs USING btree (workspace_id, id) WHERE (skip_reason IS NOT NULL);
CREATE INDEX sessions_of_agent ON sessions USING btree (workspace_id, agent_id, id);
CREATE INDEX sessions_of_owner ON sessions USING btree (workspace_id, owner_id, id);
CREATE INDEX sessions_of_people ON sessions USING btree (workspace_id, kind, id) WHERE (kind <> 'automation'::text);
CREATE INDEX sessions_of_rare_origin ON sessions USING btree (workspace_id, origin, id) WHERE (origin <> 'schedule'::text);
CREATE INDEX sessions_with_tasks ON sessions USING btree (workspace_id, id) WHERE has_tasks;
CREATE INDEX snapshots_by_time ON snapshots USING btree (taken_at);
CREATE INDEX start_keys_by_time ON start_keys USING brin (created_at);
CREATE INDEX taken_runs_of_agent ON taken_runs USING btree (agent_id);
CREATE INDEX task_dependants ON task_dependencies USING btree (workspace_id, session_id, depends_on);
CREATE INDEX tasks_added_by_run ON tasks USING btree (workspace_id, added_by_run) WHERE (added_by_run IS NOT NULL);
CREATE UNIQUE INDEX tasks_key ON tasks USING btree (workspace_id, session_id, key);
CREATE UNIQUE INDEX tasks_of_run ON tasks USING btree (workspace_id, run_id) WHERE (run_id IS NOT NULL);
CREATE INDEX tasks_open ON tasks USING btree (workspace_id, session_id) WHERE (status = ANY (ARRAY['pending'::text, 'ready'::text]));
CREATE INDEX tasks_releasable ON tasks USING btree (workspace_id, session_id) WHERE ((status = 'pending'::text) AND (unmet = 0));
CREATE INDEX tokens_not_revoked ON tokens USING btree (workspace_id, id) WHERE (revoked_at IS NULL);
CREATE INDEX tokens_of_user ON tokens USING btree (workspace_id, user_id);
CREATE INDEX triggers_after ON triggers USING btree (workspace_id, after_automation_id) WHERE (kind = 'after'::text);
CREATE INDEX triggers_due ON triggers USING btree (next_fire_at) WHERE (next_fire_at IS NOT NULL);
CREATE INDEX triggers_of_automation ON triggers USING btree (workspace_id, automation_id);
CREATE INDEX triggers_of_event ON triggers USING btree (workspace_id, event) WHERE (kind = 'event'::text);
CREATE INDEX triggers_parked ON triggers USING btree (workspace_id, automation_id) WHERE (parked_error IS NOT NULL);
CREATE UNIQUE INDEX triggers_webhook ON triggers USING btree (id) WHERE (kind = 'webhook'::text);
CREATE INDEX usage_of_account ON usage USING btree (workspace_id, account_id, run_id);
CREATE INDEX webhook_secrets_by_key ON webhook_secrets USING btree (key_id);
CREATE INDEX write_keys_by_time ON write_keys USING brin (created_at);

CREATE TRIGGER audit_stays BEFORE DELETE OR UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_change_of_audit();

CREATE TRIGGER audit_stays_whole BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_audit();

CREATE TRIGGER runs_changed AFTER UPDATE ON runs REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();

CREATE TRIGGER runs_deleted AFTER DELETE ON runs REFERENCING OLD TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();

CREATE TRIGGER runs_ended_stay BEFORE UPDATE ON runs FOR EACH ROW WHEN ((old.finished_at IS NOT NULL)) EXECUTE FUNCTION refuse_change_of_ended_run();

CREATE TRIGGER runs_started AFTER INSERT ON runs REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION mirror_live_runs();
ALTER TABLE abandonments ADD CONSTRAINT abandonments_workspace_id_run_id_fkey FOREIGN KEY (workspace_id, run_id) REFERENCES runs(workspace_id, id);
ALTER TABLE accounts ADD CONSTRAINT accounts_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE agents ADD CONSTRAINT agents_created_by_fkey FOREIGN KEY (created_by) REFERENCES users(id);
ALTER TABLE agents ADD CONSTRAINT agents_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE approvals ADD CONSTRAINT approvals_answered_by_fkey FOREIGN KEY (answered_by) REFERENCES users(id);
ALTER TABLE approvals ADD CONSTRAINT approvals_workspace_id_run_id_fkey FOREIGN KEY (workspace_id, run_id) REFERENCES runs(workspace_id, id);
ALTER TABLE artifacts ADD CONSTRAINT artifacts_workspace_id_session_id_fkey FOREIGN KEY (workspace_id, session_id) REFERENCES sessions(workspace_id, id);
ALTER TABLE artifacts ADD CONSTRAINT artifacts_workspace_id_sha256_fkey FOREIGN KEY (workspace_id, sha256) REFERENCES contents(workspace_id, sha256);
ALTER TABLE audit ADD CONSTRAINT audit_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE audit ADD CONSTRAINT audit_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE automations ADD CONSTRAINT automations_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES users(id);
ALTER TABLE automations ADD CONSTRAINT automations_workspace_id_agent_id_fkey FOREIGN KEY (workspace_id, agent_id) REFERENCES agents(workspace_id, id);
ALTER TABLE automations ADD CONSTRAINT automations_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE automations ADD CONSTRAINT automations_workspace_id_grant_id_fkey FOREIGN KEY (workspace_id, grant_id) REFERENCES grants(workspace_id, id);
ALTER TABLE contents ADD CONSTRAINT contents_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE credentials ADD CONSTRAINT credentials_created_by_fkey FOREIGN KEY (created_by) REFERENCES users(id);
ALTER TABLE credentials ADD CONSTRAINT credentials_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE former_credentials ADD CONSTRAINT former_credentials_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE grants ADD CONSTRAINT grants_revoked_by_fkey FOREIGN KEY (revoked_by) REFERENCES users(id);
ALTER TABLE grants ADD CONSTRAINT grants_workspace_id_account_id_fkey FOREIGN KEY (workspace_id, account_id) REFERENCES accounts(workspace_id, id);
ALTER TABLE grants ADD CONSTRAINT grants_workspace_id_user_id_fkey FOREIGN KEY (workspace_id, user_id) REFERENCES members(workspace_id, user_id);
ALTER TABLE held_words ADD CONSTRAINT held_words_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE held_words ADD CONSTRAINT held_words_workspace_id_run_id_fkey FOREIGN KEY (workspace_id, run_id) REFERENCES runs(workspace_id, id);
ALTER TABLE identities ADD CONSTRAINT identities_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE imported_parts ADD CONSTRAINT imported_parts_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE logins ADD CONSTRAINT logins_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE members ADD CONSTRAINT members_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE members ADD CONSTRAINT members_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE memory ADD CONSTRAINT memory_workspace_id_automation_id_fkey FOREIGN KEY (workspace_id, automation_id) REFERENCES automations(workspace_id, id);
ALTER TABLE notification_choices ADD CONSTRAINT notification_choices_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE notification_choices ADD CONSTRAINT notification_choices_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE notification_outbox ADD CONSTRAINT notification_outbox_workspace_id_target_id_fkey FOREIGN KEY (workspace_id, target_id) REFERENCES notification_targets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE notification_targets ADD CONSTRAINT notification_targets_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE notification_targets ADD CONSTRAINT notification_targets_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE notifications ADD CONSTRAINT notifications_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE notifications ADD CONSTRAINT notifications_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE pauses ADD CONSTRAINT pauses_paused_by_fkey FOREIGN KEY (paused_by) REFERENCES users(id);
ALTER TABLE pauses ADD CONSTRAINT pauses_resumed_by_fkey FOREIGN KEY (resumed_by) REFERENCES users(id);
ALTER TABLE pauses ADD CONSTRAINT pauses_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE rate_buckets ADD CONSTRAINT rate_buckets_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE reservations ADD CONSTRAINT reservations_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE revisions ADD CONSTRAINT revisions_created_by_fkey FOREIGN KEY (created_by) REFERENCES users(id);
ALTER TABLE revisions ADD CONSTRAINT revisions_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE runs ADD CONSTRAINT runs_workspace_id_automation_id_fkey FOREIGN KEY (workspace_id, automation_id) REFERENCES automations(workspace_id, id);
ALTER TABLE runs ADD CONSTRAINT runs_workspace_id_session_id_fkey FOREIGN KEY (workspace_id, session_id) REFERENCES sessions(workspace_id, id);
ALTER TABLE session_roles ADD CONSTRAINT session_roles_workspace_id_agent_id_fkey FOREIGN KEY (workspace_id, agent_id) REFERENCES agents(workspace_id, id);
ALTER TABLE session_roles ADD CONSTRAINT session_roles_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE session_roles ADD CONSTRAINT session_roles_workspace_id_grant_id_fkey FOREIGN KEY (workspace_id, grant_id) REFERENCES grants(workspace_id, id);
ALTER TABLE sign_in_links ADD CONSTRAINT sign_in_links_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id);
ALTER TABLE spending ADD CONSTRAINT spending_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE start_keys ADD CONSTRAINT start_keys_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE task_dependencies ADD CONSTRAINT task_dependencies_workspace_id_session_id_depends_on_fkey FOREIGN KEY (workspace_id, session_id, depends_on) REFERENCES tasks(workspace_id, session_id, id);
ALTER TABLE task_dependencies ADD CONSTRAINT task_dependencies_workspace_id_session_id_task_id_fkey FOREIGN KEY (workspace_id, session_id, task_id) REFERENCES tasks(workspace_id, session_id, id);
ALTER TABLE tasks ADD CONSTRAINT tasks_workspace_id_session_id_role_fkey FOREIGN KEY (workspace_id, session_id, role) REFERENCES session_roles(workspace_id, session_id, name);
ALTER TABLE tokens ADD CONSTRAINT tokens_workspace_id_user_id_fkey FOREIGN KEY (workspace_id, user_id) REFERENCES members(workspace_id, user_id);
ALTER TABLE triggers ADD CONSTRAINT triggers_workspace_id_after_automation_id_fkey FOREIGN KEY (workspace_id, after_automation_id) REFERENCES automations(workspace_id, id);
ALTER TABLE triggers ADD CONSTRAINT triggers_workspace_id_automation_id_fkey FOREIGN KEY (workspace_id, automation_id) REFERENCES automations(workspace_id, id);
ALTER TABLE usage_spans ADD CONSTRAINT usage_spans_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE usage_tallies ADD CONSTRAINT usage_tallies_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id);
ALTER TABLE usage ADD CONSTRAINT usage_workspace_id_account_id_fkey FOREIGN KEY (workspace_id, account_id) REFERENCES accounts(workspace_id, id);
ALTER TABLE usage ADD CONSTRAINT usage_workspace_id_run_id_fkey FOREIGN KEY (workspace_id, run_id) REFERENCES runs(workspace_id, id);
ALTER TABLE users ADD CONSTRAINT users_admitted_by_fkey FOREIGN KEY (admitted_by) REFERENCES workspaces(id);
ALTER TABLE webhook_secrets ADD CONSTRAINT webhook_secrets_workspace_id_trigger_id_fkey FOREIGN KEY (workspace_id, trigger_id) REFERENCES triggers(workspace_id, id) ON DELETE CASCADE;
