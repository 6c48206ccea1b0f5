//! A port that can be closed and opened again. While closed, connections are refused as if no process listened.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use crate::spawn;

const BACKLOG: u32 = 1024;
/// The last connections of a closed port may hold it for a moment.
const BIND_TRIES: u32 = 200;
const BIND_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// The task that accepts connections and holds all of them.
    Open(JoinHandle<()>),
    /// Bound and not listening: connections are refused, and no other process can take the port.
    Closed(TcpSocket),
}

impl Door {
    /// Closed, on a free port.
    pub fn new() -> Result<Self> {
        let socket = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self { address: socket.local_addr()?, state: Mutex::new(State::Closed(socket)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Each connection is `serve`d in its own task. No effect if the door is open.
    pub async fn open<S, F>(&self, serve: S) -> Result<()>
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.state.lock().await;
        if let State::Open(_) = *state {
            return Ok(());
        }
        // A socket as a placeholder, closed at once.
        let elsewhere = State::Closed(TcpSocket::new_v4()?);
        if let State::Closed(socket) = std::mem::replace(&mut *state, elsewhere) {
            let listener = socket.listen(BACKLOG).context("cannot reopen the port")?;
            *state = State::Open(spawn(accept(listener, serve)));
        }
        Ok(())
    }

    /// Closes all connections. No effect if the door is closed.
    pub async fn close(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        let State::Open(task) = &mut *state else { return Ok(()) };
        task.abort();
        // Once the task is gone, so are its listener and connections.
        let _ = task.await;
        for _ in 0..BIND_TRIES {
            if let Ok(socket) = bound(self.address) {
                *state = State::Closed(socket);
                return Ok(());
            }
            tokio::time::sleep(BIND_PAUSE).await;
        }
        anyhow::bail!("the port {} was taken by another process", self.address)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let State::Open(task) = self.state.get_mut() {
            task.abort();
        }
    }
}

fn bound(address: SocketAddr) -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept<S, F>(listener: TcpListener, serve: S)
where
    S: Fn(TcpStream) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
