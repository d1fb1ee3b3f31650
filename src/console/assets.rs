//! What pages are made with: a style sheet, a script and a picture, in the binary. Each is called by its digest, so that
//! a browser keeps it for as long as it likes.

use crate::http::{Answer, Problem};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use std::sync::LazyLock;

struct Asset {
    path: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(name: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        Asset { path: format!("{:08x}-{name}", crc32fast::hash(bytes)), content_type, bytes }
    }
}

static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    [
        Asset::new("console.css", "text/css; charset=utf-8", include_bytes!("assets/console.css")),
        Asset::new("console.js", "text/javascript; charset=utf-8", include_bytes!("assets/console.js")),
        Asset::new("icon.svg", "image/svg+xml", include_bytes!("assets/icon.svg")),
    ]
});

fn path(at: usize) -> &'static str {
    ASSETS.get(at).map_or("", |asset| asset.path.as_str())
}

pub(super) fn style() -> &'static str {
    path(0)
}

pub(super) fn script() -> &'static str {
    path(1)
}

pub(super) fn icon() -> &'static str {
    path(2)
}

pub(super) fn answer(path: &str) -> Answer {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == path) else {
        return Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here").into_answer();
    };
    let mut answer = Answer::new(Bytes::from_static(asset.bytes).into());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    answer
}
