//! One HTTP/1.1 connection to the broker. Knows no routes and no JSON.
//!
//! The connection is driven by the task that waits for the answer, not by a task of its own: one wake-up
//! per answer instead of three keeps the load generator out of the way on a small machine.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longer than any answer but a long poll may take. A hung broker ends a run instead of hanging it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Host and port of the broker, as `host:port`.
#[derive(Clone, Debug)]
pub struct Target(Arc<str>);

impl Target {
    pub fn from_url(url: &str) -> Result<Target> {
        let uri: Uri = url.parse().with_context(|| format!("`{url}` is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            bail!("`{url}` must start with http://");
        }
        let host = uri.host().ok_or_else(|| anyhow!("`{url}` names no host"))?;
        Ok(Target(format!("{host}:{}", uri.port_u16().unwrap_or(80)).into()))
    }
}

pub struct Reply {
    pub status: StatusCode,
    pub body: Bytes,
}

/// # Invariants
/// - At most one request is under way.
/// - After any error the connection is dropped; the next request opens a new one. Nothing is sent twice.
pub struct Client {
    target: Target,
    link: Option<Link>,
    pub answer_timeout: Duration,
}

struct Link {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
}

impl Client {
    pub fn new(target: Target) -> Client {
        Client { target, link: None, answer_timeout: ANSWER_TIMEOUT }
    }

    pub async fn connect(&mut self) -> Result<()> {
        let stream = TcpStream::connect(&*self.target.0)
            .await
            .with_context(|| format!("cannot connect to {}", self.target.0))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        self.link = Some(Link { sender, connection: Box::pin(connection) });
        Ok(())
    }

    pub async fn get(&mut self, uri: &Uri) -> Result<Reply> {
        self.call(Method::GET, uri, Bytes::new()).await
    }

    pub async fn post(&mut self, uri: &Uri, body: Bytes) -> Result<Reply> {
        self.call(Method::POST, uri, body).await
    }

    pub async fn delete(&mut self, uri: &Uri) -> Result<Reply> {
        self.call(Method::DELETE, uri, Bytes::new()).await
    }

    async fn call(&mut self, method: Method, uri: &Uri, body: Bytes) -> Result<Reply> {
        if self.link.is_none() {
            self.connect().await?;
        }
        // Taken out, so that a failed or cancelled call leaves no half-used connection behind.
        let mut link = self.link.take().expect("connected above");
        let mut request = Request::builder().method(&method).uri(uri).header(HOST, &*self.target.0);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body))?;
        let reply = match tokio::time::timeout(self.answer_timeout, link.exchange(request)).await {
            Ok(reply) => reply.with_context(|| format!("{method} {} failed", uri.path()))?,
            Err(_) => bail!("{method} {} got no answer in {:?}", uri.path(), self.answer_timeout),
        };
        self.link = Some(link);
        Ok(reply)
    }
}

impl Link {
    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Reply> {
        let Link { sender, connection } = self;
        let answer = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok(Reply { status, body })
        };
        tokio::select! {
            biased;
            reply = answer => reply,
            closed = connection => {
                closed?;
                bail!("the broker closed the connection")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_host_and_port() {
        assert_eq!(&*Target::from_url("http://127.0.0.1:6632").unwrap().0, "127.0.0.1:6632");
        assert_eq!(&*Target::from_url("http://broker/").unwrap().0, "broker:80");
        assert!(Target::from_url("https://broker").is_err());
        assert!(Target::from_url("6632").is_err());
    }
}
