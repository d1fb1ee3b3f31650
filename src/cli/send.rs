//! The arguments of `hookgate send`.

use super::sign::Signing;

/// Sign a body and post it
#[derive(clap::Args, Clone, Debug)]
pub struct Send {
    /// Where to, e.g. http://127.0.0.1:8080/in/acme/github
    pub to: String,
    #[command(flatten)]
    pub signing: Signing,
    /// The body's content type
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    pub content_type: String,
    /// Another header, as `Name: value`; may be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
}
