//! The arguments of `hookgate listen`.

/// A receiver that prints what it gets, and verifies it
#[derive(clap::Args, Clone, Debug)]
pub struct Listen {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9000")]
    pub address: std::net::SocketAddr,
    /// Verify with this scheme
    #[arg(long, default_value = "standard-webhooks")]
    pub scheme: String,
    /// env:NAME, file:PATH, or the secret itself; may be repeated; without one nothing is verified
    #[arg(long = "secret", value_name = "SECRET")]
    pub secrets: Vec<String>,
    /// The statuses to answer with, in turn; the last one repeats
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', default_value = "200",
          value_parser = clap::value_parser!(u16).range(200..=599))]
    pub answer: Vec<u16>,
    /// End after so many requests
    #[arg(long)]
    pub count: Option<u64>,
}
