//! Raw text to [`Settings`], in two steps: what was written (a tree of values, each with its place), then what it
//! means. All mistakes are reported in one run.
//!
//! Precedence: flag, environment, file, default. Nothing after this room reads a file's keys or the environment.

mod env;
mod secret_ref;
mod settings;

pub use env::Env;
pub use secret_ref::{SecretFault, SecretRef};
pub use settings::{
    Egress, EndpointSettings, Limits, Log, LogFormat, LogLevel, PluginLimits, PluginSettings, Rate, Retention, Server,
    Settings, SourceSettings, Tenant,
};
