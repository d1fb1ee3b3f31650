//! The admin API's client: a bearer token, problem+json to a message and an exit code, and lists over pages.

use super::exit::{Exit, Failure};
use super::output::plain;
use super::{Context, Globals};
use crate::config::{self, Env, Settings};
use crate::entropy::{Entropy as _, SystemEntropy};
use crate::secret::Secret;
use bytes::{Bytes, BytesMut};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode, Url, header};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(60);
/// A compilation has its own limit, and others may be before it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// For an answer that comes piece by piece: of all, and between two pieces.
const STREAM_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// For what is nice to know.
const GLANCE_TIMEOUT: Duration = Duration::from_secs(2);
/// An event's body may have 25 MiB; a page of 200 deliveries has far less.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const PAGE: u32 = 200;
/// The file beside the ledger that the first start writes.
const TOKEN_FILE: &str = "admin-token";
const DEFAULT_TENANT: &str = "default";
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// All that is no letter, digit, or one of `-._~` is escaped in a path's segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Secret,
    tenant: Option<String>,
}

/// Where the server is, by which token, and for which tenant: flag, then environment, then what the configuration
/// file tells, then defaults.
impl Client {
    pub fn new(context: &Context<'_>) -> Result<Self, Failure> {
        let Context { globals, env, .. } = context;
        let local = Local::of(globals, env)?;
        let given = globals.url.clone().or_else(|| env.value("HOOKGATE_URL").map(str::to_owned));
        let base = match &given {
            Some(url) => parse_base(url)?,
            None => parse_base(&format!("http://{}", reachable(local.told()?.server.admin)))?,
        };
        let token = match globals.token.as_deref().or_else(|| env.value("HOOKGATE_TOKEN")) {
            Some(token) => Secret::new(token),
            None => local.token(env, &base)?,
        };
        let tenants = local.settings.as_ref().map(|settings| &settings.tenants);
        let only = tenants.ok().filter(|all| all.len() == 1).and_then(|all| all.keys().next()).map(ToString::to_string);
        let tenant = globals.tenant.clone().or_else(|| env.value("HOOKGATE_TENANT").map(str::to_owned)).or(only);
        Ok(Client { http: http()?, base, token, tenant })
    }

    /// The path of the tenant's resources, with `segments` below it.
    pub async fn in_tenant(&mut self, segments: &[&str]) -> Result<String, Failure> {
        let tenant = match &self.tenant {
            Some(tenant) => tenant.clone(),
            None => {
                let found = self.find_tenant().await?;
                self.tenant = Some(found.clone());
                found
            }
        };
        let mut path = String::from("/v1/tenants");
        for segment in std::iter::once(tenant.as_str()).chain(segments.iter().copied()) {
            path.push('/');
            path.extend(utf8_percent_encode(segment, SEGMENT));
        }
        Ok(path)
    }

    /// The only tenant there is, else the one that is called `default`.
    async fn find_tenant(&self) -> Result<String, Failure> {
        let list = match self.get("/v1/tenants", &[]).await {
            Ok(list) => list,
            // A token of one tenant may not list them, and a server may not.
            Err(failure) if matches!(failure.exit, Exit::NotFound) => return Ok(DEFAULT_TENANT.to_owned()),
            Err(failure) => return Err(failure),
        };
        let name = |item: &Value| item["name"].as_str().or_else(|| item["id"].as_str()).map(str::to_owned);
        let names: Vec<String> = list["items"].as_array().into_iter().flatten().filter_map(name).collect();
        match names.as_slice() {
            [only] => Ok(only.clone()),
            [] => Ok(DEFAULT_TENANT.to_owned()),
            several if several.iter().any(|n| n == DEFAULT_TENANT) => Ok(DEFAULT_TENANT.to_owned()),
            several => Err(Failure::usage(
                "there are several tenants",
                format!("name one with --tenant or HOOKGATE_TENANT: {}", plain(&several.join(", "))),
            )),
        }
    }

    /// What became of an event of this tenant, if the server tells so at once.
    pub async fn glance(mut self, tenant: &str, event: &str) -> Option<Value> {
        self.tenant = Some(tenant.to_owned());
        let path = self.in_tenant(&["events", event]).await.ok()?;
        tokio::time::timeout(GLANCE_TIMEOUT, self.get(&path, &[])).await.ok()?.ok()
    }

    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        json(&self.send(Method::GET, path, query).await?)
    }

    /// The bytes as they are.
    pub async fn bytes(&self, path: &str, query: &[(&str, String)]) -> Result<Bytes, Failure> {
        self.send(Method::GET, path, query).await
    }

    /// `Null` when the answer has no body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.post_as(path, body, &fresh_request_id()).await
    }

    /// As [`Client::post`], under a key by which a repetition is known: what was asked over a connection that broke is
    /// asked once more.
    pub async fn post_as(&self, path: &str, body: &Value, request_id: &str) -> Result<Value, Failure> {
        let request = || -> Result<_, Failure> {
            Ok(self.request(Method::POST, path, &[])?.json(body).header(IDEMPOTENCY_KEY, request_id))
        };
        let mut told = exchange(request()?).await;
        if told.as_ref().is_err_and(is_lost) {
            told = exchange(request()?).await;
        }
        let (_, answer) = self.answer(path, told)?;
        if answer.is_empty() { Ok(Value::Null) } else { json(&answer) }
    }

    /// Hands each piece of a long answer on as it comes. [`Exit::Unreachable`] also when it broke off.
    pub async fn stream(
        &self,
        path: &str,
        query: &[(&str, String)],
        take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::GET, path, query)?.timeout(STREAM_TIMEOUT);
        let mut response = request.send().await.map_err(|e| self.unreachable(&e))?;
        if !response.status().is_success() {
            return self.answer(path, read(response).await).map(|_| ());
        }
        loop {
            match tokio::time::timeout(STALL_TIMEOUT, response.chunk()).await {
                Ok(Ok(Some(piece))) => take(&piece)?,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(_)) | Err(_) => {
                    let failure = Failure::new(Exit::Unreachable, "the answer broke off before its end");
                    return Err(failure.with_remedy("ask again; the server's log may tell why"));
                }
            }
        }
    }

    pub async fn delete(&self, path: &str) -> Result<Value, Failure> {
        json(&self.send(Method::DELETE, path, &[]).await?)
    }

    /// Uploads a component; the status tells whether it is new.
    pub async fn put_wasm(
        &self,
        path: &str,
        query: &[(&str, String)],
        wasm: Vec<u8>,
    ) -> Result<(StatusCode, Value), Failure> {
        let request = self.request(Method::PUT, path, query)?;
        let request = request.header(header::CONTENT_TYPE, "application/wasm").body(wasm).timeout(UPLOAD_TIMEOUT);
        let (status, answer) = self.answer(path, exchange(request).await)?;
        Ok((status, json(&answer)?))
    }

    /// Up to `limit` items over as many pages as it takes, as one document.
    pub async fn list(&self, path: &str, query: &[(&str, String)], limit: u32) -> Result<Value, Failure> {
        let mut items: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let left = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
            let mut query = query.to_vec();
            query.push(("limit", left.min(PAGE).to_string()));
            query.extend(cursor.take().map(|c| ("cursor", c)));
            let mut page = self.get(path, &query).await?;
            let before = items.len();
            if let Some(found) = page["items"].as_array_mut() {
                items.append(found);
            }
            let next = page["next"].as_str().map(str::to_owned);
            // A server that promises more and sends nothing would keep us here for ever.
            let full = items.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
            if full || next.is_none() || items.len() == before {
                return Ok(serde_json::json!({ "items": items, "next": next }));
            }
            cursor = next;
        }
    }

    async fn send(&self, method: Method, path: &str, query: &[(&str, String)]) -> Result<Bytes, Failure> {
        let request = self.request(method, path, query)?;
        Ok(self.answer(path, exchange(request).await)?.1)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<reqwest::RequestBuilder, Failure> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let bearer = [b"Bearer ", self.token.expose()].concat();
        let mut bearer = header::HeaderValue::from_bytes(&bearer)
            .map_err(|_| Failure::usage("the token has characters that no token has", "check HOOKGATE_TOKEN"))?;
        bearer.set_sensitive(true);
        Ok(self.http.request(method, url).header(header::AUTHORIZATION, bearer))
    }

    fn answer(&self, path: &str, told: reqwest::Result<Told>) -> Result<(StatusCode, Bytes), Failure> {
        let Told { status, answer } = told.map_err(|e| self.unreachable(&e))?;
        let answer = answer.ok_or_else(|| Failure::new(Exit::Failed, "the answer is larger than 64 MiB"))?;
        if status.is_success() {
            return Ok((status, answer));
        }
        let mut failure = refusal(status.as_u16(), &answer);
        if let Some(asked) = asked(path).filter(|_| failure.exit == Exit::NotFound) {
            failure.message = format!("{}: {}", plain(&asked), failure.message);
        }
        Err(failure)
    }

    fn unreachable(&self, e: &reqwest::Error) -> Failure {
        let why = if e.is_timeout() { "it did not answer in time" } else { "no connection, or it broke" };
        Failure::new(Exit::Unreachable, format!("the server at {} cannot be reached: {why}", self.base))
            .with_remedy("is `hookgate serve` running? Name its admin address with --url or HOOKGATE_URL")
    }
}

struct Told {
    status: StatusCode,
    /// `None`: larger than what is read.
    answer: Option<Bytes>,
}

async fn exchange(request: reqwest::RequestBuilder) -> reqwest::Result<Told> {
    read(request.send().await?).await
}

async fn read(mut response: reqwest::Response) -> reqwest::Result<Told> {
    let status = response.status();
    let mut answer = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Ok(Told { status, answer: None });
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(Told { status, answer: Some(answer.freeze()) })
}

/// Whether the request may have arrived, and its answer cannot arrive any more.
fn is_lost(error: &reqwest::Error) -> bool {
    !(error.is_connect() || error.is_timeout() || error.is_builder())
}

/// A key that no other request has.
pub(super) fn fresh_request_id() -> String {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes);
    hex::encode(bytes)
}

fn json(answer: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(answer).map_err(|_| {
        Failure::new(Exit::Failed, "the answer is not JSON")
            .with_remedy("does --url lead to the admin listener of a hookgate?")
    })
}

pub(super) fn http() -> Result<reqwest::Client, Failure> {
    // Another part of the process may have installed one before: that one does as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent(concat!("hookgate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| Failure::new(Exit::Failed, format!("no HTTP client can be made: {e}")))
}

fn parse_base(text: &str) -> Result<Url, Failure> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty() => Ok(url),
        Ok(_) | Err(_) => Err(Failure::usage(
            "the server's URL is not one",
            "write e.g. --url http://127.0.0.1:8081, without a user name",
        )),
    }
}

/// A listener on all addresses is reached over loopback.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

/// What the configuration on this machine tells of the server.
struct Local {
    /// Nobody named the file, and it has mistakes: a failure for who needs what it says.
    settings: Result<Settings, Failure>,
}

impl Local {
    fn of(globals: &Globals, env: &Env) -> Result<Self, Failure> {
        match globals.settings(env) {
            Err(failure) if globals.config_path(env).is_some() => Err(failure),
            settings => Ok(Local { settings }),
        }
    }

    fn told(&self) -> Result<&Settings, Failure> {
        self.settings.as_ref().map_err(Failure::clone)
    }

    /// The operator's token, for a server on this machine: it is nobody else's business.
    fn token(&self, env: &Env, base: &Url) -> Result<Secret, Failure> {
        let none = |why: String| {
            Err(Failure::new(Exit::NotAllowed, format!("no token: {why}")).with_remedy(
                "is `hookgate serve` running here? The first start writes it. Else give one with HOOKGATE_TOKEN, \
                 --token, or --config and the file beside its ledger",
            ))
        };
        let server = &self.told()?.server;
        let here = match base.host() {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback() || IpAddr::V4(ip) == server.admin.ip(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback() || IpAddr::V6(ip) == server.admin.ip(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if !here {
            return none("the local one is not sent to another machine".to_owned());
        }
        if let Some(token) = &server.admin_token {
            return Ok(token.clone());
        }
        let file = server.ledger.with_file_name(TOKEN_FILE);
        let found = config::SecretRef::File(file).resolve(env);
        found.or_else(|fault| none(fault.to_string()))
    }
}

/// The id or name that a path below a tenant asks for, as it was given.
fn asked(path: &str) -> Option<String> {
    let mut segments = path.strip_prefix("/v1/tenants/")?.split('/');
    let (tenant, noun) = (segments.next()?, segments.next());
    // Without an id it can only be the tenant that is unknown.
    let id = segments.next().filter(|id| noun != Some("dlq") && !["export", "cancel"].contains(id)).unwrap_or(tenant);
    Some(percent_encoding::percent_decode_str(id).decode_utf8_lossy().into_owned())
}

/// What a refused request means for whoever asked.
pub(super) fn refusal(status: u16, answer: &[u8]) -> Failure {
    let problem: Value = serde_json::from_slice(answer).unwrap_or_default();
    let field = |name: &str| problem[name].as_str().map(plain);
    let said = field("detail").or_else(|| field("title")).unwrap_or_else(|| format!("the server answered {status}"));
    let message = match field("code") {
        Some(code) => format!("{said} ({code})"),
        None => said,
    };
    let (exit, hint) = match status {
        400 | 413 | 415 | 422 => (Exit::Usage, None),
        401 => (Exit::NotAllowed, Some("the token is not valid here: check HOOKGATE_TOKEN or --token")),
        403 => (Exit::NotAllowed, Some("this token may not do that: use one with another role")),
        404 => (Exit::NotFound, Some("check the id, and --tenant")),
        409 => (Exit::Conflict, None),
        429 | 503 => (Exit::Failed, Some("try again in a while")),
        _ => (Exit::Failed, None),
    };
    Failure { exit, message, remedy: field("remedy").or_else(|| hint.map(str::to_owned)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_exit() {
        for (status, exit) in [
            (400, Exit::Usage),
            (401, Exit::NotAllowed),
            (403, Exit::NotAllowed),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (413, Exit::Usage),
            (422, Exit::Usage),
            (429, Exit::Failed),
            (500, Exit::Failed),
            (503, Exit::Failed),
            (302, Exit::Failed),
        ] {
            assert_eq!(refusal(status, b"").exit, exit, "{status}");
        }
        let told =
            refusal(409, br#"{"title":"Conflict","detail":"gone\u001b","code":"payload_erased","remedy":"send one"}"#);
        assert_eq!(told.message, "gone\\u{1b} (payload_erased)");
        assert_eq!(told.remedy.as_deref(), Some("send one"));
        assert_eq!(refusal(500, b"<html>").message, "the server answered 500");
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (path, named) in [
            ("/v1/tenants/acme/deliveries/dlv_1", Some("dlv_1")),
            ("/v1/tenants/acme/deliveries/dlv_1/redrive", Some("dlv_1")),
            ("/v1/tenants/acme/endpoints/a%20b", Some("a b")),
            ("/v1/tenants/acme/deliveries", Some("acme")),
            ("/v1/tenants/acme/dlq/groups", Some("acme")),
            ("/v1/tenants/acme/deliveries/export", Some("acme")),
            ("/v1/tenants/acme/deliveries/cancel", Some("acme")),
            ("/v1/tenants", None),
        ] {
            assert_eq!(asked(path).as_deref(), named, "{path}");
        }
    }

    #[test]
    fn listeners_on_all_addresses_are_reached_over_loopback() {
        for (listener, reached) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")] {
            assert_eq!(reachable(listener.parse().unwrap()).to_string(), reached);
        }
    }
}
