//! The arguments of `hookgate demo`.

/// See it work: a gateway, a sample plugin and a moody receiver, without any set-up
#[derive(clap::Args, Clone, Debug)]
pub struct Demo {
    /// End after the tour instead of keeping the gateway up
    #[arg(long)]
    pub exit: bool,
    /// The public listener's port on loopback; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// The admin listener's port on loopback; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    pub admin_port: u16,
}
