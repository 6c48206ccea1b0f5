//! Limits on connections. A client beyond them gets a response and is disconnected, with bounded effort: each such connection
//! uses a file for up to a second.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::counted::{Counted, Place};
use super::stream::discard;
use super::{Bounds, Limit};

/// Connections that get a response at once. Further ones are just closed.
const FAREWELLS_MAX: usize = 64;
const FAREWELL_FOR: Duration = Duration::from_secs(1);
/// Used where files are not limited.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Published consumers continue after an error only if its text contains "timeout".
const TOO_MANY: &str = r#"{"error":"connection timeout: too many connections","code":"unavailable"}"#;

pub struct Admission {
    room: Arc<Semaphore>,
    limit: usize,
    clients: Arc<Counted<IpAddr>>,
    farewells: Arc<Semaphore>,
}

/// The permission for a connection, until it is dropped.
pub struct Permit {
    _room: OwnedSemaphorePermit,
    _place: Place<IpAddr>,
}

impl Admission {
    pub fn new(bounds: &Bounds) -> Self {
        let limit = match bounds.connections {
            0 => files_left(bounds.files_reserved),
            connections => connections,
        };
        Self {
            room: Arc::new(Semaphore::new(limit)),
            limit,
            clients: Counted::new(bounds.connections_per_client),
            farewells: Arc::new(Semaphore::new(FAREWELLS_MAX)),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn admit(&self, address: IpAddr) -> Result<Permit, Limit> {
        let place = self.clients.enter(address.to_canonical()).ok_or(Limit::ClientConnections)?;
        let room = self.room.clone().try_acquire_owned().map_err(|_| Limit::Connections)?;
        Ok(Permit { _room: room, _place: place })
    }

    /// Sends a client the reason for the refusal; `None` if too many are being sent, and the connection is only closed.
    pub fn farewell(&self, stream: TcpStream) -> Option<impl Future<Output = ()> + Send + 'static> {
        let turn = self.farewells.clone().try_acquire_owned().ok()?;
        Some(async move {
            let _turn = turn;
            // A client that does not read the response is disconnected all the same.
            _ = timeout(FAREWELL_FOR, tell(stream)).await;
        })
    }
}

async fn tell(mut stream: TcpStream) -> std::io::Result<()> {
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{TOO_MANY}",
        TOO_MANY.len(),
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    discard(&mut stream).await
}

/// Files are reserved for the broker itself, but at least half of them are for clients.
fn files_left(reserved: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.map_or(CONNECTIONS_MAX, |files| files as usize);
    files.saturating_sub(reserved).max(files / 2).clamp(1, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_takes_nothing_and_one_that_leaves_makes_room() {
        let bounds = Bounds { connections: 3, connections_per_client: 2, ..Bounds::default() };
        let (admission, [a, b]) = (Admission::new(&bounds), [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from));
        let first = admission.admit(a).unwrap();
        let _second = admission.admit(a).unwrap();
        assert_eq!(admission.admit(a).err(), Some(Limit::ClientConnections));
        let _third = admission.admit(b).unwrap();
        assert_eq!(admission.admit(b).err(), Some(Limit::Connections));
        drop(first);
        let fourth = admission.admit(b).unwrap();
        drop(fourth);
        assert!(admission.admit(a).is_ok());
    }

    #[test]
    fn without_a_limit_connections_leave_some_files_to_the_broker() {
        let files = getrlimit(Resource::Nofile).current.unwrap() as usize;
        let admission = Admission::new(&Bounds { files_reserved: 100, ..Bounds::default() });
        assert!(admission.limit() < files && admission.limit() >= files / 2);
    }
}
