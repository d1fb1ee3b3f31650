//! The answers that say yes.

use crate::delivery::{EventId, IdText};
use crate::http::Answer;
use crate::verify::Answers;
use bytes::Bytes;
use http::{HeaderValue, header};

/// `{"event":"evt_…","duplicate":false}`, written in one go: this is the answer to almost every request. A provider that
/// wants to read something else, or nothing, gets that.
pub(super) fn accepted(event: EventId, duplicate: bool, answers: Answers) -> Answer {
    match answers {
        Answers::Ours => {}
        Answers::Receipt(receipt) => return plain(receipt),
        Answers::Empty => return Answer::default(),
    }
    let mut room = IdText::default();
    let duplicate = if duplicate { "true}" } else { "false}" };
    let body = [r#"{"event":""#, event.encode(&mut room), r#"","duplicate":"#, duplicate].concat();
    let mut answer = Answer::new(Bytes::from(body).into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// What the sender asked to have confirmed was confirmed.
pub(super) fn confirmed() -> Answer {
    plain("")
}

fn plain(text: &'static str) -> Answer {
    let mut answer = Answer::new(Bytes::from_static(text.as_bytes()).into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn the_answer_is_json_of_the_promised_shape() {
        let event = EventId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
        let answer = accepted(event, true, Answers::Ours);
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/json");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, r#"{"event":"evt_01900000000070008000000000000001","duplicate":true}"#);
    }
}
