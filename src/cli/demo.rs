//! `hookgate demo`: the whole way of an event, on this machine, in under a minute.
//!
//! Everything in it is real: a gateway on an embedded ledger, the sample plugin, sockets on loopback, signed requests.
//! Only the receiver is made up, and moody.

mod picture;
mod receiver;

use super::{Context, Exit, Failure, serve};
use crate::app::{Gateway, Options};
use crate::config::{Env, Input, Outside, evaluate};
use crate::delivery::Name;
use crate::secret::Secret;
use crate::telemetry::{self, Metrics};
use crate::verify::{SignRequest, Source, SourceSpec};
use bytes::Bytes;
use picture::{AfterTour, Picture};
use receiver::Receiver;
use serde_json::{Value, json};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const TENANT: &str = "demo";
const SOURCE_SECRET: &str = "a-secret-that-only-the-demo-uses";
const PLUGIN: &[u8] = include_bytes!("../../plugins/sms-rules.wasm");

/// No stage takes longer, or something is wrong.
const STAGE_TIME_MAX: Duration = Duration::from_secs(15);

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

/// A folder that is gone with the demo.
struct Folder(PathBuf);

impl Folder {
    fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(format!("hookgate-demo-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn run(args: &Demo, context: &mut Context<'_>) -> Result<Exit, Failure> {
    telemetry::install_logger(telemetry::LogFormat::Text, "error")
        .map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    let metrics = Metrics::install().map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    serve::runtime(None)?.block_on(tour(args, metrics, context))
}

async fn tour(args: &Demo, metrics: Metrics, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let began = Instant::now();
    let folder = Folder::make()?;
    let receiver = Receiver::start().await?;
    let gateway = start(args, metrics, &folder.0, &receiver).await?;
    let visitor = Visitor::new(&gateway, &folder.0)?;
    let (ingress, admin) = (gateway.ingress_address, gateway.admin_address);
    let stop = CancellationToken::new();
    let running = tokio::spawn(gateway.run(stop.clone()));

    let mut picture = Picture::new(&mut context.output);
    picture.opening(&format!("http://{ingress}"), &format!("http://{admin}"), &receiver.url(""))?;
    let toured = stages(&visitor, &receiver, &mut picture).await;
    let shown = toured.and_then(|dead| {
        picture.closing(began.elapsed())?;
        let after = if args.exit { AfterTour::Ends } else { AfterTour::StaysUp };
        picture.by_hand(&folder.0, (ingress, admin), &dead, after)
    });
    if shown.is_ok() && !args.exit {
        // Without a signal handler there is no waiting: the demo ends.
        let _ = tokio::signal::ctrl_c().await;
    }
    stop.cancel();
    let ended = running.await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    shown?;
    ended.map_err(|e| serve::failed(&e)).map(|()| Exit::Done)
}

/// The gateway of the demo, from a configuration file like anybody's.
async fn start(args: &Demo, metrics: Metrics, folder: &Path, receiver: &Receiver) -> Result<Gateway, Failure> {
    std::fs::write(folder.join("sms-rules.wasm"), PLUGIN)?;
    let text = configuration(args.port, args.admin_port, receiver);
    let path = folder.join("hookgate.toml");
    std::fs::write(&path, &text)?;
    let env = Env::default();
    let report = evaluate(&Input { text: &text, path: &path, env: &env, flags: &[], outside: Outside::Look });
    let lines = report.lines();
    let settings = report.settings.ok_or_else(|| Failure::new(Exit::Failed, lines))?;
    let compiler = crate::plugin::Compiler::this_binary()?;
    let gateway = Gateway::start(Options { settings, env, compiler, metrics }).await.map_err(|e| serve::failed(&e))?;
    // With the ports that were found, so that commands in the folder find the gateway.
    let (ingress, admin) = (gateway.ingress_address.port(), gateway.admin_address.port());
    std::fs::write(&path, configuration(ingress, admin, receiver))?;
    Ok(gateway)
}

fn configuration(port: u16, admin_port: u16, receiver: &Receiver) -> String {
    let receiver_port = receiver.address().port();
    format!(
        r#"[server]
ingress = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin_port}"
ledger = "sqlite:ledger/ledger.db"

[egress]
allow = ["127.0.0.1/32:{receiver_port}"]

[tenants.{TENANT}.sources.shop]
scheme = "github"
secrets = ["{SOURCE_SECRET}"]
body_bytes_max = "256KiB"

[tenants.{TENANT}.plugins.sms-rules]
path = "sms-rules.wasm"

[tenants.{TENANT}.endpoints.sms]
url = "http://127.0.0.1:{receiver_port}/"
event_types = ["message.*"]
plugin = "sms-rules"
plugin_config = {{ path = "/messages", from = "Demo" }}

[tenants.{TENANT}.endpoints.crm]
url = "http://127.0.0.1:{receiver_port}/crm"
event_types = ["contact.*"]
retry = {{ max_attempts = 4, base = "400ms", factor = 2.0, cap = "5s", jitter = "equal" }}
"#
    )
}

/// The five stages. Gives the id of the delivery that died and was redriven.
async fn stages(visitor: &Visitor, receiver: &Receiver, picture: &mut Picture<'_, '_>) -> Result<String, Failure> {
    let hello = json!({"to": "+1 555 0100", "body": "Your table is held until ten."});
    let suspended = json!({"to": receiver::SUSPENDED, "body": "Your hold expires in an hour."});

    let refusal = visitor.post("message.created", &hello, Signature::Forged).await?;
    let kept = visitor.get("events").await?["items"].as_array().map_or(0, Vec::len);
    picture.refused(&refusal, kept)?;

    let accepted = visitor.post("message.created", &hello, Signature::Genuine).await?;
    let delivered = visitor.until_state(&accepted, "delivered").await?;
    picture.delivered(&hello, &receiver.last_body(), &delivered)?;

    let contact = json!({"id": 7, "email": "ada@example.com"});
    let accepted = visitor.post("contact.updated", &contact, Signature::Genuine).await?;
    picture.retried(&visitor.until_state(&accepted, "delivered").await?)?;

    let accepted = visitor.post("message.created", &suspended, Signature::Genuine).await?;
    let dead = visitor.until_state(&accepted, "dead").await?;
    let groups = visitor.get("dlq/groups").await?;
    picture.dead(&dead, &groups["items"][0])?;

    receiver.reinstate();
    let id = dead["id"].as_str().unwrap_or_default().to_owned();
    visitor.redrive(&id).await?;
    picture.redriven(&visitor.until_state(&accepted, "delivered").await?)?;
    Ok(id)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signature {
    Genuine,
    Forged,
}

/// A provider and an operator in one.
struct Visitor {
    http: reqwest::Client,
    inlet: String,
    api: String,
    token: Secret,
    source: Source,
}

impl Visitor {
    fn new(gateway: &Gateway, folder: &Path) -> Result<Self, Failure> {
        let broken = |what: String| Failure::new(Exit::Failed, what);
        let token = std::fs::read_to_string(folder.join("ledger/admin-token"))?;
        let (tenant, source): (Name, Name) = match (TENANT.parse(), "shop".parse()) {
            (Ok(tenant), Ok(source)) => (tenant, source),
            (Err(e), _) | (_, Err(e)) => return Err(broken(e.to_string())),
        };
        let spec = SourceSpec { scheme: "github".to_owned(), ..SourceSpec::default() };
        let source = spec
            .compile(&tenant, &source, vec![Secret::new(SOURCE_SECRET)])
            .map_err(|problems| broken(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
        Ok(Visitor {
            http: super::client::http()?,
            inlet: format!("http://{}/in/{TENANT}/shop", gateway.ingress_address),
            api: format!("http://{}/v1/tenants/{TENANT}", gateway.admin_address),
            token: Secret::new(token.trim()),
            source,
        })
    }

    /// Posts an event as the provider would; the answer with its status.
    async fn post(&self, event_type: &str, body: &Value, signature: Signature) -> Result<Value, Failure> {
        let mut bytes = body.to_string().into_bytes();
        let id = format!("demo-{event_type}-{}", crc32fast::hash(&bytes));
        let request = SignRequest {
            id: &id,
            event_type: Some(event_type),
            timestamp: crate::clock::Timestamp::ZERO,
            url: &self.inlet,
            body: &Bytes::from(bytes.clone()),
        };
        let headers = self.source.sign(request).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
        if signature == Signature::Forged {
            // Signed, then changed: one byte is enough.
            if let Some(last) = bytes.last_mut() {
                *last = b' ';
            }
        }
        let mut request = self.http.post(&self.inlet).header("content-type", "application/json").body(bytes);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(lost)?;
        let status = answer.status().as_u16();
        let mut told: Value = answer.json().await.map_err(lost)?;
        told["http"] = status.into();
        Ok(told)
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        let token = self.token.expose_str().unwrap_or_default();
        let answer = self.http.get(format!("{}/{path}", self.api)).bearer_auth(token).send().await.map_err(lost)?;
        answer.json().await.map_err(lost)
    }

    async fn redrive(&self, delivery: &str) -> Result<(), Failure> {
        let token = self.token.expose_str().unwrap_or_default();
        let url = format!("{}/deliveries/{delivery}/redrive", self.api);
        let note = json!({"note": "the provider reinstated the account"});
        let answer = self.http.post(url).bearer_auth(token).json(&note).send().await.map_err(lost)?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(Failure::new(Exit::Failed, format!("the redrive was answered {}", answer.status()))),
        }
    }

    /// The one delivery of an event with its attempts, once it is in `state`.
    async fn until_state(&self, accepted: &Value, state: &str) -> Result<Value, Failure> {
        let event = accepted["event"].as_str().unwrap_or_default();
        let found = until(|| async {
            let list = self.get(&format!("deliveries?event={event}&state={state}")).await?;
            let Some(id) = list["items"][0]["id"].as_str() else { return Ok(None) };
            self.get(&format!("deliveries/{id}")).await.map(Some)
        });
        found.await?.ok_or_else(|| {
            Failure::new(Exit::Failed, format!("{event} is not {state} after {} s", STAGE_TIME_MAX.as_secs()))
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of `map_err`")]
fn lost(error: reqwest::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the demo's own gateway cannot be spoken to: {error}"))
}

async fn until<F>(mut ask: impl FnMut() -> F) -> Result<Option<Value>, Failure>
where
    F: Future<Output = Result<Option<Value>, Failure>>,
{
    let deadline = Instant::now() + STAGE_TIME_MAX;
    while Instant::now() < deadline {
        if let Some(found) = ask().await? {
            return Ok(Some(found));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(None)
}
