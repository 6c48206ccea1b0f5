//! A loopback proxy in front of PostgreSQL that breaks the network on request. It parses the stream only as far as needed to
//! know which reply belongs to which request.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Config, Host};

use crate::wire::{Frames, REPLY_ENDS, REQUEST_ENDS};
use crate::{spawn, url};

const CHUNK_BYTES: usize = 64 << 10;
/// How much of the past stream is kept, to find a pattern that spans two chunks.
const PATTERN_BYTES_MAX: usize = 256;

/// A healthy connection to PostgreSQL until a fault is set. Dropping it closes open connections.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    control: Arc<Control>,
    acceptor: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server that this connection string names, over TCP or a Unix socket.
    pub async fn to_postgres(upstream: &str) -> Self {
        let config: Config = upstream.parse().expect("a connection string in keyword form");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let control = Arc::new(Control::default());
        let acceptor = spawn(accept(listener, url::address(&config), Arc::clone(&control)));
        Self { url: url::through_port(&config, port), control, acceptor }
    }

    /// The connection string that leads through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Closes all connections that are open now.
    pub fn cut(&self) {
        self.control.cuts.send_modify(|count| *count += 1);
    }

    /// While on, new connections are closed as soon as they arrive. Open ones continue.
    pub fn refuse(&self, on: bool) {
        self.control.state().refuse = on;
    }

    /// Delays every chunk by this long, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.control.state().delay = delay;
    }

    /// While on, connections stay open and no data passes. Afterwards all of it does.
    pub fn black_hole(&self, on: bool) {
        self.control.black_hole.send_replace(on);
    }

    /// Holds back everything sent from now on over connections that are already open, until they are released, even if
    /// the sender has closed its end by then. New connections are healthy.
    pub fn strand(&self) {
        self.control.stranded.send_replace(self.control.opened.load(Ordering::SeqCst));
    }

    pub fn release(&self) {
        self.control.stranded.send_replace(0);
    }

    /// Once: forwards the next request, waits until the server's reply is complete, and closes the connection without delivering
    /// the reply. So the server has executed the request and the client does not know it. Replies to earlier requests on the
    /// connection are delivered.
    ///
    /// With a pattern, waits for a request that contains these bytes, on any connection. Preparing a statement is a request too,
    /// so `None` rarely hits the intended one unless the statement is prepared.
    pub fn cut_before_reply(&self, pattern: Option<&[u8]>) {
        assert!(
            pattern.is_none_or(|p| (1..=PATTERN_BYTES_MAX).contains(&p.len())),
            "a pattern of 1 to 256 bytes"
        );
        self.control.state().trap =
            Some(pattern.map_or(Trap::Any, |pattern| Trap::Holding(pattern.to_vec())));
    }

    /// How many replies [`Proxy::cut_before_reply`] has withheld so far.
    pub fn replies_withheld(&self) -> usize {
        self.control.state().replies_withheld
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut();
    }
}

#[derive(Debug, Default)]
struct Control {
    cuts: watch::Sender<u64>,
    black_hole: watch::Sender<bool>,
    /// Connections are numbered from 1; those up to this one are held back.
    stranded: watch::Sender<u64>,
    opened: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    refuse: bool,
    delay: Duration,
    trap: Option<Trap>,
    replies_withheld: usize,
}

/// The request whose reply is withheld.
#[derive(Debug)]
enum Trap {
    Any,
    Holding(Vec<u8>),
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("never poisoned")
    }

    /// Applies the current faults to a chunk of the connection with this number.
    async fn weather(&self, number: u64) {
        let delay = self.state().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let _ = self.black_hole.subscribe().wait_for(|on| !on).await;
        let _ = self.stranded.subscribe().wait_for(|stranded| *stranded < number).await;
    }
}

async fn accept(listener: TcpListener, upstream: (Host, u16), control: Arc<Control>) {
    while let Ok((client, _)) = listener.accept().await {
        if !control.state().refuse {
            // Before the task runs, so that a cut from here on reaches it.
            let cuts = control.cuts.subscribe();
            spawn(serve(client, upstream.clone(), Arc::clone(&control), cuts));
        }
    }
}

/// Ends, and closes both sides, when either direction ends or a cut is requested.
async fn serve(
    client: TcpStream,
    upstream: (Host, u16),
    control: Arc<Control>,
    mut cuts: watch::Receiver<u64>,
) {
    let work = async {
        match upstream {
            (Host::Tcp(name), port) => relay(client, TcpStream::connect((name, port)).await?, &control).await,
            (Host::Unix(dir), port) => {
                let socket = dir.join(format!(".s.PGSQL.{port}"));
                relay(client, UnixStream::connect(socket).await?, &control).await
            }
        }
    };
    tokio::select! {
        _ = cuts.changed() => {}
        _ = work => {}
    }
}

async fn relay(client: TcpStream, server: impl AsyncRead + AsyncWrite, control: &Control) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (client_reads, client_writes) = split(client);
    let (server_reads, server_writes) = split(server);
    let doomed = AtomicU64::new(0);
    let number = control.opened.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::select! {
        ended = forward_requests(client_reads, server_writes, control, number, &doomed) => ended,
        ended = forward_replies(server_reads, client_writes, control, number, &doomed) => ended,
    }
}

/// `doomed` is the number of the request whose reply must not arrive: 1 is the first after the handshake, 0 means none.
async fn forward_requests(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    control: &Control,
    number: u64,
    doomed: &AtomicU64,
) -> io::Result<()> {
    let mut requests = Requests::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let chunk = match from.read(&mut buffer).await? {
            0 => return Ok(()),
            count => &buffer[..count],
        };
        control.weather(number).await;
        {
            let mut state = control.state();
            if let Some(number) = requests.follow(chunk, state.trap.as_ref()) {
                state.trap = None;
                // Before the bytes are sent, so that the reply cannot arrive before the order to withhold it.
                doomed.store(number, Ordering::SeqCst);
            }
        }
        to.write_all(chunk).await?;
    }
}

async fn forward_replies(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    control: &Control,
    number: u64,
    doomed: &AtomicU64,
) -> io::Result<()> {
    let mut frames = Frames::of_server();
    // The end of the handshake counts as reply 0.
    let mut replies = 0;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let chunk = match from.read(&mut buffer).await? {
            0 => return Ok(()),
            count => &buffer[..count],
        };
        control.weather(number).await;
        let ends = frames.ends(chunk, REPLY_ENDS);
        let doomed = doomed.load(Ordering::SeqCst);
        to.write_all(&chunk[..deliverable(chunk.len(), &ends, replies, doomed)]).await?;
        replies += ends.len() as u64;
        if doomed > 0 && replies > doomed {
            control.state().replies_withheld += 1;
            return Ok(());
        }
    }
}

/// How many bytes of a chunk come before the reply to the request `doomed`, if `replies` (the handshake included) were complete
/// before the chunk and more end at `ends` within it.
fn deliverable(bytes: usize, ends: &[usize], replies: u64, doomed: u64) -> usize {
    if doomed == 0 {
        return bytes;
    }
    match doomed.saturating_sub(replies) {
        0 => 0,
        owed => usize::try_from(owed - 1).ok().and_then(|last| ends.get(last).copied()).unwrap_or(bytes),
    }
}

/// Counts the requests of one client and finds the one that triggers the fault.
struct Requests {
    frames: Frames,
    finished: u64,
    past: Vec<u8>,
}

impl Requests {
    fn new() -> Self {
        Self { frames: Frames::of_client(), finished: 0, past: Vec::new() }
    }

    fn follow(&mut self, chunk: &[u8], trap: Option<&Trap>) -> Option<u64> {
        let ends = self.frames.ends(chunk, REQUEST_ENDS);
        let caught = match trap {
            None => None,
            Some(Trap::Any) => (!ends.is_empty()).then_some(self.finished + 1),
            Some(Trap::Holding(pattern)) => self.last_byte_of(pattern, chunk).map(|at| {
                let before = ends.iter().filter(|end| **end <= at).count();
                self.finished + before as u64 + 1
            }),
        };
        self.finished += ends.len() as u64;
        self.past.extend_from_slice(&chunk[chunk.len().saturating_sub(PATTERN_BYTES_MAX)..]);
        self.past.drain(..self.past.len().saturating_sub(PATTERN_BYTES_MAX));
        caught
    }

    /// Where in `chunk` the pattern ends; it may begin in an earlier one.
    fn last_byte_of(&self, pattern: &[u8], chunk: &[u8]) -> Option<usize> {
        let begun = &self.past[self.past.len().saturating_sub(pattern.len() - 1)..];
        let text = [begun, chunk].concat();
        let at = text.windows(pattern.len()).position(|window| window == pattern)?;
        Some(at + pattern.len() - 1 - begun.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).unwrap();
        [b"Q", &length.to_be_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn the_request_with_the_pattern_is_found_however_the_stream_is_cut() {
        let stream = [&b"\0\0\0\x08abcd"[..], &query("one"), &query("the two"), &query("three")].concat();
        let trap = Trap::Holding(b"two".to_vec());
        for size in 1..stream.len() {
            let mut requests = Requests::new();
            let found: Vec<u64> =
                stream.chunks(size).filter_map(|c| requests.follow(c, Some(&trap))).collect();
            assert_eq!(found, [2], "in chunks of {size}");
        }
    }

    #[test]
    fn earlier_replies_are_delivered_and_the_doomed_one_is_not() {
        // Nothing doomed.
        assert_eq!(deliverable(90, &[30, 60, 90], 1, 0), 90);
        // Request 2 is doomed; the handshake (0) and reply 1 may pass.
        assert_eq!(deliverable(90, &[30, 60, 90], 0, 2), 60);
        assert_eq!(deliverable(90, &[30, 60, 90], 1, 2), 30);
        assert_eq!(deliverable(90, &[90], 2, 2), 0);
        assert_eq!(deliverable(20, &[], 1, 2), 20);
        assert_eq!(deliverable(20, &[], 2, 2), 0);
    }
}
