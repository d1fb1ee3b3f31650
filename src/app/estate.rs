//! From what the file means to what each room needs of it, at the start and at every reload.

use super::Error;
use super::shipping::{Declared, Shipping, Ware};
use crate::admin::{self, Admin, Shown};
use crate::clock::{Clock, Timestamp};
use crate::config::{
    EndpointSettings, Env, PluginSettings, Pull, Push, SecretRef, Settings, SourceSecret, SourceSettings, Tenant, Way,
};
use crate::delivery::{
    Backoff, BreakerPolicy, Jitter, Name, OnAmbiguous, OnPluginFault, PluginVersionId, RetryPolicy, Route,
};
use crate::dispatch::{self, Advice, InUse, Live, Target, Targets};
use crate::entropy::Entropy;
use crate::ingress::{Adopting, Ingress, Inlet, Routes, Verifier};
use crate::ledger::{
    Declaration, DeclaredEndpoint, DeclaredTenant, Directory, EndpointCaps, EndpointEntry, EndpointKey, Ledger, Slots,
    TenantEntry, TenantKey,
};
use crate::operations::{AlertRoute, Watch, Watched, WatchedTenant};
use crate::plugin::Host;
use crate::secret::Secret;
use crate::verify::standard::{Signer, generate_secret};
use crate::verify::{ExpiringSecret, describe};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// What a lease lasts beyond the exchange it is for: plugin calls, queueing, the commit.
const LEASE_MARGIN: Duration = Duration::from_secs(30);

/// In the place of a host.
const PULLED: &str = "(pull)";

pub(super) type TenantKeys = BTreeMap<Name, TenantKey>;

/// The rooms that take resources.
pub(super) struct Rooms {
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) slots: Arc<Slots>,
    pub(super) targets: Arc<Targets>,
    pub(super) ingress: Arc<Ingress>,
    pub(super) admin: Arc<Admin>,
    pub(super) host: Arc<Host>,
    pub(super) shipping: Arc<Shipping>,
    pub(super) alerts: Arc<Watch>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
}

fn problem(field: String, problem: &impl ToString) -> Error {
    Error::Resource { field, problem: problem.to_string() }
}

/// A plugin as endpoints use it.
enum Supplied {
    File(Arc<Live>, PluginVersionId),
    Uploaded(Arc<Ware>),
}

impl Supplied {
    fn live(&self) -> &Arc<Live> {
        match self {
            Supplied::File(live, _) => live,
            Supplied::Uploaded(ware) => &ware.live,
        }
    }
}

impl Rooms {
    /// Makes everything first, then hands it over, so that an error changes nothing but the ledger's list of names.
    pub(super) async fn apply(&self, settings: &Settings, env: &Env) -> Result<TenantKeys, Error> {
        let mut sources = HashMap::new();
        for (tenant, tenant_settings) in &settings.tenants {
            for (source, s) in &tenant_settings.sources {
                let secret = |secret: &SourceSecret| {
                    let field = || format!("tenants.{tenant}.sources.{source}.secrets");
                    let found = secret.resolve(env).map_err(|e| problem(field(), &e))?;
                    Ok(ExpiringSecret { secret: found, expires: secret.expires })
                };
                let secrets = s.secrets.iter().map(secret).collect::<Result<Vec<_>, Error>>()?;
                let compiled = s.spec.compile_rotating(tenant, source, &secrets).map_err(|problems| {
                    let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
                    problem(format!("tenants.{tenant}.sources.{source}"), &all.join("; "))
                })?;
                sources.insert((tenant.clone(), source.clone()), compiled);
            }
        }
        let mut loaded = HashMap::new();
        for (tenant, tenant_settings) in &settings.tenants {
            for (name, plugin) in &tenant_settings.plugins {
                let PluginSettings::File(path) = plugin else { continue };
                let field = format!("tenants.{tenant}.plugins.{name}.path");
                let wasm =
                    std::fs::read(path).map_err(|e| problem(field.clone(), &format!("{}: {e}", path.display())))?;
                let plugin = self.host.load(tenant, wasm.into()).await.map_err(|rejected| problem(field, &rejected))?;
                for warning in plugin.warnings() {
                    // It was called with a made-up event, which its rules may rightly refuse.
                    tracing::debug!(%tenant, plugin = %name, warning, "a trial call of the plugin faulted");
                }
                loaded.insert((tenant.clone(), name.clone()), plugin);
            }
        }

        let now = self.clock.now();
        let directory = self.ledger.declare(self.declaration(settings), now).await?;
        let (mut plugins, mut filed) = (HashMap::new(), Vec::new());
        for ((tenant, name), plugin) in loaded {
            if let Some(entry) = directory.tenants.get(&tenant) {
                let digest = *plugin.digest().as_bytes();
                let version = self.ledger.plugin_version(entry.key, &name, digest, now).await?;
                let live = Live::new(InUse { rules: Arc::new(plugin), version: Some(version) });
                filed.push(Declared { key: entry.key, tenant: tenant.clone(), name: name.clone() });
                plugins.insert((tenant, name), Supplied::File(Arc::new(live), version));
            }
        }
        for (tenant, tenant_settings) in &settings.tenants {
            let Some(entry) = directory.tenants.get(tenant) else { continue };
            let uploaded = tenant_settings.plugins.iter().filter(|(_, p)| matches!(p, PluginSettings::Uploaded));
            for (name, _) in uploaded {
                let declared = Declared { key: entry.key, tenant: tenant.clone(), name: name.clone() };
                let ware = self.shipping.prepare(declared).await?;
                plugins.insert((tenant.clone(), name.clone()), Supplied::Uploaded(ware));
            }
        }

        let (mut caps, mut targets, mut source_names) = (Vec::new(), HashMap::new(), HashMap::new());
        let (mut inlets, mut tenants) = (Vec::new(), BTreeMap::new());
        let (mut wares, mut others) = (HashMap::<_, Vec<EndpointKey>>::new(), Vec::new());
        for (tenant, tenant_settings) in &settings.tenants {
            let Some(entry) = directory.tenants.get(tenant) else { continue };
            let routes = routes(tenant_settings, entry);
            for (source, s) in &tenant_settings.sources {
                let key = entry.sources.get(source);
                if let (Some(key), Some(compiled)) = (key, sources.remove(&(tenant.clone(), source.clone()))) {
                    source_names.insert(*key, source.clone());
                    let names = ((entry.key, tenant.clone()), (*key, source.clone()));
                    let verifier: Arc<dyn Verifier> = if compiled.whole().waits() {
                        Arc::new(Adopting::new(compiled, *key, Arc::clone(&self.ledger)))
                    } else {
                        Arc::new(compiled)
                    };
                    inlets.push(inlet(settings, s, names, verifier, &routes));
                }
            }
            for (name, e) in &tenant_settings.endpoints {
                let Some(known) = entry.endpoints.get(name) else { continue };
                let of = e.plugin().map(|plugin| (tenant.clone(), plugin.clone()));
                let plugin = of.as_ref().and_then(|of| plugins.get(of));
                let way = match &e.way {
                    Way::Push(push) => {
                        caps.push(caps_of(push, known.key, entry.key));
                        let target = target((tenant, name), e, push, known, plugin.map(Supplied::live), env)?;
                        dispatch::Way::Push(Arc::new(target))
                    }
                    Way::Pull(_) => dispatch::Way::Pull(Arc::new(e.terms.clone())),
                };
                targets.insert(known.key, way);
                match (of, plugin) {
                    (Some(of), Some(Supplied::Uploaded(_))) => wares.entry(of).or_default().push(known.key),
                    (_, _) => others.push(known.key),
                }
            }
            tenants.insert(tenant.clone(), shown(tenant, tenant_settings, entry, &plugins));
        }

        let limits = &settings.limits;
        self.slots.configure(caps, limits.per_tenant_in_flight_max, limits.in_flight_max);
        self.targets.replace(targets, source_names);
        self.ingress.replace_routes(inlets.into_iter().collect::<Routes>());
        self.admin.replace_estate(admin::Estate { tenants });
        let supplied = plugins.into_iter().filter_map(|(of, supplied)| match supplied {
            Supplied::Uploaded(ware) => Some((ware, wares.remove(&of).unwrap_or_default())),
            Supplied::File(..) => None,
        });
        self.shipping.replace(supplied.collect(), filed, others).await;
        self.alerts.replace(watched(settings, &directory));
        Ok(directory.tenants.iter().map(|(name, entry)| (name.clone(), entry.key)).collect())
    }

    fn declaration(&self, settings: &Settings) -> Declaration {
        let tenants = settings.tenants.iter().map(|(name, tenant)| DeclaredTenant {
            name: name.clone(),
            sources: tenant.sources.keys().cloned().collect(),
            endpoints: tenant
                .endpoints
                .iter()
                .map(|(name, endpoint)| DeclaredEndpoint {
                    name: name.clone(),
                    host: host_of(&endpoint.way),
                    generated_secret: signed_by_ours(&endpoint.way).then(|| generate_secret(self.entropy.as_ref())),
                    scrub: endpoint.scrub,
                })
                .collect(),
        });
        Declaration { tenants: tenants.collect() }
    }
}

/// What is watched, and where alerts go.
fn watched(settings: &Settings, directory: &Directory) -> Watched {
    let route = |(tenant, endpoint): (&Name, &Name)| {
        let entry = directory.tenants.get(tenant)?;
        let key = entry.endpoints.get(endpoint)?.key;
        Some(AlertRoute { tenant: (entry.key, tenant.clone()), endpoint: (key, endpoint.clone()) })
    };
    let tenants = settings.tenants.iter().filter_map(|(name, tenant)| {
        Some(WatchedTenant {
            key: directory.tenants.get(name)?.key,
            name: name.clone(),
            thresholds: tenant.alerts.thresholds.clone(),
            payloads: tenant.retention.payloads,
            endpoints: tenant.endpoints.iter().map(|(name, e)| (name.clone(), e.terms.health.disable_after)).collect(),
            plugins: tenant.plugins.keys().cloned().collect(),
            route: tenant.alerts.endpoint.as_ref().and_then(|endpoint| route((name, endpoint))),
        })
    });
    Watched {
        every: settings.alerts.every,
        gateway: settings.alerts.gateway.clone(),
        route: settings.alerts.route.as_ref().and_then(|(tenant, endpoint)| route((tenant, endpoint))),
        tenants: tenants.collect(),
    }
}

fn resolved(secrets: &[SecretRef], env: &Env, field: &str) -> Result<Vec<Secret>, Error> {
    secrets.iter().map(|secret| secret.resolve(env).map_err(|e| problem(field.to_owned(), &e))).collect()
}

/// Where nothing is sent to, no host's name but a word that is none.
fn host_of(way: &Way) -> String {
    match way {
        Way::Push(push) => {
            url::Url::parse(&push.url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
        }
        Way::Pull(_) => PULLED.to_owned(),
    }
}

/// Whether what is sent is signed with a secret that the gateway makes.
fn signed_by_ours(way: &Way) -> bool {
    match way {
        Way::Push(push) => push.signing_secrets.is_empty(),
        Way::Pull(_) => false,
    }
}

fn routes(tenant: &Tenant, entry: &TenantEntry) -> Vec<(EndpointKey, Route)> {
    let known =
        |(name, endpoint): (&Name, &EndpointSettings)| Some((entry.endpoints.get(name)?.key, endpoint.route.clone()));
    tenant.endpoints.iter().filter_map(known).collect()
}

fn inlet(
    settings: &Settings,
    source: &SourceSettings,
    (tenant, (key, name)): ((TenantKey, Name), (crate::ledger::SourceKey, Name)),
    verifier: Arc<dyn Verifier>,
    routes: &[(EndpointKey, Route)],
) -> Inlet {
    let body_bytes_max = source.body_bytes_max.unwrap_or(settings.limits.body_bytes_max);
    let scheme = source.spec.scheme.clone();
    let mut inlet = Inlet::new(tenant, (key, name), &scheme, verifier, body_bytes_max);
    inlet = inlet.with_routes(routes.to_vec());
    if let Some(url) = &settings.server.public_url {
        inlet = inlet.with_public_url(url.as_str());
    }
    if let Some(rate) = &source.rate {
        inlet = inlet.with_rate(rate.period(), NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN));
    }
    inlet
}

fn caps_of(endpoint: &Push, key: EndpointKey, tenant: TenantKey) -> EndpointCaps {
    let burst = |rate: &crate::config::Rate| NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
    EndpointCaps {
        endpoint: key,
        tenant,
        concurrency: endpoint.concurrency,
        lease_for: endpoint.timeout + LEASE_MARGIN,
        rate: endpoint.rate.as_ref().map(|rate| (rate.period(), burst(rate))),
    }
}

fn target(
    (tenant, name): (&Name, &Name),
    endpoint: &EndpointSettings,
    push: &Push,
    known: &EndpointEntry,
    plugin: Option<&Arc<Live>>,
    env: &Env,
) -> Result<Target, Error> {
    let field = |key: &str| format!("tenants.{tenant}.endpoints.{name}.{key}");
    let mut secrets = resolved(&push.signing_secrets, env, &field("signing_secrets"))?;
    if secrets.is_empty() {
        secrets.extend(known.generated_secret.clone());
    }
    let advice = match plugin {
        None => Advice::Builtin,
        Some(live) => Advice::Plugin { live: Arc::clone(live), config: push.plugin_config.to_string().into() },
    };
    Ok(Target {
        tenant: tenant.clone(),
        name: name.clone(),
        url: url::Url::parse(&push.url).map_err(|e| problem(field("url"), &e))?,
        timeout: push.timeout,
        terms: endpoint.terms.clone(),
        order: endpoint.order,
        signer: Signer::new(&secrets).map_err(|e| problem(field("signing_secrets"), &e))?,
        idempotency_header: push.idempotency_header.clone(),
        advice,
    })
}

/// What the API shows of a tenant: never a secret.
fn shown(
    tenant_name: &Name,
    tenant: &Tenant,
    entry: &TenantEntry,
    plugins: &HashMap<(Name, Name), Supplied>,
) -> admin::Tenant {
    let sources = tenant.sources.iter().filter_map(|(name, s)| {
        let (key, adopts) = (*entry.sources.get(name)?, s.secrets.is_empty() && s.spec.adopts());
        Some((name.clone(), admin::Source { key, adopts, shown: Shown::new(source_fields(s)) }))
    });
    let endpoints = tenant.endpoints.iter().filter_map(|(name, e)| {
        let key = entry.endpoints.get(name)?.key;
        let shown = Shown::new(endpoint_fields(e));
        let made = signed_by_ours(&e.way).then(|| entry.endpoints.get(name)?.generated_secret.clone()).flatten();
        let pull = match &e.way {
            Way::Push(_) => None,
            Way::Pull(Pull { lease }) => Some(*lease),
        };
        let endpoint = admin::Endpoint {
            key,
            route: e.route.clone(),
            order: e.order,
            plugin: e.plugin().cloned(),
            generated_secret: made,
            disable_after: e.terms.health.disable_after,
            pull,
            shown,
        };
        Some((name.clone(), endpoint))
    });
    let component_bytes_max = tenant.plugin_limits.component_bytes_max;
    let supplied = tenant.plugins.keys().filter_map(|name| {
        let by_file = match plugins.get(&(tenant_name.clone(), name.clone()))? {
            Supplied::File(_, version) => Some(*version),
            Supplied::Uploaded(_) => None,
        };
        Some((name.clone(), admin::Plugin { by_file, component_bytes_max }))
    });
    let plugins = supplied.collect();
    admin::Tenant { key: entry.key, sources: sources.collect(), endpoints: endpoints.collect(), plugins }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

fn source_fields(source: &SourceSettings) -> Map<String, Value> {
    let told = describe::of_source(&source.spec);
    let window = told.as_ref().and_then(|told| told.ways.iter().find_map(|way| way.window_seconds));
    let mut ends: Vec<_> = source.secrets.iter().filter_map(|secret| secret.expires).collect();
    ends.sort_unstable();
    let ends: Vec<String> = ends.into_iter().map(Timestamp::to_rfc3339).collect();
    object(json!({
        "scheme": source.spec.scheme,
        "secret_count": source.secrets.len(),
        "secrets_expire_at": (!ends.is_empty()).then_some(ends),
        "tolerance": source.spec.tolerance,
        "window": window.map_or_else(|| "none".to_owned(), |seconds| format!("{seconds}s")),
        "dedup": source.spec.dedup,
        "dedup_by": told.as_ref().map(|told| &told.dedup),
        "dedup_window": source.spec.dedup_window,
        "body_bytes_max": source.body_bytes_max,
        "rate": source.rate.as_ref().map(rate_fields),
        "managed_by": "file",
    }))
}

fn rate_fields(rate: &crate::config::Rate) -> Value {
    json!({ "per_second": rate.per_second, "burst": rate.burst })
}

fn retry_fields(retry: &RetryPolicy) -> Value {
    let show = crate::duration::show;
    let mut fields = json!({
        "max_attempts": retry.max_attempts,
        "jitter": match retry.jitter {
            Jitter::None => "none",
            Jitter::Equal => "equal",
            Jitter::Full => "full",
        },
        "max_age": retry.max_age.map(show),
    });
    match &retry.backoff {
        Backoff::Ladder(delays) => fields["delays"] = delays.iter().copied().map(show).collect(),
        Backoff::Exponential { base, factor, cap } => {
            fields["base"] = show(*base).into();
            fields["factor"] = (*factor).into();
            fields["cap"] = show(*cap).into();
        }
    }
    fields
}

fn breaker_fields(breaker: &BreakerPolicy) -> Value {
    let show = crate::duration::show;
    json!({ "failures": breaker.failures, "open": show(breaker.open), "open_max": show(breaker.open_max) })
}

fn endpoint_fields(endpoint: &EndpointSettings) -> Map<String, Value> {
    let show = crate::duration::show;
    let (ordering, on_dead) = endpoint.order.as_words();
    let health = &endpoint.terms.health;
    let mut fields = match &endpoint.way {
        Way::Push(push) => json!({
            "url": push.url,
            "plugin": push.plugin,
            "timeout": show(push.timeout),
            "concurrency": push.concurrency,
            "rate": push.rate.as_ref().map(rate_fields),
            "ordering": ordering,
            "on_dead": on_dead,
            "idempotency_header": push.idempotency_header.as_str(),
            "on_plugin_fault": match endpoint.terms.on_plugin_fault {
                OnPluginFault::Default => "default",
                OnPluginFault::Retry => "retry",
                OnPluginFault::Dead => "dead",
            },
            "breaker": health.breaker.map_or_else(|| json!(false), |breaker| breaker_fields(&breaker)),
            "disable_after": health.disable_after.map_or_else(|| json!(false), |after| show(after).into()),
        }),
        Way::Pull(Pull { lease }) => json!({ "pull": true, "lease": show(*lease) }),
    };
    let common = json!({
        "sources": endpoint.route.sources,
        "event_types": endpoint.route.event_types.patterns(),
        "on_ambiguous": match endpoint.terms.on_ambiguous {
            OnAmbiguous::Retry => "retry",
            OnAmbiguous::Hold => "hold",
        },
        "retry": retry_fields(&endpoint.terms.retry),
        "managed_by": "file",
    });
    let mut all = object(fields.take());
    all.extend(object(common));
    all
}
