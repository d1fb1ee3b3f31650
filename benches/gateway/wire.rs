//! What travels: HTTP/1.1 framing for the raw ends (load generator and receiver), and the stamped body by which an
//! event is known again when it arrives.

use anyhow::{Context as _, Result, bail, ensure};
use std::time::{SystemTime, UNIX_EPOCH};

/// The secret that the load generator signs with and every measured server verifies by.
pub(crate) const SECRET: &str = "bench-secret-of-no-value";
/// What an accepted event is answered with by the servers that stand beside the gateway: of the same size as its own.
pub(crate) const ACCEPTED: &[u8] = br#"{"event":"evt_00000000000000000000000000000000","duplicate":false}"#;
/// The same with its head, for the raw end.
pub(crate) const ACCEPTED_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
    content-length: 66\r\n\r\n{\"event\":\"evt_00000000000000000000000000000000\",\"duplicate\":false}";

/// No message of a run is near this.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The head of a message.
pub(crate) struct Head<'a> {
    pub(crate) start: &'a [u8],
    /// Head and body together.
    pub(crate) message_bytes: usize,
    pub(crate) head_bytes: usize,
    /// The sender closes the connection after it.
    pub(crate) close: bool,
}

impl Head<'_> {
    /// Of an answer.
    pub(crate) fn status(&self) -> Result<u16> {
        let digits = self.start.get(9..12).context("an answer without a status")?;
        Ok(std::str::from_utf8(digits)?.parse()?)
    }
}

/// The message at the start of `buffer`; `None` while its head, or its body, is not complete.
pub(crate) fn message(buffer: &[u8]) -> Result<Option<Head<'_>>> {
    let mut lines = Lines { rest: buffer };
    let Some(start) = lines.next() else {
        ensure!(buffer.len() <= HEAD_BYTES_MAX, "a message's first line has no end");
        return Ok(None);
    };
    let (mut body_bytes, mut close) = (0, false);
    loop {
        let Some(line) = lines.next() else {
            ensure!(buffer.len() <= HEAD_BYTES_MAX, "a message's head is over {HEAD_BYTES_MAX} bytes");
            return Ok(None);
        };
        if line.is_empty() {
            break;
        }
        if let Some(value) = field(line, b"content-length:") {
            body_bytes = value.parse::<usize>().with_context(|| format!("content-length {value:?}"))?;
        } else if let Some(value) = field(line, b"connection:") {
            close = value.eq_ignore_ascii_case("close");
        } else if let Some(value) = field(line, b"transfer-encoding:") {
            bail!("a body of known length was expected, not transfer-encoding {value:?}");
        }
    }
    let head_bytes = buffer.len() - lines.rest.len();
    let message_bytes = head_bytes + body_bytes;
    Ok((buffer.len() >= message_bytes).then_some(Head { start, message_bytes, head_bytes, close }))
}

/// Complete lines, without their ends.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|&b| b == b'\n')?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let (given, value) = line.split_at_checked(name.len())?;
    if !given.eq_ignore_ascii_case(name) {
        return None;
    }
    std::str::from_utf8(value).ok().map(str::trim)
}

/// A message for the sample plugin, of a fixed length, whose text begins with two numbers written anew for each
/// request: `{"to":"+4915112345678","body":"seq=… at=… …"}`. A plugin that makes another request out of it keeps the
/// text, so that the event is known again either way.
#[derive(Clone)]
pub(crate) struct Body(Vec<u8>);

const BEFORE: &[u8] = br#"{"to":"+4915112345678","body":""#;
const SEQ: &[u8] = b"seq=";
pub(crate) const SEQ_DIGITS: usize = 12;
const AT: &[u8] = b" at=";
const AT_DIGITS: usize = 19;
/// Where in a body the number stands.
pub(crate) const SEQ_AT: usize = BEFORE.len() + SEQ.len();
const AT_AT: usize = SEQ_AT + SEQ_DIGITS + AT.len();
/// Where in a body the stamps begin at the latest.
const SEARCHED_BYTES: usize = 256;

impl Body {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut body = BEFORE.to_vec();
        body.extend(SEQ);
        body.extend([b'0'; SEQ_DIGITS]);
        body.extend(AT);
        body.extend([b'0'; AT_DIGITS]);
        body.push(b' ');
        let pad = bytes.saturating_sub(body.len() + 2);
        body.extend(b"abcdefghijklmnopqrstuvwxyz0123456789".iter().cycle().take(pad));
        body.extend(br#""}"#);
        Body(body)
    }

    pub(crate) fn stamp(&mut self, seq: u64, at: u64) {
        digits(&mut self.0[SEQ_AT..SEQ_AT + SEQ_DIGITS], seq);
        digits(&mut self.0[AT_AT..AT_AT + AT_DIGITS], at);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The sequence number and the time that a body was stamped with.
pub(crate) fn stamps(body: &[u8]) -> Option<(u64, u64)> {
    let searched = &body[..body.len().min(SEARCHED_BYTES)];
    let begin = searched.windows(SEQ.len()).position(|window| window == SEQ)?;
    let (seq, rest) = body[begin + SEQ.len()..].split_at_checked(SEQ_DIGITS)?;
    let at = rest.strip_prefix(AT)?.get(..AT_DIGITS)?;
    Some((number(seq)?, number(at)?))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn digits(into: &mut [u8], mut value: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

/// Lower-case hexadecimal of a digest, appended.
pub(crate) fn hex_onto(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.extend([b"0123456789abcdef"[usize::from(byte >> 4)], b"0123456789abcdef"[usize::from(byte & 15)]]);
    }
}

/// Nanoseconds since the epoch: the one clock that all processes of a run share.
#[expect(clippy::disallowed_methods, reason = "stamps are compared between processes; nothing else asks this clock")]
pub(crate) fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
