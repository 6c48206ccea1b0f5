//! A connection pooler in transaction mode: a client gets a PostgreSQL session for one transaction at a time, the one used last
//! first. Understands just enough of the protocol to see where a transaction ends.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Config, Host};

use crate::{spawn, url};

/// For one user and one database, without a password.
#[derive(Debug)]
pub struct Pooler {
    url: String,
    acceptor: JoinHandle<()>,
}

type Idle = Arc<Mutex<Vec<UnixStream>>>;
/// Its kind and all of its bytes.
type Frame = (u8, Vec<u8>);

impl Pooler {
    /// In front of the server that this connection string names, over a Unix socket.
    pub async fn to_postgres(upstream: &str) -> Self {
        let config: Config = upstream.parse().expect("a connection string in keyword form");
        let (Host::Unix(dir), port) = url::address(&config) else { panic!("a Unix socket") };
        let socket = dir.join(format!(".s.PGSQL.{port}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let here = listener.local_addr().expect("a bound listener has an address").port();
        let acceptor = spawn(async move {
            let idle = Idle::default();
            while let Ok((client, _)) = listener.accept().await {
                let (socket, idle) = (socket.clone(), idle.clone());
                // A client that disconnects ends only its own session.
                spawn(async move { serve(client, &socket, &idle).await.ok() });
            }
        });
        Self { url: url::through_port(&config, here), acceptor }
    }

    /// The connection string that leads through the pooler.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn serve(mut client: TcpStream, socket: &std::path::Path, idle: &Idle) -> std::io::Result<()> {
    let length = client.read_u32().await?;
    let mut startup = length.to_be_bytes().to_vec();
    startup.resize(length as usize, 0);
    client.read_exact(&mut startup[4..]).await?;
    // AuthenticationOk, a dummy cancel key, ReadyForQuery.
    client.write_all(b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x01Z\0\0\0\x05I").await?;
    let mut lent: Option<UnixStream> = None;
    loop {
        let (kind, bytes) = frame(&mut client).await?;
        if kind == b'X' {
            return Ok(());
        }
        let mut server = match lent.take() {
            Some(server) => server,
            None => {
                let used = idle.lock().expect("never poisoned").pop();
                match used {
                    Some(server) => server,
                    None => opened(socket, &startup).await?,
                }
            }
        };
        server.write_all(&bytes).await?;
        let mut over = false;
        while b"SQF".contains(&kind) {
            let (kind, bytes) = frame(&mut server).await?;
            client.write_all(&bytes).await?;
            if kind == b'Z' {
                over = bytes.last() == Some(&b'I');
                break;
            }
        }
        match over {
            true => idle.lock().expect("never poisoned").push(server),
            false => lent = Some(server),
        }
    }
}

async fn opened(socket: &std::path::Path, startup: &[u8]) -> std::io::Result<UnixStream> {
    let mut server = UnixStream::connect(socket).await?;
    server.write_all(startup).await?;
    while frame(&mut server).await?.0 != b'Z' {}
    Ok(server)
}

async fn frame(stream: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<Frame> {
    let kind = stream.read_u8().await?;
    let length = stream.read_u32().await?;
    let mut bytes = vec![kind];
    bytes.extend(length.to_be_bytes());
    bytes.resize(1 + length as usize, 0);
    stream.read_exact(&mut bytes[5..]).await?;
    Ok((kind, bytes))
}
