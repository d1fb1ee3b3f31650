//! What operators are told of how the gateway was started.

use crate::clock::Timestamp;
use crate::config::Settings;
use crate::duration::show;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// No secret is among it.
pub(super) fn of(settings: &Settings, [ingress, admin]: [SocketAddr; 2], started_at: Timestamp) -> Map<String, Value> {
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started_at": started_at,
        "ingress": ingress,
        "admin": admin,
        "public_url": settings.server.public_url.as_ref().map(ToString::to_string),
        "ledger": settings.server.ledger,
        "egress_allow": settings.egress.allow,
        "egress_allow_http": settings.egress.allow_http,
        "payloads_kept": show(settings.retention.payloads),
        "rows_kept": show(settings.retention.rows),
    });
    match all {
        Value::Object(all) => all,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}
