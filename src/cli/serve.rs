//! The arguments of `hookgate serve`.

use crate::config::Override;

/// Run the gateway: ingress, dispatch and admin API in one process
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Serve {
    /// The public listener, instead of server.ingress
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub ingress: Option<String>,
    /// The admin listener, instead of server.admin
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<String>,
    /// The ledger, instead of server.ledger
    #[arg(long, value_name = "sqlite:PATH")]
    pub ledger: Option<String>,
    /// How long a stop waits, instead of server.shutdown_grace
    #[arg(long, value_name = "DURATION")]
    pub shutdown_grace: Option<String>,
    /// What providers call, instead of server.public_url
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
    /// Worker threads, instead of server.threads
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<String>,
    /// How log lines are written, instead of server.log.format
    #[arg(long, value_name = "text|json")]
    pub log_format: Option<String>,
    /// The least level that is logged, instead of server.log.level
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// An address that the guard lets through, instead of egress.allow; may be repeated
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]")]
    pub egress_allow: Vec<String>,
}

impl Serve {
    /// The flags that were given, as settings.
    pub fn overrides(&self) -> Vec<Override> {
        let allow = (!self.egress_allow.is_empty()).then(|| self.egress_allow.join(","));
        let all = [
            ("--ingress", "server.ingress", &self.ingress),
            ("--admin", "server.admin", &self.admin),
            ("--ledger", "server.ledger", &self.ledger),
            ("--shutdown-grace", "server.shutdown_grace", &self.shutdown_grace),
            ("--public-url", "server.public_url", &self.public_url),
            ("--threads", "server.threads", &self.threads),
            ("--log-format", "server.log.format", &self.log_format),
            ("--log-level", "server.log.level", &self.log_level),
            ("--egress-allow", "egress.allow", &allow),
        ];
        let given = |(flag, key, value): (_, _, &Option<String>)| Some(Override { flag, key, value: value.clone()? });
        all.into_iter().filter_map(given).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Env, Input, LogFormat, LogLevel, Outside, evaluate};
    use clap::Parser as _;
    use std::path::Path;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    #[test]
    fn every_flag_acts() {
        let line = Line::parse_from([
            "serve",
            "--ingress=127.0.0.1:1",
            "--admin=127.0.0.1:2",
            "--ledger=sqlite:x.db",
            "--shutdown-grace=3s",
            "--public-url=https://h.example",
            "--threads=4",
            "--log-format=json",
            "--log-level=warn",
            "--egress-allow=127.0.0.1/32:9000",
            "--egress-allow=10.0.0.0/8",
        ]);
        let flags = line.serve.overrides();
        let env = Env::default();
        let path = Path::new("/etc/f.toml");
        let report = evaluate(&Input { text: "", path, env: &env, flags: &flags, outside: Outside::Look });
        let settings = report.settings.unwrap();
        let server = settings.server;
        assert_eq!((server.ingress.port(), server.admin.port(), server.threads), (1, 2, Some(4)));
        assert_eq!(server.ledger, Path::new("x.db"));
        assert_eq!(server.shutdown_grace.as_secs(), 3);
        assert_eq!(server.public_url.unwrap().as_str(), "https://h.example/");
        assert_eq!((server.log.format, server.log.level), (LogFormat::Json, LogLevel::Warn));
        assert_eq!(settings.egress.allow, ["127.0.0.1/32:9000", "10.0.0.0/8"]);
    }

    #[test]
    fn a_wrong_flag_is_named() {
        let flags = [Override { flag: "--threads", key: "server.threads", value: "many".into() }];
        let env = Env::default();
        let path = Path::new("f.toml");
        let report = evaluate(&Input { text: "", path, env: &env, flags: &flags, outside: Outside::Look });
        assert!(report.lines().starts_with("error: --threads: server.threads: expected a whole number"));
    }
}
