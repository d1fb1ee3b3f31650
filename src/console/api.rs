//! The API, asked within the process.

use super::form::Form;
use super::show::Told;
use crate::admin::Admin;
use crate::http::{Answer, Connection};
use crate::secret::Secret;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) struct Api<'a> {
    admin: &'a Admin,
    token: &'a Secret,
    connection: &'a Connection,
}

/// A request to the API.
struct Ask<'a> {
    method: Method,
    path: &'a str,
    body: Bytes,
    content_type: &'static str,
    /// For what is to be done once, however often it is asked.
    key: Option<&'a str>,
}

impl<'a> Api<'a> {
    pub(super) fn new(admin: &'a Admin, token: &'a Secret, connection: &'a Connection) -> Self {
        Api { admin, token, connection }
    }

    /// Whether the API knows whose the token is, whatever it may do.
    pub(super) async fn knows_token(&self) -> bool {
        !self.token.is_empty() && self.raw("/v1/tenants").await.status() != StatusCode::UNAUTHORIZED
    }

    async fn send(&self, ask: Ask<'_>) -> Answer {
        let mut bearer = zeroize::Zeroizing::new(b"Bearer ".to_vec());
        bearer.extend_from_slice(self.token.expose());
        let request = Request::builder().method(ask.method).uri(ask.path);
        let mut request = match (HeaderValue::from_bytes(&bearer), request.body(Full::new(ask.body))) {
            (Ok(mut bearer), Ok(mut request)) => {
                bearer.set_sensitive(true);
                request.headers_mut().insert(header::AUTHORIZATION, bearer);
                request
            }
            // A token that no header can hold, or a path that is none.
            (Err(_), _) => return status(StatusCode::UNAUTHORIZED),
            (_, Err(_)) => return status(StatusCode::NOT_FOUND),
        };
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(ask.content_type));
        if let Some(key) = ask.key.and_then(|key| HeaderValue::from_str(key).ok()) {
            request.headers_mut().insert("idempotency-key", key);
        }
        // Some pages ask for much at once.
        Box::pin(self.admin.ask(request, self.connection)).await
    }

    /// The answer as it is, for what is handed on.
    pub(super) async fn raw(&self, path: &str) -> Answer {
        self.send(Ask { method: Method::GET, path, body: Bytes::new(), content_type: "application/json", key: None })
            .await
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Told> {
        read(self.raw(path).await).await
    }

    /// The bytes of a body, with what they are said to be.
    pub(super) async fn bytes(&self, path: &str) -> Result<(Bytes, String), Told> {
        let answer = self.raw(path).await;
        let content_type = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or("application/octet-stream").to_owned();
        Ok((whole(answer).await?, content_type))
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Told> {
        self.change(Method::POST, path, body, None).await
    }

    pub(super) async fn post_once<T: DeserializeOwned>(&self, path: &str, body: &Value, key: &str) -> Result<T, Told> {
        self.change(Method::POST, path, body, Some(key)).await
    }

    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Told> {
        self.change(Method::DELETE, path, &Value::Object(serde_json::Map::new()), None).await
    }

    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> Result<T, Told> {
        let body = Bytes::from(body.to_string());
        read(self.send(Ask { method, path, body, content_type: "application/json", key }).await).await
    }

    /// As long as the caller follows, page after page: at most so many.
    pub(super) async fn pages<T: DeserializeOwned>(&self, path: &str, pages_max: usize) -> Result<Vec<T>, Told> {
        let mut all = Vec::new();
        let mut query = Form::default();
        query.set("limit", "200");
        for _ in 0..pages_max {
            let list: super::model::List<T> = self.get(&format!("{path}{}", query.query())).await?;
            all.extend(list.items);
            let Some(next) = list.next else { break };
            query.set("cursor", next);
        }
        Ok(all)
    }
}

fn status(status: StatusCode) -> Answer {
    let mut answer = Answer::default();
    *answer.status_mut() = status;
    answer
}

async fn whole(answer: Answer) -> Result<Bytes, Told> {
    let status = answer.status();
    let bytes = match answer.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            tracing::error!(%error, "the console had half an answer of its own process");
            return Err(Told::internal());
        }
    };
    if status.is_success() { Ok(bytes) } else { Err(Told::of(status, &bytes)) }
}

async fn read<T: DeserializeOwned>(answer: Answer) -> Result<T, Told> {
    let bytes = whole(answer).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        tracing::error!(%error, "the console does not understand the API of its own process");
        Told::internal()
    })
}
