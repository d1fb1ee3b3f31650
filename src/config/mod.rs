//! Raw text to [`Settings`], in two steps: what was written (a tree of values, each with its place), then what it
//! means. All mistakes are reported in one run.
//!
//! Precedence: flag, environment, file, default. Nothing after this room reads the file or the environment. Relative
//! paths start at the file that says them; those from the environment and from flags start at the working directory.

mod alerts;
mod endpoint;
mod env;
mod health;
mod problem;
mod pull;
mod reference;
mod report;
mod secret_ref;
mod section;
mod server;
mod settings;
mod size;
mod source;
mod tenant;
mod tree;

#[cfg(test)]
mod tests;

pub use env::Env;
pub use problem::{Colour, Position, Problem};
pub use reference::reference;
pub use report::{DEFAULT_PATH, Input, Outside, Override, Report, Unreadable, check, evaluate, read};
pub use secret_ref::{SecretFault, SecretRef};
pub use settings::{
    Alerts, Egress, EndpointSettings, Limits, Log, LogFormat, LogLevel, PluginLimits, PluginSettings, Pull, Push, Rate,
    Retention, Server, Settings, SourceSecret, SourceSettings, Tenant, TenantAlerts, Way,
};
