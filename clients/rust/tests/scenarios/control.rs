//! The control server of the test environment.

use anyhow::{Result, ensure};
use serde_json::Value;

#[derive(Clone)]
pub struct Control {
    url: String,
    http: reqwest::Client,
}

impl Control {
    pub fn new(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), http: reqwest::Client::new() }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<()> {
        let mut request = self.http.post(format!("{}{path}", self.url));
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "POST {path}: {status} {text}");
        Ok(())
    }

    /// The requests that arrived at the proxies.
    pub async fn record(&self, query: &[(String, String)]) -> Result<Vec<Value>> {
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        let query: Vec<String> =
            query.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
        let response = self.http.get(format!("{}/record?{}", self.url, query.join("&"))).send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "the record: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }
}
