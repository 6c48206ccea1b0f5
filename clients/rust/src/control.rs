//! Requests to the control plane: any broker may respond, with an object.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::brokers::Route;
use crate::error::Error;
use crate::queen::Shared;
use crate::wire;

pub struct Control {
    method: Method,
    path: String,
    body: Result<Bytes, Error>,
    deadline: Option<Duration>,
    once: bool,
}

impl Control {
    fn new(method: Method, path: impl Into<String>, body: Result<Bytes, Error>) -> Self {
        Self { method, path: path.into(), body, deadline: None, once: false }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, Ok(Bytes::new()))
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path, Ok(Bytes::new()))
    }

    pub fn post(path: impl Into<String>, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).map(Bytes::from);
        Self::new(Method::POST, path, body.map_err(|error| Error::bad_use(error.to_string())))
    }

    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Not retried if the response is lost: a later execution could do more than intended.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    pub async fn send<T: DeserializeOwned>(self, shared: &Shared) -> Result<T, Error> {
        let mut call = shared.usual(self.method, self.path, self.body?, Route::First, self.deadline);
        call.once = self.once;
        let answer = shared.call(call).await?;
        wire::object(&answer.body).map_err(|error| error.with_attempts(answer.attempts))
    }
}
