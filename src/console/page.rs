//! What every page has: its frame, and the answers that are no page.

use super::show::{self, Html, Told};
use super::{assets, html};
use crate::clock::Timestamp;
use crate::http::Answer;
use askama::Template;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use std::time::Duration;

const THEME: &str = "hookgate-theme";

/// How it is to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Theme {
    #[default]
    System,
    Light,
    Dark,
}

impl Theme {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Theme::named(super::session::cookie(headers, THEME))
    }

    fn named(word: Option<&str>) -> Self {
        match word {
            Some("light") => Theme::Light,
            Some("dark") => Theme::Dark,
            Some(_) | None => Theme::System,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Theme::System => "system",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    pub(super) fn cookie(word: Option<&str>) -> HeaderValue {
        HeaderValue::from_static(match Theme::named(word) {
            Theme::System => "hookgate-theme=system; Path=/console; SameSite=Strict; Max-Age=31536000",
            Theme::Light => "hookgate-theme=light; Path=/console; SameSite=Strict; Max-Age=31536000",
            Theme::Dark => "hookgate-theme=dark; Path=/console; SameSite=Strict; Max-Age=31536000",
        })
    }
}

/// What the frame shows, and what templates ask for.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) now: Timestamp,
    pub(super) title: String,
    /// Which entry of the menu it belongs to.
    pub(super) section: &'static str,
    /// `None`: of all tenants.
    pub(super) tenant: Option<String>,
    pub(super) tenants: Vec<String>,
    /// What the page says first, of what was done just now.
    pub(super) flash: Option<String>,
    /// Its own address, for forms that come back.
    pub(super) here: String,
    /// `Some`: it can be asked for anew while it is looked at, and has rows that come.
    pub(super) live: bool,
    session: String,
    theme: Theme,
}

impl Page {
    pub(super) fn new(now: Timestamp, session: String, theme: Theme) -> Self {
        Page {
            now,
            title: String::new(),
            section: "",
            tenant: None,
            tenants: Vec::new(),
            flash: None,
            here: "/console/".to_owned(),
            live: false,
            session,
            theme,
        }
    }

    pub(super) fn titled(mut self, section: &'static str, title: impl Into<String>) -> Self {
        (self.section, self.title) = (section, title.into());
        self
    }

    pub(super) fn is_signed_in(&self) -> bool {
        !self.session.is_empty()
    }

    /// The field that every form carries.
    pub(super) fn session_field(&self) -> Html {
        show::hidden("session", &self.session)
    }

    pub(super) fn theme(&self) -> &'static str {
        self.theme.as_str()
    }

    pub(super) fn style(&self) -> &'static str {
        assets::style()
    }

    pub(super) fn script(&self) -> &'static str {
        assets::script()
    }

    pub(super) fn icon(&self) -> &'static str {
        assets::icon()
    }

    /// A path below the tenant's.
    pub(super) fn at(&self, path: &str) -> String {
        format!("/console/t/{}{path}", self.tenant.as_deref().unwrap_or_default())
    }

    pub(super) fn menu(&self) -> Vec<(&'static str, String, &'static str)> {
        [
            ("overview", "/", "o"),
            ("events", "/events", "e"),
            ("deliveries", "/deliveries", "d"),
            ("dead letters", "/dlq", "l"),
            ("operations", "/operations", "p"),
            ("endpoints", "/endpoints", "n"),
            ("sources", "/sources", "s"),
            ("rejections", "/rejections", "r"),
            ("plugins", "/plugins", "u"),
        ]
        .into_iter()
        .map(|(name, path, key)| (name, self.at(path), key))
        .collect()
    }

    pub(super) fn time(&self, at: &Timestamp) -> Html {
        show::time(*at, self.now)
    }

    pub(super) fn clock(&self, at: &Timestamp) -> Html {
        show::clock(*at)
    }

    pub(super) fn state(&self, word: &str) -> Html {
        show::state(word)
    }

    pub(super) fn short(&self, id: &str) -> Html {
        show::short(id)
    }

    pub(super) fn count(&self, n: &u64) -> String {
        show::count(*n)
    }

    pub(super) fn bytes(&self, n: &u64) -> String {
        show::bytes(*n)
    }

    pub(super) fn ms(&self, n: &u64) -> String {
        show::span(Duration::from_millis(*n))
    }

    pub(super) fn span(&self, span: &Duration) -> String {
        show::span(*span)
    }

    pub(super) fn seconds(&self, n: &u64) -> String {
        show::span(Duration::from_secs(*n))
    }

    pub(super) fn since(&self, at: &Timestamp) -> String {
        show::span(Duration::from_secs(self.now.since(*at).as_secs()))
    }
}

/// A page of a template.
pub(super) fn rendered(template: &impl Template) -> Answer {
    match template.render() {
        Ok(text) => html(text),
        Err(error) => {
            tracing::error!(%error, "a page of the console cannot be written");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "This page cannot be written; the log says why.")
        }
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct Problem<'a> {
    p: &'a Page,
    told: &'a Told,
    back: &'a str,
}

/// The page for what was refused.
pub(super) fn problem(page: Page, told: &Told, back: &str) -> Answer {
    let mut page = page;
    page.title = match told.status {
        404 => "Not found".to_owned(),
        403 => "Not allowed".to_owned(),
        _ => "Refused".to_owned(),
    };
    let mut answer = rendered(&Problem { p: &page, told, back });
    *answer.status_mut() = told.status();
    answer
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    p: &'a Page,
    back: String,
    warning: Option<&'a str>,
    refused: Option<&'a str>,
}

pub(super) fn sign_in(theme: Theme, query: Option<&str>, warning: Option<&str>, refused: Option<&str>) -> Answer {
    let page = Page::new(Timestamp::ZERO, String::new(), theme).titled("", "Sign in");
    let back = super::form::Form::of_query(query).text("back").filter(|path| is_inside(path)).unwrap_or_default();
    rendered(&SignIn { p: &page, back, warning, refused })
}

/// Whether a path leads to a page of the console, and nowhere else.
pub(super) fn is_inside(path: &str) -> bool {
    path.starts_with("/console/") && path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

/// See other.
pub(super) fn to(path: &str) -> Answer {
    let mut answer = Answer::default();
    *answer.status_mut() = StatusCode::SEE_OTHER;
    let path = HeaderValue::from_str(path).unwrap_or_else(|_| HeaderValue::from_static("/console/"));
    answer.headers_mut().insert(header::LOCATION, path);
    answer
}

pub(super) fn to_sign_in(from: &Uri) -> Answer {
    let from = from.path_and_query().map_or("", |path| path.as_str());
    if is_inside(from) && from != "/console/" {
        let mut query = super::form::Form::default();
        query.set("back", from);
        to(&format!("/console/sign-in{}", query.query()))
    } else {
        to("/console/sign-in")
    }
}

/// Of a form whose session is over: what was wished for is not done later.
pub(super) fn to_sign_in_afterwards() -> Answer {
    to("/console/sign-in")
}

/// A sentence, where there can be no page.
pub(super) fn plain(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Answer::new(Bytes::from_static(text.as_bytes()).into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_elsewhere() {
        for (path, inside) in [
            ("/console/t/acme/", true),
            ("/console/t/acme/dlq?reason=x", true),
            ("//evil.example/", false),
            ("https://evil.example/console/", false),
            ("/console", false),
            ("/v1/tenants", false),
            ("/console/\\evil", false),
            ("/console/\r\nset-cookie: a", false),
        ] {
            assert_eq!(is_inside(path), inside, "{path}");
        }
    }
}
