//! The calls of a recorded attempt as fixtures: what the plugin was given, and what came of it then.

use super::call::{FAULTED, Recorded};
use crate::delivery::FaultKind;
use crate::plugin::compare::{Making, Told, written};
use crate::plugin::{Limits, fixture::write};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Of the event: a file holds it, as base64 too.
const BODY_BYTES_MAX: usize = 512 << 10;

pub(super) fn of(recorded: &Recorded<'_>, read_bytes_max: usize, limits: &Limits) -> Value {
    let mut row = recorded.row();
    let attempt = recorded.attempt;
    for (field, value) in [("verdict", attempt.verdict.as_deref()), ("reason", Some(attempt.reason.as_str()))] {
        row[field] = json!(value);
    }
    let (mut calls, mut left_out) = (Vec::new(), Vec::new());
    for (call, made) in [("transform", transform(recorded)), ("classify", classify(recorded, read_bytes_max, limits))] {
        match made {
            Ok(None) => {}
            Ok(Some(fixture)) => calls.push(fixture),
            Err(why) => left_out.push(json!({ "call": call, "why": why })),
        }
    }
    row["calls"] = calls.into();
    row["left_out"] = left_out.into();
    row
}

fn description(recorded: &Recorded<'_>) -> String {
    let attempt = recorded.attempt;
    let version = attempt.plugin_version.map_or_else(String::new, |version| format!(", by {version}"));
    format!("Recorded: attempt {} of {}{version}.", attempt.number, attempt.delivery)
}

/// `Ok(None)`: the version had no `transform`, or it was not called.
fn transform(recorded: &Recorded<'_>) -> Result<Option<Value>, &'static str> {
    if recorded.went_as_it_came() {
        return Ok(None);
    }
    let expect = match recorded.making() {
        Some(Making::Skip(reason)) => json!({ "skip": { "reason": reason } }),
        // Of which kind was not kept.
        Some(Making::Fault(..)) => json!({ "fault": {} }),
        Some(Making::Send(request)) => {
            let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (name, value) in &request.headers {
                by_name.entry(name).or_default().push(value);
            }
            let values = |values: &[&str]| if let [one] = values { json!(one) } else { json!(values) };
            let headers: Map<String, Value> =
                by_name.iter().map(|(name, all)| ((*name).to_owned(), values(all))).collect();
            let mut send = json!({
                "method": request.method, "path_and_query": request.path_and_query, "headers": headers,
            });
            let (field, body) = written(request.body.whole().ok_or("too_large")?);
            send[field] = body;
            json!({ "send": send })
        }
        None => return Ok(None),
    };
    let event = recorded.event().ok_or("erased")?;
    if event.payload.len() > BODY_BYTES_MAX {
        return Err("too_large");
    }
    Ok(Some(write::of_transform(&description(recorded), &event, &recorded.endpoint(), &recorded.call(), &expect)))
}

/// `Ok(None)`: the version had no `classify`, or it was not called.
fn classify(recorded: &Recorded<'_>, read_bytes_max: usize, limits: &Limits) -> Result<Option<Value>, &'static str> {
    let fault = recorded.fault().filter(|fault| fault.kind != FaultKind::Unavailable);
    if !recorded.by_plugin() && fault.is_none() || recorded.attempt.outcome == FAULTED {
        return Ok(None);
    }
    let heard = match recorded.heard(limits, read_bytes_max) {
        Ok(heard) => heard,
        Err(super::Silent::NotAsked) => return Ok(None),
        Err(silent) => return Err(silent.as_str()),
    };
    let expect = match fault {
        Some(fault) => json!({ "fault": { "kind": fault.kind } }),
        None => {
            let ruling = recorded.ruling(&heard);
            let mut said = Map::new();
            // A delivered one's may be the host's word where the plugin had none.
            let own = ruling.verdict != "delivered" || recorded.attempt.reason != heard.reason();
            if let Told::Known(Some(reason)) = &ruling.reason
                && own
            {
                said.insert("reason".into(), json!(reason));
            }
            if let Told::Known(reference) = &ruling.reference {
                said.insert("reference".into(), json!(reference));
            }
            json!({ ruling.verdict: said })
        }
    };
    let written =
        write::of_classify(&description(recorded), &recorded.endpoint(), &recorded.call(), &heard.view(), &expect);
    Ok(Some(written))
}
