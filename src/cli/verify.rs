//! The arguments of `hookgate verify`.

use std::path::PathBuf;

/// Say whether a request is valid, or which step failed and why
#[derive(clap::Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["request", "cases"]))]
pub struct Verify {
    /// A built-in scheme
    #[arg(long, required_unless_present = "cases")]
    pub scheme: Option<String>,
    /// env:NAME, file:PATH, or the secret itself; may be repeated
    #[arg(long = "secret", value_name = "SECRET", required_unless_present = "cases")]
    pub secrets: Vec<String>,
    /// A raw HTTP request: request line, headers, an empty line, body
    #[arg(long, value_name = "FILE")]
    pub request: Option<PathBuf>,
    /// The time to verify at, in Unix seconds [default: now]
    #[arg(long, value_name = "SECONDS", requires = "request")]
    pub now: Option<i64>,
    /// What the provider calls, for schemes that sign the URL
    #[arg(long, value_name = "URL", requires = "request")]
    pub public_url: Option<String>,
    /// A file of cases, each with what is expected of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheme", "secrets"])]
    pub cases: Option<PathBuf>,
}
