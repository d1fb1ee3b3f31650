//! How times, spans, states and errors are shown. What a payload holds is not touched here.

use crate::clock::Timestamp;
use askama::filters::HtmlSafe;
use http::StatusCode;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// Markup of ours, with everything from outside escaped in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Html(String);

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Html {}

/// Text within markup, or within a quoted attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn hidden(name: &str, value: &str) -> Html {
    Html(format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", escaped(name), escaped(value)))
}

/// What the API said no with.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) detail: String,
    pub(super) remedy: Option<String>,
    pub(super) members: Value,
}

impl Told {
    pub(super) fn of(status: StatusCode, body: &[u8]) -> Self {
        let members: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |name: &str| members[name].as_str().map(str::to_owned);
        Told {
            status: status.as_u16(),
            code: text("code").unwrap_or_else(|| "error".to_owned()),
            detail: text("detail").unwrap_or_else(|| status.canonical_reason().unwrap_or("Error").to_owned()),
            remedy: text("remedy"),
            members,
        }
    }

    pub(super) fn not_found() -> Self {
        Told::of(StatusCode::NOT_FOUND, br#"{"code":"not_found","detail":"there is nothing here"}"#)
    }

    pub(super) fn internal() -> Self {
        let detail = br#"{"code":"internal","detail":"the console does not understand the answer of its own gateway"}"#;
        Told::of(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    pub(super) fn invalid(field: &str, rule: &str) -> Self {
        Told {
            status: 422,
            code: "invalid".to_owned(),
            detail: format!("`{field}` {rule}"),
            remedy: None,
            members: Value::Null,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Two units at most: `1 d 4 h`, `3 min`, `12.4 s`, `850 ms`.
pub(super) fn span(span: Duration) -> String {
    let (seconds, millis) = (span.as_secs(), span.subsec_millis());
    let two = |whole: u64, unit: &str, part: u64, lesser: &str| {
        if part == 0 { format!("{whole} {unit}") } else { format!("{whole} {unit} {part} {lesser}") }
    };
    match seconds {
        0 => format!("{millis} ms"),
        1..60 if millis >= 100 => format!("{seconds}.{} s", millis / 100),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// In one unit, for what is only to be compared with now.
fn about(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

pub(super) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("in {}", about(at.since(now)))
    } else if now.since(at) < Duration::from_secs(1) {
        "just now".to_owned()
    } else {
        format!("{} ago", about(now.since(at)))
    }
}

/// In UTC, and relative. A script may show it as local time, which it takes from `datetime`.
pub(super) fn time(at: Timestamp, now: Timestamp) -> Html {
    let whole = at.to_rfc3339();
    let shown = match (whole.get(..10), whole.get(11..19)) {
        (Some(day), Some(time)) => format!("{day} {time}"),
        (_, _) => whole.clone(),
    };
    Html(format!(
        "<time datetime=\"{whole}\" title=\"{whole}\"><span class=\"at\">{shown} UTC</span> \
         <span class=\"ago\">{}</span></time>",
        relative(at, now)
    ))
}

/// To the millisecond, without the day: for what lies close together.
pub(super) fn clock(at: Timestamp) -> Html {
    let whole = at.to_rfc3339();
    let shown = whole.get(11..23).unwrap_or(&whole).to_owned();
    Html(format!(
        "<time datetime=\"{whole}\" title=\"{whole}\" class=\"clock\"><span class=\"at\">{shown} UTC</span></time>"
    ))
}

/// A word for where something stands, with a mark, so that it is not told by colour alone.
pub(super) fn state(word: &str) -> Html {
    let (class, mark) = match word {
        "delivered" | "enabled" | "done" | "ready" | "closed" | "active" | "ok" | "running" | "promoted" => {
            ("good", "✓")
        }
        "pending" | "in_flight" | "retryable" | "retry_at" | "queued" | "compiling" | "half_open" => ("wait", "↻"),
        "paused" | "awaited" => ("wait", "‖"),
        "dead" | "terminal" | "disabled" | "rejected" | "open" | "failed" | "stopped_by_canary" | "rolled_back" => {
            ("bad", "✗")
        }
        _ => ("calm", "·"),
    };
    let words = escaped(&word.replace('_', " "));
    Html(format!("<span class=\"state {class}\"><span aria-hidden=\"true\">{mark}</span> {words}</span>"))
}

/// An id shortened to its random end, whole in its title.
pub(super) fn short(id: &str) -> Html {
    let shown = match (id.split_once('_'), id.get(id.len().saturating_sub(8)..)) {
        (Some((kind, rest)), Some(end)) if rest.len() > 12 => format!("{kind}_…{end}"),
        (_, _) => id.to_owned(),
    };
    Html(format!("<span class=\"id\" title=\"{}\">{}</span>", escaped(id), escaped(&shown)))
}

/// `1 234 567`, so that zeros can be counted.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

pub(super) fn bytes(n: u64) -> String {
    match n {
        0..1_024 => format!("{n} B"),
        1_024..1_048_576 => format!("{}.{} KiB", n >> 10, ((n & 1_023) * 10) >> 10),
        _ => format!("{}.{} MiB", n >> 20, ((n & 1_048_575) * 10) >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_two_units_at_most() {
        let s = Duration::from_secs;
        for (given, shown) in [
            (Duration::from_millis(12), "12 ms"),
            (Duration::from_millis(1_250), "1.2 s"),
            (s(59), "59 s"),
            (s(61), "1 min 1 s"),
            (s(3_600), "1 h"),
            (s(90_000), "1 d 1 h"),
        ] {
            assert_eq!(span(given), shown);
        }
        let now = Timestamp::from_millis(1_767_225_600_123);
        assert_eq!(relative(now, now), "just now");
        assert_eq!(relative(now.minus(s(7_300)), now), "2 h ago");
        assert_eq!(relative(now.plus(s(90)), now), "in 1 min");
    }

    #[test]
    fn what_comes_from_outside_is_text() {
        assert_eq!(escaped("<a href='x\">&"), "&lt;a href=&#39;x&quot;&gt;&amp;");
        assert!(state("<b>").to_string().contains("&lt;b&gt;"));
        let id = "dlv_019b76daa87b70038000000000000\"<";
        assert!(!short(id).to_string().contains("\"<"));
    }

    #[test]
    fn large_numbers_are_told_in_groups() {
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!((count(0).as_str(), count(999).as_str()), ("0", "999"));
        assert_eq!((bytes(1_023), bytes(1_536), bytes(3 << 20)), ("1023 B".into(), "1.5 KiB".into(), "3.0 MiB".into()));
    }
}
