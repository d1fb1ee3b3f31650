//! What is answered: a whole body, or one that is made while it is sent.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

pub type Answer = Response<AnswerBody>;

/// The rest of a body cannot be made: its connection ends where it stands, so that nobody takes it for whole.
#[derive(Debug)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer broke off")
    }
}

impl std::error::Error for Broken {}

pub struct AnswerBody(Kind);

enum Kind {
    Whole(Full<Bytes>),
    /// Asked for the next piece when the peer has taken the one before.
    Made(Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>),
}

impl AnswerBody {
    pub fn made(pieces: impl Stream<Item = Result<Bytes, Broken>> + Send + 'static) -> Self {
        AnswerBody(Kind::Made(Box::pin(pieces)))
    }
}

impl Default for AnswerBody {
    fn default() -> Self {
        Bytes::new().into()
    }
}

impl From<Bytes> for AnswerBody {
    fn from(whole: Bytes) -> Self {
        AnswerBody(Kind::Whole(Full::new(whole)))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(whole) => Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
            Kind::Made(pieces) => pieces.poll_next_unpin(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Made(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => whole.size_hint(),
            Kind::Made(_) => SizeHint::default(),
        }
    }
}
