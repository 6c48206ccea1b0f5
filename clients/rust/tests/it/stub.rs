//! A fake broker: the test sees every request, and decides on its response and time.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::PATIENCE;

pub struct Stub {
    pub url: String,
    requests: mpsc::Receiver<Asked>,
    _serving: JoinSet<()>,
}

/// A request that waits for its response. Dropping it closes the connection.
pub struct Asked {
    pub line: String,
    pub body: Value,
    answer: oneshot::Sender<(u16, String)>,
}

impl Asked {
    pub fn answer(self, status: u16, body: &Value) {
        // The caller may be gone.
        let _ = self.answer.send((status, body.to_string()));
    }

    /// A broker's response to a stored push.
    pub fn store(self) {
        let items = self.body["items"].as_array().cloned().unwrap_or_default();
        let stored = |item: &Value| json!({"message_id": "m", "transaction_id": item["transactionId"], "status": "queued", "partition_id": "p"});
        let results = items.iter().map(stored).collect();
        self.answer(201, &results);
    }

    pub fn refuse(self) {
        self.answer(400, &json!({"error": "not like this", "code": "bad_request"}));
    }

    /// The payloads of a push.
    pub fn payloads(&self) -> Vec<Value> {
        let items = self.body["items"].as_array().expect("a push");
        items.iter().map(|item| item["payload"].clone()).collect()
    }
}

impl Stub {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, requests) = mpsc::channel(100);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                connections.spawn(async move { _ = serve(stream, sender).await });
            }
        });
        Self { url, requests, _serving: serving }
    }

    pub async fn next(&mut self) -> Asked {
        timeout(PATIENCE, self.requests.recv()).await.expect("a request comes").expect("it serves")
    }
}

async fn serve(stream: TcpStream, sender: mpsc::Sender<Asked>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await.ok()?;
            let Some((name, value)) = header.trim().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let (answer, answered) = oneshot::channel();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let line = line.rsplit_once(' ').map_or_else(String::new, |(line, _)| line.to_owned());
        sender.send(Asked { line, body, answer }).await.ok()?;
        let (status, body) = answered.await.ok()?;
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// A port that refuses connections, and that no other process can take meanwhile.
pub struct Nobody {
    pub url: String,
    _socket: TcpSocket,
}

impl Nobody {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let url = format!("http://{}", socket.local_addr().expect("an address"));
        Self { url, _socket: socket }
    }
}
