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

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
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
        if headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked") {
            self.buffer.drain(..head_end);
            let body = self.chunks().await?;
            return Some(Reply { status, headers, body });
        }
        let length = headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().unwrap());
        while self.buffer.len() < head_end + length {
            assert!(self.fill().await, "the body is cut off");
        }
        let body = self.buffer[head_end..head_end + length].to_vec();
        self.buffer.drain(..head_end + length);
        Some(Reply { status, headers, body })
    }

    /// `None`: the connection ended before the last one.
    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                match self.buffer.windows(2).position(|w| w == b"\r\n") {
                    Some(at) => break at,
                    None if self.fill().await => {}
                    None => return None,
                }
            };
            let length = usize::from_str_radix(std::str::from_utf8(&self.buffer[..end]).unwrap(), 16).unwrap();
            while self.buffer.len() < end + length + 4 {
                if !self.fill().await {
                    return None;
                }
            }
            body.extend_from_slice(&self.buffer[end + 2..end + 2 + length]);
            self.buffer.drain(..end + length + 4);
            if length == 0 {
                return Some(body);
            }
        }
    }

    async fn fill(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(1..))
    }

    /// Everything up to the end of the connection.
    pub async fn rest(&mut self) -> String {
        while tokio::time::timeout(PATIENCE, self.fill()).await.expect("no end") {}
        String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()
    }

    /// At most so many bytes of whatever comes, thrown away.
    pub async fn some(&mut self, most: usize) -> usize {
        let mut scratch = vec![0; most];
        tokio::time::timeout(PATIENCE, self.stream.read(&mut scratch)).await.expect("nothing comes").unwrap()
    }

    /// The status of an answer, of which no more is read.
    pub async fn status(&mut self) -> u16 {
        while self.buffer.len() < 12 {
            assert!(tokio::time::timeout(PATIENCE, self.fill()).await.expect("no answer"), "no answer");
        }
        std::str::from_utf8(&self.buffer[9..12]).unwrap().parse().unwrap()
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
