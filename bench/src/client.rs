//! One HTTP/1.1 connection to the broker. Knows no routes and no JSON.
//!
//! Made for a load generator that shares its cores with the broker: a request is one write, a response usually one read, and no
//! other task is involved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::{self, Length};

/// Longer than any response except a long poll takes, so that a hung broker ends a run instead of hanging it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Enough for most responses, so that they need one read.
const READ_BYTES: usize = 16 << 10;

/// The broker's address, and the number of requests sent to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`
    address: Arc<str>,
    requests: Arc<AtomicU64>,
}

impl Target {
    pub fn from_url(url: &str) -> Result<Target> {
        let rest = url.strip_prefix("http://").with_context(|| format!("`{url}` must start with http://"))?;
        let host = rest.split('/').next().filter(|host| !host.is_empty());
        let host = host.with_context(|| format!("`{url}` names no host"))?;
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        Ok(Target { address: address.into(), requests: Arc::default() })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

pub struct Reply {
    pub status: u16,
    pub body: Bytes,
}

/// # Invariants
/// - At most one request is in progress.
/// - After an error the connection is dropped; the next request opens a new one. Nothing is sent twice.
pub struct Client {
    target: Target,
    link: Option<Link>,
    /// The request, reused for its memory.
    request: Vec<u8>,
    pub answer_timeout: Duration,
}

struct Link {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Client {
    pub fn new(target: Target) -> Client {
        Client { target, link: None, request: Vec::new(), answer_timeout: ANSWER_TIMEOUT }
    }

    pub async fn connect(&mut self) -> Result<()> {
        let address = &*self.target.address;
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        self.link = Some(Link { stream, buffer: BytesMut::with_capacity(READ_BYTES) });
        Ok(())
    }

    pub async fn get(&mut self, path: &str) -> Result<Reply> {
        self.call("GET", path, b"").await
    }

    pub async fn post(&mut self, path: &str, body: &[u8]) -> Result<Reply> {
        self.call("POST", path, body).await
    }

    pub async fn delete(&mut self, path: &str) -> Result<Reply> {
        self.call("DELETE", path, b"").await
    }

    async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Reply> {
        if self.link.is_none() {
            self.connect().await?;
        }
        // Taken out, so that a failed or canceled call leaves no half-used connection behind.
        let mut link = self.link.take().expect("connected above");
        self.target.requests.fetch_add(1, Ordering::Relaxed);
        write_request(&mut self.request, &self.target.address, method, path, body);
        let answer = tokio::time::timeout(self.answer_timeout, link.exchange(&self.request)).await;
        let (reply, keep_alive) = match answer {
            Ok(answer) => answer.with_context(|| format!("{method} {path} failed"))?,
            Err(_) => bail!("{method} {path} got no response within {:?}", self.answer_timeout),
        };
        if keep_alive {
            self.link = Some(link);
        }
        Ok(reply)
    }
}

fn write_request(request: &mut Vec<u8>, host: &str, method: &str, path: &str, body: &[u8]) {
    request.clear();
    for part in [method, " ", path, " HTTP/1.1\r\nhost: ", host] {
        request.extend_from_slice(part.as_bytes());
    }
    if !body.is_empty() {
        request.extend_from_slice(b"\r\ncontent-type: application/json\r\ncontent-length: ");
        request.extend_from_slice(body.len().to_string().as_bytes());
    }
    request.extend_from_slice(b"\r\n\r\n");
    request.extend_from_slice(body);
}

impl Link {
    /// The response, and whether the connection can be reused.
    async fn exchange(&mut self, request: &[u8]) -> Result<(Reply, bool)> {
        if !self.buffer.is_empty() {
            bail!("the broker sent more than one response");
        }
        self.stream.write_all(request).await?;
        let head = loop {
            self.read(READ_BYTES).await?;
            if let Some(head) = http::head(&self.buffer)? {
                break head;
            }
        };
        let _ = self.buffer.split_to(head.bytes);
        let body = match head.length {
            Length::Known(length) => {
                while self.buffer.len() < length {
                    self.read(length - self.buffer.len()).await?;
                }
                self.buffer.split_to(length).freeze()
            }
            Length::Chunked => loop {
                if let Some((body, taken)) = http::chunked(&self.buffer)? {
                    let _ = self.buffer.split_to(taken);
                    break Bytes::from(body);
                }
                self.read(READ_BYTES).await?;
            },
        };
        Ok((Reply { status: head.status, body }, head.keep_alive))
    }

    async fn read(&mut self, room: usize) -> Result<()> {
        self.buffer.reserve(room);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(anyhow!("the broker closed the connection")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn a_target_is_host_and_port() {
        let address = |url| Target::from_url(url).map(|target| target.address.to_string());
        assert_eq!(address("http://127.0.0.1:6632").unwrap(), "127.0.0.1:6632");
        assert_eq!(address("http://broker/").unwrap(), "broker:80");
        assert!(address("https://broker").is_err());
        assert!(address("6632").is_err());
    }

    #[test]
    fn a_request_has_a_length_only_with_a_body() {
        let mut request = Vec::new();
        write_request(&mut request, "h:1", "POST", "/push", b"{}");
        let expected = "POST /push HTTP/1.1\r\nhost: h:1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(std::str::from_utf8(&request).unwrap(), expected);
        write_request(&mut request, "h:1", "GET", "/pop", b"");
        assert_eq!(request, b"GET /pop HTTP/1.1\r\nhost: h:1\r\n\r\n");
    }

    /// Accepts connections one after the other, responds with the pieces of each, and closes it.
    async fn server(connections: &'static [&'static [&'static str]]) -> (Target, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::from_url(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for pieces in connections {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                for piece in *pieces {
                    // A piece that starts a response waits for its request.
                    if piece.starts_with("HTTP") {
                        let _ = stream.read(&mut request).await.unwrap();
                    }
                    stream.write_all(piece.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        (target, tasks)
    }

    #[tokio::test]
    async fn answers_in_pieces_are_put_together_on_one_connection() {
        let (target, _tasks) = server(&[&[
            "HTTP/1.1 200 OK\r\ncontent-le",
            "ngth: 4\r\n\r\nwi",
            "ki",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\npe",
            "dia\r\n0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ]])
        .await;
        let mut client = Client::new(target.clone());
        assert_eq!(&*client.get("/").await.unwrap().body, b"wiki");
        assert_eq!(&*client.post("/", b"{}").await.unwrap().body, b"pedia");
        assert_eq!(client.get("/").await.unwrap().status, 204);
        assert_eq!(target.requests(), 3);
    }

    #[tokio::test]
    async fn a_lost_connection_is_an_error_once_and_a_closed_one_is_none() {
        let (target, _tasks) = server(&[
            &["HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwi"],
            &["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\na"],
            &["HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb"],
        ])
        .await;
        let mut client = Client::new(target);
        assert!(client.get("/").await.is_err());
        assert_eq!(&*client.get("/").await.unwrap().body, b"a");
        assert_eq!(&*client.get("/").await.unwrap().body, b"b");
    }
}
