//! The real binary in a folder of its own: configured, started, spoken to, stopped, killed, started again.

use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub const TOKEN: &str = "test-operator-token";
pub const GITHUB_SECRET: &str = "it-is-a-test-secret-for-github";

/// A folder with a configuration, and perhaps a process that runs on it.
pub struct Gateway {
    pub dir: tempfile::TempDir,
    pub ingress: String,
    pub admin: String,
    /// Further variables for the process.
    pub env: std::collections::BTreeMap<&'static str, String>,
    child: Option<Child>,
    http: reqwest::Client,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A port that nobody has: below those that the system gives to outgoing connections, and none twice in this process.
fn free_port() -> u16 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let begin = std::process::id() * 64;
    for _ in 0..20_000 {
        let n = begin.wrapping_add(NEXT.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        let port = u16::try_from(11_000 + n % 20_000).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

impl Gateway {
    /// Writes `tenants` below a server section with fresh ports, and starts. Loopback is allowed as a destination.
    pub async fn start(tenants: &str) -> Gateway {
        let mut gateway = Gateway::stopped(tenants);
        gateway.boot().await;
        gateway
    }

    pub fn stopped(tenants: &str) -> Gateway {
        Gateway::with("", tenants)
    }

    /// `extra`: further lines for the `[server]` section, and sections before the tenants.
    pub fn with(extra: &str, tenants: &str) -> Gateway {
        Gateway::of_file(extra, &format!("[egress]\nallow = [\"127.0.0.1/32\"]\n{tenants}"))
    }

    /// `rest`: a file without `[server]`.
    pub fn of_file(extra: &str, rest: &str) -> Gateway {
        let dir = tempfile::tempdir().unwrap();
        let (ingress, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let mut text = String::new();
        writeln!(text, "[server]\ningress = \"{ingress}\"\nadmin = \"{admin}\"").unwrap();
        writeln!(text, "ledger = \"sqlite:{}\"", dir.path().join("data/ledger.db").display()).unwrap();
        writeln!(text, "{extra}\n{rest}").unwrap();
        std::fs::write(dir.path().join("hookgate.toml"), text).unwrap();
        // Whoever was first has installed it.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
        Gateway { dir, ingress, admin, env: Default::default(), child: None, http }
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("hookgate.toml")
    }

    /// The binary with the folder's configuration in its environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hookgate"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOOKGATE_ADMIN_TOKEN", TOKEN).env("HOOKGATE_TOKEN", TOKEN).env("NO_COLOR", "1");
        command.env("HOOKGATE_URL", format!("http://{}", self.admin)).env("HOOKGATE_TENANT", "acme");
        command.envs(&self.env);
        command
    }

    /// Starts the process without waiting for it to be ready.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "already running");
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).unwrap();
        let config = self.config();
        let mut command = self.command(&["serve", "--config", config.to_str().unwrap()]);
        command.env_remove("HOOKGATE_TOKEN").env_remove("HOOKGATE_URL").env_remove("HOOKGATE_TENANT");
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Starts the process and waits until it is ready.
    pub async fn boot(&mut self) {
        self.spawn();
        super::until("the gateway is ready", || async {
            let ready = self.http.get(format!("http://{}/readyz", self.admin)).send().await;
            ready.ok().filter(|r| r.status() == 200).map(|_| ())
        })
        .await;
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("serve.log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("running").id()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child that we own and have not waited for.
        #[allow(unsafe_code)]
        let sent = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(sent, 0);
    }

    /// `kill -9`, and gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.take().unwrap().wait().unwrap();
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.exit().await
    }

    /// Waits for the process to end by itself.
    pub async fn exit(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("running");
        super::until("the gateway has ended", || {
            let ended = child.try_wait().unwrap();
            async move { ended }
        })
        .await
    }

    pub fn running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, text: response.text().await? })
    }

    /// A request to the admin API with the operator's token; `path` is below the tenant.
    pub fn api(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}/v1/tenants/acme/{path}", self.admin);
        self.http.request(method.parse().unwrap(), url).bearer_auth(TOKEN)
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.send(self.api("GET", path)).await.unwrap();
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text);
        answer.json()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.api("POST", path).json(body)).await.unwrap()
    }

    /// An unsigned request to an inlet.
    pub fn inlet(&self, source: &str, body: impl Into<Vec<u8>>) -> reqwest::RequestBuilder {
        let url = format!("http://{}/in/acme/{source}", self.ingress);
        self.http.post(url).header("content-type", "application/json").body(body.into())
    }

    /// A request as GitHub signs it.
    pub fn github(&self, delivery: &str, event: &str, body: &str) -> reqwest::RequestBuilder {
        self.inlet("github", body)
            .header("x-github-event", event)
            .header("x-github-delivery", delivery)
            .header("x-hub-signature-256", github_signature(GITHUB_SECRET, body.as_bytes()))
    }

    /// Sends it and expects it to be taken.
    pub async fn accepted(&self, request: reqwest::RequestBuilder) -> String {
        let answer = self.send(request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["event"].as_str().unwrap().to_owned()
    }

    /// Waits until `n` deliveries match `query` (e.g. `state=delivered`).
    pub async fn until_deliveries(&self, query: &str, n: usize) -> Vec<Value> {
        super::until(&format!("{n} deliveries with {query}"), || async {
            let items = self.get(&format!("deliveries?limit=200&{query}")).await["items"].as_array().unwrap().clone();
            (items.len() >= n).then_some(items)
        })
        .await
    }

    /// Waits until nothing is pending and nothing in flight.
    pub async fn until_drained(&self) {
        super::until("nothing is under way", || async {
            let left = (self.metric("hookgate_pending ").await, self.metric("hookgate_in_flight ").await);
            (left == (Some(0.0), Some(0.0))).then_some(())
        })
        .await;
    }

    /// One delivery with its attempts.
    pub async fn delivery(&self, id: &str) -> Value {
        self.get(&format!("deliveries/{id}")).await
    }

    /// One sample of a metric: the first line that begins so.
    pub async fn metric(&self, line_start: &str) -> Option<f64> {
        let text = self.http.get(format!("http://{}/metrics", self.admin)).send().await.unwrap().text().await.unwrap();
        text.lines().find(|l| l.starts_with(line_start))?.rsplit(' ').next()?.parse().ok()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of the gateway\n{}", self.log());
        }
    }
}

pub fn github_signature(secret: &str, body: &[u8]) -> String {
    use hmac::{KeyInit as _, Mac as _};
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
}

/// The section of a source as GitHub signs.
pub fn github_source() -> String {
    format!("[tenants.acme.sources.github]\nscheme = \"github\"\nsecrets = [\"{GITHUB_SECRET}\"]\n")
}

/// An endpoint's section with quick retries; `more` are further lines.
pub fn endpoint(name: &str, url: &str, more: &str) -> String {
    format!(
        "[tenants.acme.endpoints.{name}]\nurl = \"{url}\"\n\
         retry = {{ max_attempts = 3, delays = [\"50ms\", \"100ms\"], jitter = \"none\" }}\n{more}\n"
    )
}
