//! A curl command as it is pasted from a shell, a browser or a manual: what it would send.
//!
//! Nothing is sent or expanded. Of files, only the body's is read.

use super::Failure;
use super::request::{Recorded, Target};
use crate::verify::cases::add_header;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use std::path::Path;

/// Reads the file that a body is taken from.
pub type ReadFile<'a> = &'a mut dyn FnMut(&Path) -> Result<Vec<u8>, Failure>;

/// Why it cannot be said what a command sends.
pub(super) enum Fault {
    Told(String),
    File(Failure),
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Fault::Told(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Fault::Told(why.to_owned())
    }
}

/// Whether the text is such a command, perhaps behind a prompt.
pub(super) fn is_command(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let text = text.strip_prefix(b"$ ").unwrap_or(text).trim_ascii_start();
    text.strip_prefix(b"curl").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

pub(super) fn parse(bytes: &[u8], read: ReadFile<'_>) -> Result<Recorded, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text in UTF-8")?.trim();
    let words = words(text.strip_prefix("$ ").unwrap_or(text))?;
    let mut command = Command::default();
    let mut words = words.into_iter().skip(1);
    let mut only_places = false;
    while let Some(word) = words.next() {
        if only_places || !word.starts_with('-') || word == "-" {
            command.place(word)?;
        } else if word == "--" {
            only_places = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, joined) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let option = long_option(name).ok_or_else(|| format!("`--{name}` is not known here"))?;
            command.option(option, &format!("--{name}"), joined.map(str::to_owned), &mut words, read)?;
        } else {
            command.short(&word, &mut words, read)?;
        }
    }
    command.recorded()
}

/// What an option means for what is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opt {
    /// Changes nothing of it.
    Flag,
    /// Neither, and takes a value.
    Valued,
    Method,
    Header,
    Data(Data),
    Json,
    Url,
    User,
    Named(&'static str),
    Head,
    /// What it makes curl send is not known here, or is made anew each time.
    Unknowable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    /// A file's line ends go.
    Text,
    Binary,
    /// A leading `@` is a character.
    Raw,
}

fn long_option(name: &str) -> Option<Opt> {
    Some(match name {
        "silent" | "show-error" | "insecure" | "verbose" | "include" | "location" | "fail" | "fail-with-body"
        | "globoff" | "no-buffer" | "compressed" | "http1.0" | "http1.1" | "http2" | "http3" | "ipv4" | "ipv6"
        | "no-progress-meter" | "progress-bar" | "path-as-is" => Opt::Flag,
        "output" | "write-out" | "max-time" | "connect-timeout" | "resolve" | "connect-to" | "cacert" | "cert"
        | "key" | "retry" | "retry-delay" | "proxy" | "noproxy" | "dump-header" | "interface" => Opt::Valued,
        "request" => Opt::Method,
        "header" => Opt::Header,
        "data" | "data-ascii" => Opt::Data(Data::Text),
        "data-binary" => Opt::Data(Data::Binary),
        "data-raw" => Opt::Data(Data::Raw),
        "json" => Opt::Json,
        "url" => Opt::Url,
        "user" => Opt::User,
        "user-agent" => Opt::Named("user-agent"),
        "referer" => Opt::Named("referer"),
        "cookie" => Opt::Named("cookie"),
        "head" => Opt::Head,
        "get" | "form" | "form-string" | "data-urlencode" | "upload-file" | "config" | "variable" | "aws-sigv4"
        | "digest" | "netrc" | "next" => Opt::Unknowable,
        _ => return None,
    })
}

fn short_option(letter: char) -> Option<Opt> {
    Some(match letter {
        's' | 'S' | 'k' | 'v' | 'i' | 'L' | 'f' | 'g' | 'N' | '#' | '0' | '4' | '6' => Opt::Flag,
        'o' | 'w' | 'm' | 'x' | 'D' | 'E' => Opt::Valued,
        'X' => Opt::Method,
        'H' => Opt::Header,
        'd' => Opt::Data(Data::Text),
        'u' => Opt::User,
        'A' => Opt::Named("user-agent"),
        'e' => Opt::Named("referer"),
        'b' => Opt::Named("cookie"),
        'I' => Opt::Head,
        'G' | 'F' | 'T' | 'K' | 'n' | ':' => Opt::Unknowable,
        _ => return None,
    })
}

#[derive(Default)]
struct Command {
    method: Option<String>,
    url: Option<String>,
    headers: HeaderMap,
    /// Headers that curl would add, and was told not to.
    withheld: Vec<HeaderName>,
    body: Option<Vec<u8>>,
    is_json: bool,
    head: bool,
}

impl Command {
    /// `-sSL`, `-XPOST`, `-d@file`: letters in one word, the last of which may have its value behind it.
    fn short(&mut self, word: &str, words: &mut impl Iterator<Item = String>, read: ReadFile<'_>) -> Result<(), Fault> {
        let mut letters = word.chars();
        letters.next();
        while let Some(letter) = letters.next() {
            let named = format!("-{letter}");
            let option = short_option(letter).ok_or_else(|| format!("`{named}` is not known here"))?;
            if matches!(option, Opt::Flag | Opt::Head) {
                self.option(option, &named, None, words, read)?;
                continue;
            }
            let joined = Some(letters.as_str()).filter(|rest| !rest.is_empty()).map(str::to_owned);
            return self.option(option, &named, joined, words, read);
        }
        Ok(())
    }

    fn option(
        &mut self,
        option: Opt,
        named: &str,
        joined: Option<String>,
        words: &mut impl Iterator<Item = String>,
        read: ReadFile<'_>,
    ) -> Result<(), Fault> {
        match option {
            Opt::Flag => return Ok(()),
            Opt::Head => {
                self.head = true;
                return Ok(());
            }
            Opt::Unknowable => return Err(format!("what `{named}` makes curl send cannot be told from here").into()),
            _ => {}
        }
        let value = joined.or_else(|| words.next()).ok_or_else(|| format!("`{named}` has no value"))?;
        match option {
            Opt::Method => self.method = Some(value),
            Opt::Header => self.header(&value)?,
            Opt::Data(kind) => self.data(kind, &value, read)?,
            Opt::Json => {
                self.is_json = true;
                // Several are put one after the other, with nothing between.
                let more = content(Data::Binary, &value, read)?;
                self.body.get_or_insert_default().extend_from_slice(&more);
            }
            Opt::Url => self.place(value)?,
            Opt::User => {
                let basic = format!("Basic {}", STANDARD.encode(value));
                self.insert(header::AUTHORIZATION, &basic)?;
            }
            Opt::Named(name) => self.insert(HeaderName::from_static(name), &value)?,
            Opt::Flag | Opt::Valued | Opt::Head | Opt::Unknowable => {}
        }
        Ok(())
    }

    fn place(&mut self, url: String) -> Result<(), Fault> {
        match self.url.replace(url) {
            None => Ok(()),
            Some(_) => Err("it has two URLs".into()),
        }
    }

    fn insert(&mut self, name: HeaderName, value: &str) -> Result<(), Fault> {
        let value = HeaderValue::from_str(value).map_err(|_| format!("the value of `{name}` cannot be sent"))?;
        Ok(add_header(&mut self.headers, name, value)?)
    }

    fn header(&mut self, text: &str) -> Result<(), Fault> {
        if text.starts_with('@') {
            return Err("its headers are in a file: write them out with -H".into());
        }
        // `Name;` is sent without a value, `Name:` is not sent.
        let (name, value) = match (text.split_once(':'), text.strip_suffix(';')) {
            (Some((name, value)), _) => (name, Some(value.trim()).filter(|value| !value.is_empty())),
            (None, Some(name)) => (name, Some("")),
            (None, None) => return Err("a header without a colon".into()),
        };
        let name: HeaderName = name.trim().parse().map_err(|_| format!("`{name}` is not a header's name"))?;
        match value {
            Some(value) => self.insert(name, value),
            None => {
                self.withheld.push(name);
                Ok(())
            }
        }
    }

    fn data(&mut self, kind: Data, value: &str, read: ReadFile<'_>) -> Result<(), Fault> {
        let more = content(kind, value, read)?;
        match &mut self.body {
            None => self.body = Some(more),
            Some(body) => {
                body.push(b'&');
                body.extend_from_slice(&more);
            }
        }
        Ok(())
    }

    fn recorded(mut self) -> Result<Recorded, Fault> {
        let url = self.url.take().ok_or("it has no URL")?;
        let url = if url.contains("://") { url } else { format!("http://{url}") };
        let parsed: Uri = url.parse().map_err(|_| format!("`{url}` is not a URL"))?;
        if parsed.host().is_none_or(str::is_empty) {
            return Err(format!("`{url}` is not a URL").into());
        }
        let method = match (self.method.as_deref(), self.head, &self.body) {
            (Some(method), ..) => method.parse().map_err(|_| format!("`{method}` is not a method"))?,
            (None, true, _) => Method::HEAD,
            (None, false, Some(_)) => Method::POST,
            (None, false, None) => Method::GET,
        };
        let mut add = |name: HeaderName, value: &'static str| {
            if !self.withheld.contains(&name) {
                self.headers.entry(name).or_insert(HeaderValue::from_static(value));
            }
        };
        match (&self.body, self.is_json) {
            (_, true) => {
                add(header::CONTENT_TYPE, "application/json");
                add(header::ACCEPT, "application/json");
            }
            (Some(_), false) => add(header::CONTENT_TYPE, "application/x-www-form-urlencoded"),
            (None, false) => {}
        }
        Ok(Recorded {
            method,
            target: Target::Url(url),
            headers: self.headers,
            body: self.body.unwrap_or_default().into(),
        })
    }
}

/// The bytes of a data option.
fn content(kind: Data, value: &str, read: ReadFile<'_>) -> Result<Vec<u8>, Fault> {
    match value.strip_prefix('@').filter(|_| kind != Data::Raw) {
        None => Ok(value.as_bytes().to_vec()),
        Some("-") => Err("its body comes from standard input: put it into the command, or into a file".into()),
        Some(file) => {
            let mut bytes = read(Path::new(file)).map_err(Fault::File)?;
            if kind == Data::Text {
                bytes.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
            }
            Ok(bytes)
        }
    }
}

/// The words that a POSIX shell, or bash with its `$'…'`, would make of the text. What it would fill in by itself is
/// refused: nobody here knows the value.
fn words(text: &str) -> Result<Vec<String>, Fault> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('\n') => {}
                Some('\r') if rest.next_if_eq(&'\n').is_some() => {}
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("it ends in a backslash: paste all of its lines".into()),
            },
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a single quote is not closed".into()),
                    }
                }
            }
            '"' => double_quoted(&mut rest, word.get_or_insert_default())?,
            '$' if rest.next_if_eq(&'\'').is_some() => ansi_quoted(&mut rest, word.get_or_insert_default())?,
            '$' | '`' => return Err(expansion(c)),
            ' ' | '\t' => all.extend(word.take()),
            '\n' | '\r' => {
                all.extend(word.take());
                if rest.clone().any(|c| !c.is_whitespace()) {
                    return Err("it ends before its text does: end a line that goes on with a backslash".into());
                }
            }
            '|' | ';' | '&' | '<' | '>' | '(' | ')' => {
                return Err(format!("`{c}` stands outside of quotes: paste one command, with its URL in quotes").into());
            }
            '^' if matches!(rest.peek(), Some('\n' | '\r' | '"')) => {
                return Err("it is written for Windows' cmd: copy it for bash".into());
            }
            '#' if word.is_none() => return Err("it has a comment: leave that out".into()),
            c => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word);
    Ok(all)
}

fn expansion(c: char) -> Fault {
    format!("`{c}` stands for something that the shell fills in: write the value itself, in single quotes").into()
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn double_quoted(rest: &mut Chars<'_>, word: &mut String) -> Result<(), Fault> {
    loop {
        match rest.next() {
            Some('"') => return Ok(()),
            Some('\\') => match rest.next() {
                Some('\n') => {}
                Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                Some(c) => word.extend(['\\', c]),
                None => break,
            },
            Some('$') if rest.peek().is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '{' | '(')) => {
                return Err(expansion('$'));
            }
            Some('`') => return Err(expansion('`')),
            Some(c) => word.push(c),
            None => break,
        }
    }
    Err("a double quote is not closed".into())
}

/// `$'…'`, as browsers write what has line ends or quotes in it.
fn ansi_quoted(rest: &mut Chars<'_>, word: &mut String) -> Result<(), Fault> {
    loop {
        match rest.next() {
            Some('\'') => return Ok(()),
            Some('\\') => {
                let escape = rest.next().ok_or("a quote `$'` is not closed")?;
                word.push(match escape {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'a' => '\u{7}',
                    'b' => '\u{8}',
                    'e' | 'E' => '\u{1b}',
                    'f' => '\u{c}',
                    'v' => '\u{b}',
                    '\\' | '\'' | '"' | '?' => escape,
                    'x' => coded(rest, 2).filter(char::is_ascii).ok_or("`\\x` is not followed by 7-bit hex digits")?,
                    'u' => utf16(rest).ok_or("`\\u` is not followed by a character's number")?,
                    'U' => coded(rest, 8).ok_or("`\\U` is not followed by a character's number")?,
                    other => return Err(format!("`\\{other}` is not known in `$'…'`").into()),
                });
            }
            Some(c) => word.push(c),
            None => return Err("a quote `$'` is not closed".into()),
        }
    }
}

/// One to `most` hexadecimal digits.
fn number(rest: &mut Chars<'_>, most: usize) -> Option<u32> {
    let mut digits = String::new();
    while digits.len() < most
        && let Some(digit) = rest.next_if(char::is_ascii_hexdigit)
    {
        digits.push(digit);
    }
    u32::from_str_radix(&digits, 16).ok()
}

fn coded(rest: &mut Chars<'_>, most: usize) -> Option<char> {
    number(rest, most).and_then(char::from_u32)
}

/// A character, or the two halves of one: browsers count in UTF-16.
fn utf16(rest: &mut Chars<'_>) -> Option<char> {
    let first = number(rest, 4)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first);
    }
    let mut ahead = rest.clone();
    if ahead.next() != Some('\\') || ahead.next() != Some('u') {
        return None;
    }
    let second = number(&mut ahead, 4).filter(|n| (0xdc00..0xe000).contains(n))?;
    *rest = ahead;
    char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Recorded, String> {
        let mut files = |path: &Path| match path.to_str() {
            Some("b.json") => Ok(b"{\r\n}\0\n".to_vec()),
            _ => Err(Failure::usage("no such file", "name another")),
        };
        parse(text.as_bytes(), &mut files).map_err(|fault| match fault {
            Fault::Told(why) => why,
            Fault::File(failure) => failure.to_string(),
        })
    }

    fn header<'r>(request: &'r Recorded, name: &str) -> Option<&'r str> {
        request.headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn commands_are_told_from_other_texts() {
        for yes in ["curl x", "$ curl x", "\n  curl\tx", "curl"] {
            assert!(is_command(yes.as_bytes()), "{yes:?}");
        }
        for no in ["", "curly x", "POST / HTTP/1.1", "{\"curl\": 1}"] {
            assert!(!is_command(no.as_bytes()), "{no:?}");
        }
    }

    #[test]
    fn what_a_browser_copies() {
        let text = "curl 'https://hooks.example/in/acme/github?a=b&c' \\\n  -H 'X-GitHub-Event: push' \\\r\n  \
                    -H \"X-Quoted: \\\"q\\\" $ \\\\\" \\\n  \
                    --data-raw $'{\"a\":\"\\u00fc\\ud83d\\ude00\\n\\'\\x41\"}' \\\n  --compressed\n";
        let request = read(text).unwrap();
        assert_eq!(request.method, Method::POST);
        assert_eq!(request.target, Target::Url("https://hooks.example/in/acme/github?a=b&c".to_owned()));
        assert_eq!(
            (header(&request, "x-github-event"), header(&request, "x-quoted")),
            (Some("push"), Some("\"q\" $ \\"))
        );
        assert_eq!(header(&request, "content-type"), Some("application/x-www-form-urlencoded"));
        assert_eq!(request.body, "{\"a\":\"ü😀\n'A\"}");
    }

    #[test]
    fn options_mean_what_they_mean_to_curl() {
        let body = |text: &str| read(text).map(|r| String::from_utf8(r.body.to_vec()).unwrap());
        assert_eq!(body("curl h -d a=1 -d b=2"), Ok("a=1&b=2".to_owned()));
        assert_eq!(body("curl h -d@b.json"), Ok("{}".to_owned()));
        assert_eq!(body("curl h --data-binary @b.json"), Ok("{\r\n}\0\n".to_owned()));
        assert_eq!(body("curl h --data-raw @b.json"), Ok("@b.json".to_owned()));
        assert_eq!(body("curl h --data-binary=x"), Ok("x".to_owned()));
        assert_eq!(body("curl h --json a --json b"), Ok("ab".to_owned()));
        let request =
            read("curl -sSXPUT -u u:p -A agent -Ha:1 -H 'a: 2' -H b; -H 'Accept:' --json '' h/p").unwrap_err();
        assert!(request.contains("`;` stands outside"), "{request}");
        let request =
            read("curl -sSXPUT -u u:p -A agent -Ha:1 -H 'a: 2' -H 'b;' -H 'Accept:' --json '' -- h/p").unwrap();
        assert_eq!((request.method.as_str(), request.target), ("PUT", Target::Url("http://h/p".to_owned())));
        assert_eq!(request.headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        let get = |name: &str| request.headers.get(name).map(|v| v.to_str().unwrap());
        assert_eq!((get("b"), get("accept"), get("content-type")), (Some(""), None, Some("application/json")));
        assert_eq!((get("authorization"), get("user-agent")), (Some("Basic dTpw"), Some("agent")));
        assert_eq!(read("curl h").unwrap().method, Method::GET);
        assert_eq!(read("curl -I h").unwrap().method, Method::HEAD);
        assert_eq!(read("curl -o x -m 5 --retry 3 --url h -H 'content-type: a/b' -d x").unwrap().headers.len(), 1);
    }

    #[test]
    fn what_cannot_be_told_is_refused_with_its_reason() {
        for (text, why) in [
            ("curl", "it has no URL"),
            ("curl a b", "two URLs"),
            ("curl 'a b'", "`http://a b` is not a URL"),
            ("curl http:///x", "is not a URL"),
            ("curl h -H", "`-H` has no value"),
            ("curl h -H nothing", "a header without a colon"),
            ("curl h -H 'a b: c'", "`a b` is not a header's name"),
            ("curl h -H 'a: \u{7}'", "the value of `a` cannot be sent"),
            ("curl h -H @f", "its headers are in a file"),
            ("curl h -X 'A B'", "`A B` is not a method"),
            ("curl h --frobnicate", "`--frobnicate` is not known here"),
            ("curl h -sZ", "`-Z` is not known here"),
            ("curl h -F a=b", "what `-F` makes curl send cannot be told"),
            ("curl h --data-urlencode a=b", "what `--data-urlencode` makes curl send"),
            ("curl h -d @-", "standard input"),
            ("curl h -d @gone", "no such file"),
            ("curl h -d \"$BODY\"", "stands for something that the shell fills in"),
            ("curl h -d $BODY", "stands for something"),
            ("curl h -d \"`date`\"", "stands for something"),
            ("curl h -d a&b", "`&` stands outside of quotes"),
            ("curl h | jq", "`|` stands outside of quotes"),
            ("curl h\ncurl g", "it ends before its text does"),
            ("curl h \\", "it ends in a backslash"),
            ("curl h 'x", "a single quote is not closed"),
            ("curl h \"x", "a double quote is not closed"),
            ("curl h $'x", "`$'` is not closed"),
            ("curl h $'\\xff'", "7-bit"),
            ("curl h $'\\ud83d'", "not followed by a character's number"),
            ("curl h ^\n -d x", "Windows"),
            ("curl h # why", "a comment"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
