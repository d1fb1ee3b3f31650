//! `[tenants.<name>]`, and what must fit together within one.

use super::Outside;
use super::alerts;
use super::endpoint::{References, endpoint};
use super::section::{At, Section, Walk, nearest};
use super::server::{Allowed, plugin_limits, retention};
use super::settings::{EndpointSettings, PluginLimits, PluginSettings, Settings, SourceSettings, Tenant};
use super::size;
use super::source::source;
use crate::delivery::Name;
use std::collections::BTreeMap;
use std::path::Path;

/// All tenants, judged by the gateway's own settings, which are read already.
pub(super) fn tenants(
    walk: &mut Walk<'_>,
    root: &mut Section<'_>,
    gateway: &Settings,
    allowed: &[Allowed],
) -> BTreeMap<Name, Tenant> {
    let named = root.named(walk, "tenants");
    named
        .into_iter()
        .map(|(name, section)| {
            let settings = tenant(walk, &name, section, gateway, allowed);
            (name, settings)
        })
        .collect()
}

fn tenant(walk: &mut Walk<'_>, named: &Name, mut s: Section<'_>, gateway: &Settings, allowed: &[Allowed]) -> Tenant {
    let own = s.at();
    let mut limits = gateway.limits.plugins;
    if let Some(mut granted) = s.table(walk, "limits") {
        limits = plugin_limits(walk, &mut granted, limits);
        granted.close(walk);
    }
    let retention = retention(walk, &mut s, gateway.retention);
    let scrub = s.boolean(walk, "scrub").is_some_and(|at| at.value);

    let declared: Vec<(Name, Section<'_>)> = s.named(walk, "plugins");
    let plugins_known: Vec<Name> = declared.iter().map(|(name, _)| name.clone()).collect();
    let mut plugins = BTreeMap::new();
    let mut plugin_places = BTreeMap::new();
    for (name, section) in declared {
        plugin_places.insert(name.clone(), section.at());
        if let Some(settings) = plugin(walk, (named, &name), section, &limits) {
            plugins.insert(name, settings);
        }
    }

    let mut sources = BTreeMap::new();
    let mut sources_known = Vec::new();
    for (name, section) in s.named(walk, "sources") {
        sources_known.push(name.clone());
        if let Some(settings) = source(walk, (named, &name), section, gateway.server.public_url.as_ref()) {
            sources.insert(name, settings);
        }
    }

    let mut endpoints = BTreeMap::new();
    for (name, section) in s.named(walk, "endpoints") {
        let at = section.at();
        let (settings, references) = endpoint(walk, section, &gateway.egress, allowed, scrub);
        check_references(walk, &references, &sources_known, &plugins_known);
        if let Some(plugin) = references.plugin {
            plugin_places.remove(plugin.value.as_str());
        }
        if let Some(settings) = settings {
            check_inputs(walk, &at, &settings, &sources, &limits, gateway.limits.body_bytes_max);
            endpoints.insert(name, settings);
        }
    }
    for at in plugin_places.values() {
        walk.warn(at, "no endpoint uses this plugin", "name it in an endpoint's `plugin`, or remove it");
    }
    if !sources_known.is_empty() && endpoints.is_empty() && !s.has("endpoints") {
        walk.warn(&own, "sources without an endpoint: events are kept and go nowhere", "add an endpoint");
    }
    let alerts = alerts::tenant(walk, &mut s, &gateway.alerts.thresholds, &endpoints);
    s.close(walk);
    Tenant { sources, endpoints, plugins, retention, alerts, plugin_limits: limits }
}

fn plugin(
    walk: &mut Walk<'_>,
    (tenant, name): (&Name, &Name),
    mut s: Section<'_>,
    limits: &PluginLimits,
) -> Option<PluginSettings> {
    let written = s.string(walk, "path");
    let uploaded = !s.has("path");
    if uploaded {
        walk.warn(
            &s.at(),
            "no `path`: the API manages this plugin, and its endpoints wait until a version is active",
            format!("upload one: `hookgate plugin upload {tenant}/{name} FILE --activate`; or write a `path`"),
        );
    }
    s.close(walk);
    if uploaded {
        return Some(PluginSettings::Uploaded);
    }
    let at = written?;
    let path = walk.base_of(&at.place).join(&at.value);
    if walk.outside == Outside::Look {
        match std::fs::File::open(&path).and_then(|file| file.metadata()) {
            Ok(data) if !data.is_file() => {
                walk.reject(&at, format!("`{}` is not a file", path.display()), "name the component's file");
            }
            Ok(data) if data.len() > limits.component_bytes_max => walk.reject(
                &at,
                format!(
                    "the component has {} bytes, over the limit of {}",
                    data.len(),
                    size::show(limits.component_bytes_max)
                ),
                "make it smaller, or raise `component_bytes_max` in the tenant's `limits.plugins`",
            ),
            Ok(_) => look_into(walk, &at, &path, limits),
            Err(e) => walk.reject(
                &at,
                format!("`{}` cannot be read: {e}", path.display()),
                "build the plugin, or correct the path (relative ones start at the configuration file)",
            ),
        }
    }
    Some(PluginSettings::File(path))
}

/// Its form, imports and exports. Whether it compiles is found out when it is loaded.
fn look_into(walk: &mut Walk<'_>, at: &At<String>, path: &Path, limits: &PluginLimits) {
    let Ok(wasm) = std::fs::read(path) else { return };
    let component_bytes_max = usize::try_from(limits.component_bytes_max).unwrap_or(usize::MAX);
    let limits = crate::plugin::Limits { component_bytes_max, ..crate::plugin::Limits::default() };
    if let Err(rejected) = crate::plugin::look(&wasm, &limits) {
        walk.reject(at, format!("not a plugin ({}): {}", rejected.rule, rejected.finding), rejected.remedy);
    }
}

fn check_references(walk: &mut Walk<'_>, references: &References, sources: &[Name], plugins: &[Name]) {
    let sources = references.sources.iter().map(|at| (at, "source", sources));
    let plugins = references.plugin.iter().map(|at| (at, "plugin", plugins));
    for (at, what, known) in sources.chain(plugins) {
        if known.iter().any(|name| name.as_str() == at.value) {
            continue;
        }
        let remedy = match nearest(&at.value, known.iter().map(Name::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("declare it as a table under the tenant's `{what}s`"),
        };
        walk.reject(at, format!("the tenant has no {what} `{}`", at.value), remedy);
    }
}

/// An event larger than the plugin's input limit can never pass it.
fn check_inputs(
    walk: &mut Walk<'_>,
    at: &At<()>,
    endpoint: &EndpointSettings,
    sources: &BTreeMap<Name, SourceSettings>,
    limits: &PluginLimits,
    body_bytes_max: u64,
) {
    if endpoint.plugin().is_none() {
        return;
    }
    let feeds = |name: &Name| endpoint.route.sources.as_ref().is_none_or(|listed| listed.contains(name));
    let largest = |source: &SourceSettings| source.body_bytes_max.unwrap_or(body_bytes_max);
    let too_large: Vec<(&Name, u64)> = sources
        .iter()
        .map(|(name, source)| (name, largest(source)))
        .filter(|(name, bytes)| feeds(name) && *bytes > limits.input_bytes_max)
        .collect();
    let Some(bytes) = too_large.iter().map(|(_, bytes)| *bytes).max() else { return };
    let names: Vec<String> = too_large.iter().map(|(name, _)| format!("`{name}`")).collect();
    walk.warn(
        at,
        format!(
            "{} take{} bodies up to {}, the plugin only up to {}: what is between them dies",
            names.join(", "),
            if names.len() == 1 { "s" } else { "" },
            size::show(bytes),
            size::show(limits.input_bytes_max)
        ),
        "lower the source's `body_bytes_max`, or raise `input_bytes_max` in `limits.plugins`",
    );
}
