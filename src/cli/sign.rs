//! The arguments of `hookgate sign`, and those it shares with `send`.

use std::path::PathBuf;

/// What is signed, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Signing {
    /// A built-in scheme
    #[arg(long, default_value = "standard-webhooks")]
    pub scheme: String,
    /// env:NAME, file:PATH, or the secret itself
    #[arg(long)]
    pub secret: String,
    /// The body
    #[arg(long, value_name = "TEXT", conflicts_with = "file", required_unless_present = "file")]
    pub body: Option<String>,
    /// The body, from a file or `-`, byte for byte
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The event's id, where the scheme has one [default: a fresh one]
    #[arg(long)]
    pub id: Option<String>,
    /// The event's type, where the scheme carries it in a header
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// The signed time, in Unix seconds [default: now]
    #[arg(long, value_name = "SECONDS")]
    pub timestamp: Option<i64>,
}

/// Print the headers that sign a body
#[derive(clap::Args, Clone, Debug)]
pub struct Sign {
    #[command(flatten)]
    pub signing: Signing,
}
