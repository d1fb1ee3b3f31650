//! A peer that writes whatever bytes it likes and reads answers.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes; reached only when something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Peer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Peer {
    pub async fn connect(to: SocketAddr) -> Peer {
        Peer { stream: TcpStream::connect(to).await.unwrap(), buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Says that nothing more will come.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Like `send`, from a peer that does not mind being hung up on.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// The next answer; `None` when the connection ends instead.
    pub async fn reply(&mut self) -> Option<Reply> {
        tokio::time::timeout(PATIENCE, self.read_reply()).await.expect("no answer and no end")
    }

    async fn read_reply(&mut self) -> Option<Reply> {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.fill().await {
                assert!(self.buffer.is_empty(), "cut off: {:?}", String::from_utf8_lossy(&self.buffer));
                return None;
            }
        };
        let head = String::from_utf8(self.buffer[..head_end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let named = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned()));
        let headers: Vec<(String, String)> = lines.filter_map(named).collect();
        let length = headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().unwrap());
        while self.buffer.len() < head_end + length {
            assert!(self.fill().await, "the body is cut off");
        }
        let body = self.buffer[head_end..head_end + length].to_vec();
        self.buffer.drain(..head_end + length);
        Some(Reply { status, headers, body })
    }

    async fn fill(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(1..))
    }

    /// Everything up to the end of the connection.
    pub async fn rest(&mut self) -> String {
        while tokio::time::timeout(PATIENCE, self.fill()).await.expect("no end") {}
        String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()
    }

    /// Whether the server closes, without another answer.
    pub async fn is_closed(&mut self) -> bool {
        self.reply().await.is_none()
    }
}

/// One request, one answer.
pub async fn ask(to: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
    let mut peer = Peer::connect(to).await;
    peer.send(request).await;
    peer.reply().await.expect("the connection ended without an answer")
}
