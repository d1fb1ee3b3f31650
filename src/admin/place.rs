//! What a path means.

/// A verb on an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndpointVerb {
    Pause,
    Resume,
    Enable,
    Disable,
}

/// What a consumer does at a pull endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PullVerb {
    Consume,
    Ack,
    Nack,
    Extend,
}

/// A verb on a plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PluginVerb {
    Activate,
    Rollback,
    DryRun,
}

/// What a version is tried as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TrialKind {
    Shadow,
    Canary,
}

/// A verb on a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeliveryVerb {
    Redrive,
    Resend,
    Cancel,
    Resolve,
}

/// A verb on many dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DlqVerb {
    Redrive,
    Resolve,
    Purge,
}

/// A verb on an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationVerb {
    Stop,
    Pause,
    Resume,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place<'a> {
    Health,
    Ready,
    Metrics,
    Tenants,
    Alerts,
    System,
    In(&'a str, Scope<'a>),
}

/// A place within a tenant. Names and ids are as they stand in the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope<'a> {
    Tenant,
    Sources,
    Source(&'a str),
    ForgetSecret(&'a str),
    ExplainSource(&'a str),
    Endpoints,
    Endpoint(&'a str),
    EndpointVerb(&'a str, EndpointVerb),
    EndpointSecret(&'a str),
    Replay(&'a str),
    Pull(&'a str, PullVerb),
    Plugins,
    Plugin(&'a str),
    PluginVerb(&'a str, PluginVerb),
    Trial(&'a str, TrialKind),
    PluginAttempts(&'a str),
    Events,
    Event(&'a str),
    EventBody(&'a str),
    Deliveries,
    Delivery(&'a str),
    DeliveryBody(&'a str),
    DeliveryVerb(&'a str, DeliveryVerb),
    Dlq,
    DlqGroups,
    DlqExport,
    DeliveriesExport,
    DlqVerb(DlqVerb),
    CancelMany,
    Operations,
    Operation(&'a str),
    OperationVerb(&'a str, OperationVerb),
    Rejections,
    Alerts,
    Stats,
}

impl<'a> Place<'a> {
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let mut parts = [""; 7];
        let mut count = 0;
        for part in path.strip_prefix('/')?.split('/') {
            *parts.get_mut(count)? = part;
            count += 1;
        }
        let place = match parts.get(..count)? {
            ["healthz"] => Place::Health,
            ["readyz"] => Place::Ready,
            ["metrics"] => Place::Metrics,
            ["v1", "alerts"] => Place::Alerts,
            ["v1", "tenants"] => Place::Tenants,
            ["v1", "system"] => Place::System,
            ["v1", "tenants", tenant, rest @ ..] => Place::In(tenant, Scope::of(rest)?),
            _ => return None,
        };
        Some(place)
    }

    /// The place, if it is open to everybody.
    pub(super) fn without_token(&self) -> Option<Self> {
        match self {
            Place::Health | Place::Ready | Place::Metrics => Some(*self),
            Place::Tenants | Place::System | Place::Alerts | Place::In(..) => None,
        }
    }
}

impl<'a> Scope<'a> {
    fn of(parts: &[&'a str]) -> Option<Self> {
        let scope = match *parts {
            [] => Scope::Tenant,
            ["sources"] => Scope::Sources,
            ["sources", name] => Scope::Source(name),
            ["sources", name, "forget-secret"] => Scope::ForgetSecret(name),
            ["sources", name, "explain"] => Scope::ExplainSource(name),
            ["endpoints"] => Scope::Endpoints,
            ["endpoints", name] => Scope::Endpoint(name),
            ["endpoints", name, "secret"] => Scope::EndpointSecret(name),
            ["endpoints", name, "consume"] => Scope::Pull(name, PullVerb::Consume),
            ["endpoints", name, "ack"] => Scope::Pull(name, PullVerb::Ack),
            ["endpoints", name, "nack"] => Scope::Pull(name, PullVerb::Nack),
            ["endpoints", name, "extend"] => Scope::Pull(name, PullVerb::Extend),
            ["endpoints", name, "replay"] => Scope::Replay(name),
            ["endpoints", name, verb] => {
                let verb = match verb {
                    "pause" => EndpointVerb::Pause,
                    "resume" => EndpointVerb::Resume,
                    "enable" => EndpointVerb::Enable,
                    "disable" => EndpointVerb::Disable,
                    _ => return None,
                };
                Scope::EndpointVerb(name, verb)
            }
            ["plugins"] => Scope::Plugins,
            ["plugins", name] => Scope::Plugin(name),
            ["plugins", name, "activate"] => Scope::PluginVerb(name, PluginVerb::Activate),
            ["plugins", name, "rollback"] => Scope::PluginVerb(name, PluginVerb::Rollback),
            ["plugins", name, "shadow"] => Scope::Trial(name, TrialKind::Shadow),
            ["plugins", name, "canary"] => Scope::Trial(name, TrialKind::Canary),
            ["plugins", name, "dry-run"] => Scope::PluginVerb(name, PluginVerb::DryRun),
            ["plugins", name, "attempts"] => Scope::PluginAttempts(name),
            ["events"] => Scope::Events,
            ["events", id] => Scope::Event(id),
            ["events", id, "body"] => Scope::EventBody(id),
            ["deliveries"] => Scope::Deliveries,
            ["deliveries", "cancel"] => Scope::CancelMany,
            ["deliveries", "export"] => Scope::DeliveriesExport,
            ["deliveries", id] => Scope::Delivery(id),
            ["deliveries", id, "body"] => Scope::DeliveryBody(id),
            ["deliveries", id, verb] => {
                let verb = match verb {
                    "redrive" => DeliveryVerb::Redrive,
                    "resend" => DeliveryVerb::Resend,
                    "cancel" => DeliveryVerb::Cancel,
                    "resolve" => DeliveryVerb::Resolve,
                    _ => return None,
                };
                Scope::DeliveryVerb(id, verb)
            }
            ["dlq"] => Scope::Dlq,
            ["dlq", "groups"] => Scope::DlqGroups,
            ["dlq", "export"] => Scope::DlqExport,
            ["dlq", "redrive"] => Scope::DlqVerb(DlqVerb::Redrive),
            ["dlq", "resolve"] => Scope::DlqVerb(DlqVerb::Resolve),
            ["dlq", "purge"] => Scope::DlqVerb(DlqVerb::Purge),
            ["operations"] => Scope::Operations,
            ["operations", id] => Scope::Operation(id),
            ["operations", id, verb] => {
                let verb = match verb {
                    "stop" => OperationVerb::Stop,
                    "pause" => OperationVerb::Pause,
                    "resume" => OperationVerb::Resume,
                    _ => return None,
                };
                Scope::OperationVerb(id, verb)
            }
            ["rejections"] => Scope::Rejections,
            ["alerts"] => Scope::Alerts,
            ["stats"] => Scope::Stats,
            _ => return None,
        };
        Some(scope)
    }

    /// The methods that mean something here.
    pub(super) fn allow(self) -> &'static str {
        match self {
            Scope::ForgetSecret(_)
            | Scope::ExplainSource(_)
            | Scope::EndpointVerb(..)
            | Scope::Pull(..)
            | Scope::Replay(_)
            | Scope::PluginVerb(..)
            | Scope::DeliveryVerb(..)
            | Scope::DlqVerb(_)
            | Scope::CancelMany
            | Scope::OperationVerb(..) => "POST",
            Scope::Events => "GET, POST",
            Scope::Trial(..) => "POST, DELETE",
            Scope::Plugin(_) => "GET, PUT",
            Scope::Tenant
            | Scope::Sources
            | Scope::Source(_)
            | Scope::Endpoints
            | Scope::Endpoint(_)
            | Scope::EndpointSecret(_)
            | Scope::Plugins
            | Scope::PluginAttempts(_)
            | Scope::Event(_)
            | Scope::EventBody(_)
            | Scope::Deliveries
            | Scope::Delivery(_)
            | Scope::DeliveryBody(_)
            | Scope::Dlq
            | Scope::DlqGroups
            | Scope::DlqExport
            | Scope::DeliveriesExport
            | Scope::Operations
            | Scope::Operation(_)
            | Scope::Rejections
            | Scope::Alerts
            | Scope::Stats => "GET",
        }
    }

    /// Whether what is here is declared in the configuration file.
    pub(super) fn is_of_the_file(self) -> bool {
        matches!(self, Scope::Tenant | Scope::Source(_) | Scope::Endpoint(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_one_thing_or_nothing() {
        assert_eq!(Place::of("/healthz"), Some(Place::Health));
        assert_eq!(Place::of("/v1/tenants"), Some(Place::Tenants));
        assert_eq!(Place::of("/v1/tenants/a"), Some(Place::In("a", Scope::Tenant)));
        assert_eq!(Place::of("/v1/tenants/a/events/e/body"), Some(Place::In("a", Scope::EventBody("e"))));
        let pause = Scope::EndpointVerb("b", EndpointVerb::Pause);
        assert_eq!(Place::of("/v1/tenants/a/endpoints/b/pause"), Some(Place::In("a", pause)));
        let nack = Scope::Pull("b", PullVerb::Nack);
        assert_eq!(Place::of("/v1/tenants/a/endpoints/b/nack"), Some(Place::In("a", nack)));
        for nothing in [
            "",
            "/",
            "*",
            "/healthz/",
            "/v1",
            "/v1/tenants/a/",
            "/v1/tenants/a/endpoints/b/explode",
            "/v1/tenants/a/deliveries/d/redrive/now",
            "/v1/tenants/a/b/c/d/e/f/g/h",
            "/v2/tenants",
        ] {
            assert_eq!(Place::of(nothing), None, "{nothing}");
        }
    }
}
