//! The operator's console: pages for a browser, before the API on the admin listener.
//!
//! It is a client of the API in the same process: each page asks what the API answers, with the token that its session
//! began with, and each form asks for a verb. So there is one way to read and one to change, and whoever may not do it
//! by the API may not do it here. Authoritative is nothing in this room; sessions are in memory and end with the process.

mod api;
mod assets;
mod chart;
mod form;
mod guard;
mod model;
mod page;
mod pages;
mod payload;
mod session;
mod show;
mod waterfall;

use crate::admin::Admin;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::http::{Answer, Budget, Connection, Handler, Problem, collect};
use crate::secret::Secret;
use api::Api;
use bytes::Bytes;
use form::Form;
use guard::Guard;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use page::{Page, Theme};
use session::{Session, Sessions};
use std::sync::Arc;

/// Of a form: a request that is pasted into the debugger is the largest.
const FORM_BYTES_MAX: u64 = 2 << 20;
const FORMS_BYTES_MAX: u64 = 16 << 20;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Names, besides `localhost` and addresses, by which browsers may call the console.
    pub hosts: Vec<String>,
}

/// The handler of the admin listener: the console's paths are its own, all others are the API's.
pub struct Console {
    admin: Arc<Admin>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    guard: Guard,
    sessions: Sessions,
    forms: Arc<Budget>,
}

impl Console {
    pub fn new(settings: Settings, admin: Arc<Admin>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Console {
            admin,
            sessions: Sessions::default(),
            clock,
            entropy,
            guard: Guard::new(settings.hosts),
            forms: Budget::new(FORMS_BYTES_MAX),
        }
    }

    async fn answer(&self, head: &Parts, body: Incoming, connection: &Connection) -> Answer {
        let path = head.uri.path();
        if !self.guard.knows_host(&head.headers) {
            return page::plain(
                StatusCode::MISDIRECTED_REQUEST,
                "This name is not one of the console's. Call it by its address or as localhost, or add the name to \
                 `server.admin_hosts`.",
            );
        }
        let path = path.strip_prefix("/console").unwrap_or_default();
        if let Some(name) = path.strip_prefix("/assets/") {
            return assets::answer(name);
        }
        let theme = Theme::of(&head.headers);
        let session = self.sessions.find(&head.headers, self.clock.monotonic());
        match (&head.method, path, session) {
            (&Method::GET | &Method::HEAD, "/sign-in", None) => {
                page::sign_in(theme, head.uri.query(), self.guard.warning(&head.headers), None)
            }
            (&Method::GET | &Method::HEAD, "/sign-in", Some(_)) => page::to("/console/"),
            (&Method::POST, "/sign-in", _) => self.sign_in(head, body, connection).await,
            (&Method::GET | &Method::HEAD, _, None) => page::to_sign_in(&head.uri),
            (&Method::GET | &Method::HEAD, _, Some(session)) => {
                let api = Api::new(&self.admin, session.token(), connection);
                let mut page = self.page(&session, theme);
                page.flash = session.take_flash();
                pages::show(self, page, &api, path, head.uri.query()).await
            }
            (&Method::POST, _, None) => page::to_sign_in_afterwards(),
            (&Method::POST, _, Some(session)) => self.change(head, body, connection, session, path).await,
            (_, _, _) => Problem::method_not_allowed("GET, POST").into_answer(),
        }
    }

    fn page(&self, session: &Arc<Session>, theme: Theme) -> Page {
        Page::new(self.clock.now(), session.form_token().to_owned(), theme)
    }

    async fn form(&self, head: &Parts, body: Incoming, connection: &Connection) -> Result<Form, Answer> {
        if !guard::is_same_origin(&head.headers) {
            return Err(page::plain(
                StatusCode::FORBIDDEN,
                "This request came from another site, and nothing was done. Go back to the console and try there.",
            ));
        }
        let collected = collect(body, FORM_BYTES_MAX, &self.forms, connection).await;
        let (bytes, _room) = collected.map_err(|fault| fault.problem().into_answer())?;
        Ok(Form::read(&bytes))
    }

    async fn sign_in(&self, head: &Parts, body: Incoming, connection: &Connection) -> Answer {
        let mut form = match self.form(head, body, connection).await {
            Ok(form) => form,
            Err(answer) => return answer,
        };
        let token = Secret::new(form.text("token").unwrap_or_default().trim());
        let back = form.text("back").filter(|path| page::is_inside(path));
        let theme = Theme::of(&head.headers);
        let known = Api::new(&self.admin, &token, connection).knows_token().await;
        let warning = self.guard.warning(&head.headers);
        if !known {
            let mut answer = page::sign_in(
                theme,
                None,
                warning,
                Some(
                    "No token is like that. The operator's is in HOOKGATE_ADMIN_TOKEN, or in the file `admin-token` beside the ledger.",
                ),
            );
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            return answer;
        }
        let cookie = self.sessions.begin(
            token,
            guard::is_encrypted(&head.headers),
            self.clock.monotonic(),
            self.entropy.as_ref(),
        );
        let mut answer = page::to(back.as_deref().unwrap_or("/console/"));
        answer.headers_mut().append(header::SET_COOKIE, cookie);
        answer
    }

    async fn change(
        &self,
        head: &Parts,
        body: Incoming,
        connection: &Connection,
        session: Arc<Session>,
        path: &str,
    ) -> Answer {
        let mut form = match self.form(head, body, connection).await {
            Ok(form) => form,
            Err(answer) => return answer,
        };
        let presented = form.text("session").unwrap_or_default();
        if !session.made_form(presented.as_bytes()) {
            return page::plain(
                StatusCode::FORBIDDEN,
                "This form is not of your session, and nothing was done. Load the page again, and send it from there.",
            );
        }
        match path {
            "/sign-out" => {
                let mut answer = page::to("/console/sign-in");
                for cookie in self.sessions.end(&head.headers) {
                    answer.headers_mut().append(header::SET_COOKIE, cookie);
                }
                answer
            }
            "/look" => {
                let back = form.text("back").filter(|path| page::is_inside(path));
                let mut answer = page::to(back.as_deref().unwrap_or("/console/"));
                answer.headers_mut().append(header::SET_COOKIE, Theme::cookie(form.text("theme").as_deref()));
                answer
            }
            _ => {
                let api = Api::new(&self.admin, session.token(), connection);
                let page = self.page(&session, Theme::of(&head.headers));
                let sent = pages::Sent { session: &session, path, query: head.uri.query(), form };
                pages::change(self, page, &api, sent).await
            }
        }
    }

    /// A name for a wish, so that a form that is sent twice begins one operation.
    fn fresh_name(&self) -> String {
        let mut bytes = [0; 16];
        self.entropy.fill(&mut bytes);
        hex::encode(bytes)
    }
}

impl Handler for Console {
    async fn handle(&self, request: http::Request<Incoming>, connection: &Connection) -> Answer {
        let path = request.uri().path();
        if path == "/" && matches!(*request.method(), Method::GET | Method::HEAD) {
            return finished(page::to("/console/"));
        }
        if path != "/console" && !path.starts_with("/console/") {
            return self.admin.ask(request, connection).await;
        }
        let (head, body) = request.into_parts();
        finished(self.answer(&head, body, connection).await)
    }
}

/// With what every answer of the console says to a browser.
fn finished(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`, for then a browser would not say where a form comes from.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    for (name, value) in
        [("cross-origin-opener-policy", "same-origin"), ("cross-origin-resource-policy", "same-origin")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn html(text: String) -> Answer {
    let mut answer = Answer::new(Bytes::from(text).into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}
