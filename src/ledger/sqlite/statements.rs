//! The writer's statements, prepared once. What is asked rarely is prepared when it is asked, beside its verb.

use rusqlite::{Connection, Result, Statement};

macro_rules! statements {
    ($($name:ident: $sql:expr;)*) => {
        pub(super) struct Statements<'c> {
            $(pub $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
                Ok(Statements { $($name: connection.prepare($sql)?,)* })
            }
        }
    };
}

/// A delivery as it is accepted: pending, or in its first attempt.
pub(super) const INSERT_DELIVERY: &str = "INSERT INTO delivery (tenant, id, event, origin, endpoint, host, sequence, \
    state, generation, revision, attempts, counted, interrupted, began_at, due_at, token, started_at) \
    VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, 1, 1, ?7, 0, 0, ?8, ?9, 0, ?10)";

statements! {
    begin: "BEGIN IMMEDIATE";
    commit: "COMMIT";
    rollback: "ROLLBACK";

    insert_payload: "INSERT INTO payload (id, tenant, event, delivery, revision, content) VALUES (?, ?, ?, ?, ?, ?)";
    insert_event: "INSERT INTO event (tenant, id, source, type, key, provider_id, content_type, payload, body_bytes, \
                   accepted_at, deliver_at, expires_at, deadline, last) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    insert_delivery: INSERT_DELIVERY;
    insert_settled: "INSERT INTO delivery (tenant, id, event, origin, endpoint, host, sequence, state, generation, \
                     revision, attempts, counted, interrupted, began_at, due_at, token, reason, last_status, \
                     reference, finished_at) \
                     VALUES (?, ?, ?, 0, ?, ?, ?, ?, 1, 1, 1, ?, ?, ?, ?, 0, ?, ?, ?, ?)";
    insert_birth: "INSERT INTO birth (id, born) VALUES (?, ?)";
    delete_birth: "DELETE FROM birth WHERE id = ?";
    insert_tally_note: "INSERT INTO tally_note (id, counts) VALUES (?, ?)";
    set_sequence: "UPDATE endpoint SET sequence = ? WHERE id = ?";
    set_health: "UPDATE endpoint SET failures = ?, failing_since = ?, alerted_at = ?, tripped_at = ?, tripped_until = ?, \
                 tripped_ms = ? WHERE id = ?";
    set_status: "UPDATE endpoint SET status = ?, until = ?, why = ? WHERE id = ?";

    find_recent: "SELECT seq, entries FROM dedup_recent WHERE seq <= ? ORDER BY seq DESC LIMIT 1";
    insert_recent: "INSERT INTO dedup_recent (seq, entries) VALUES (?, ?)";
    find_cold: "SELECT event, body_digest, until FROM dedup_cold WHERE digest = ?";
    insert_cold: "INSERT OR REPLACE INTO dedup_cold (digest, event, body_digest, until) VALUES (?, ?, ?, ?)";
    sweep_cold: "DELETE FROM dedup_cold WHERE digest > ? AND digest < ? AND until <= ?";

    due: "SELECT d.tenant, d.id, d.event, d.origin, d.sequence, d.generation, d.revision, d.attempts, d.counted, \
          d.interrupted, d.began_at, d.token, d.payload, e.source, e.type, e.content_type, e.key, e.accepted_at, \
          e.expires_at, e.payload, e.deliver_at, e.idempotency_key \
          FROM delivery d INDEXED BY delivery_live \
          LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
          WHERE d.state = 0 AND d.endpoint = ?1 AND d.due_at <= ?2 ORDER BY d.due_at LIMIT ?3";
    next_due: "SELECT min(due_at) FROM delivery INDEXED BY delivery_live \
               WHERE state = 0 AND endpoint = ? AND due_at < ?";
    start: "UPDATE delivery SET state = 1, due_at = ?3, token = ?4, attempts = ?5, started_at = ?6, leased_for = ?7 \
            WHERE tenant = ?1 AND id = ?2";

    insert_attempt: "INSERT INTO attempt (tenant, delivery, number, token, generation, revision, started_at, \
                     duration_ms, outcome, status, verdict, reason, decided_by, disposition, next_at, \
                     clamped_from_ms, ambiguous, plugin_version, plugin_us, log_dropped, detail) \
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    settle: "UPDATE delivery SET state = ?4, due_at = ?5, counted = counted + ?6, interrupted = ?7, started_at = NULL, \
             reason = ?8, last_status = coalesce(?9, last_status), reference = ?10, finished_at = ?11 \
             WHERE tenant = ?1 AND id = ?2 AND state = 1 AND token = ?3";

    expired: "SELECT d.tenant, d.id, d.endpoint, d.counted, d.interrupted, d.began_at, d.token, d.generation, \
              d.revision, d.attempts, d.started_at, e.expires_at \
              FROM delivery d INDEXED BY delivery_live \
              LEFT JOIN event e ON e.tenant = d.tenant AND e.id = d.event \
              WHERE d.state = 1 AND d.due_at <= ?1 AND (d.leased_for IS NULL OR d.due_at <= ?3) \
              ORDER BY d.due_at LIMIT ?2";
    overdue: "SELECT d.tenant, d.id, d.endpoint, d.counted, d.interrupted, d.began_at, d.token, d.generation, \
              d.revision, d.attempts, d.began_at, e.expires_at \
              FROM event e INDEXED BY event_expiry \
              JOIN delivery d ON d.tenant = e.tenant AND d.id > e.id AND d.id <= e.last \
              WHERE e.expires_at > ?1 AND e.expires_at <= ?2 AND d.event = e.id AND d.state = 0 \
              UNION ALL SELECT d.tenant, d.id, d.endpoint, d.counted, d.interrupted, d.began_at, d.token, d.generation, \
              d.revision, d.attempts, d.began_at, e.expires_at \
              FROM event e INDEXED BY event_expiry \
              JOIN delivery d INDEXED BY delivery_again ON d.tenant = e.tenant AND d.event = e.id AND d.origin > 0 \
              WHERE e.expires_at > ?1 AND e.expires_at <= ?2 AND d.state = 0 LIMIT ?3";
    take_over: "UPDATE delivery SET token = ?3, due_at = ?4, leased_for = NULL WHERE tenant = ?1 AND id = ?2";

    oldest_dead: "SELECT min(finished_at) FROM delivery INDEXED BY delivery_dead_age WHERE state = 4";
}
