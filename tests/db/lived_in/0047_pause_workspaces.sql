-- A pause that somebody ended, and one that ended by itself.

INSERT INTO pauses (workspace_id, id, reason, paused_at, paused_by, until, resumed_at, resumed_by)
SELECT id('house'), id(reason), reason, at, id('admin'), until, at + interval '1 hour', by
  FROM (VALUES ('Moving', timestamptz '2026-06-01 12:00Z', NULL::timestamptz, id('admin')),
               ('Spent', timestamptz '2026-06-02 12:00Z', timestamptz '2026-06-02 13:00Z', NULL)) AS pause(reason, at, until, by);
