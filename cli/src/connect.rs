//! Flags that all client commands share: the broker's URL, credentials and timeouts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use queen_client::{Builder, Queen};

use super::exit::Refused;
use super::output::Output;
use queen_protocol::units::some_seconds;

const HEADING: &str = "Connection";
/// Limit of a single attempt. A broker that has not responded by then rarely will, so another attempt
/// makes better use of the time.
const ATTEMPT_MAX: Duration = Duration::from_secs(30);

/// First line of a certificate in a PEM file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Limit of a request when several brokers are polled, so that one of them does not hold up the display.
const LOOK_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Args)]
pub struct Connect {
    /// Broker URL. For several brokers on one database, separate with commas or repeat the flag.
    #[arg(long, env = "QUEEN_URL", value_name = "URL", default_value = "http://localhost:6632", value_delimiter = ',',
          help_heading = HEADING)]
    pub url: Vec<String>,
    /// Token or API key, if the broker requires one.
    #[arg(long, env = "QUEEN_TOKEN", value_name = "TOKEN", help_heading = HEADING)]
    pub token: Option<String>,
    /// File that contains `QUEEN_TOKEN`, read again for every request.
    #[arg(long, env = "QUEEN_TOKEN_FILE", value_name = "FILE", help_heading = HEADING)]
    pub token_file: Option<PathBuf>,
    /// PEM file of certificates to trust for HTTPS instead of the system's.
    #[arg(long, env = "QUEEN_CACERT", value_name = "FILE", help_heading = HEADING)]
    pub cacert: Option<PathBuf>,
    /// Time limit of a request, retries included. Time spent waiting for messages is added.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = some_seconds, help_heading = HEADING)]
    pub timeout: Duration,
    /// Print JSON: one document, or one line per message.
    #[arg(long, help_heading = HEADING)]
    pub json: bool,
}

impl Connect {
    /// One client for all brokers.
    pub fn client(&self) -> Result<Queen> {
        Ok(self.builder(self.timeout)?.urls(&self.url).build()?)
    }

    /// A client without an overall limit per request, for commands that must not give up on a message.
    pub fn patient_client(&self) -> Result<Queen> {
        Ok(self.builder(self.timeout.max(ATTEMPT_MAX))?.urls(&self.url).build()?)
    }

    /// One client per broker, for commands that show each of them. Requests fail fast.
    pub fn each(&self) -> Result<Vec<(String, Queen)>> {
        let timeout = self.timeout.min(LOOK_MAX);
        let one = |url: &String| {
            let builder = self.builder(timeout)?.request_timeout(timeout);
            Ok((url.clone(), builder.url(url).build()?))
        };
        self.url.iter().map(one).collect()
    }

    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    fn builder(&self, deadline: Duration) -> Result<Builder> {
        let mut builder = Queen::builder().request_timeout(self.timeout.min(ATTEMPT_MAX)).deadline(deadline);
        if let Some(file) = &self.cacert {
            let pem = std::fs::read(file)
                .map_err(|error| Refused::usage(format!("{}: {error}", file.display())))?;
            if !pem.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE) {
                let text = format!("--cacert {} contains no PEM certificate", file.display());
                return Err(Refused::usage(text));
            }
            builder = builder.ca_certificates(pem);
        }
        Ok(match (&self.token_file, &self.token) {
            (Some(_), Some(_)) => {
                return Err(Refused::usage("QUEEN_TOKEN and QUEEN_TOKEN_FILE are both set; use only one"));
            }
            (Some(file), None) => {
                // Fail now rather than with an endless series of 401s.
                token_in(file).map_err(|error| Refused::usage(format!("QUEEN_TOKEN_FILE: {error}")))?;
                let file = file.clone();
                builder.token_with(move || std::future::ready(token_in(&file)))
            }
            (None, Some(token)) => builder.token(token),
            (None, None) => builder,
        })
    }
}

fn token_in(file: &Path) -> io::Result<String> {
    let named = |error: &dyn fmt::Display| io::Error::other(format!("{} {error}", file.display()));
    let text =
        std::fs::read_to_string(file).map_err(|error| named(&format_args!("cannot be read: {error}")))?;
    match text.trim() {
        "" => Err(named(&"is empty")),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::Exit;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        connect: Connect,
    }

    fn client(flags: &[&str]) -> Result<Queen> {
        Flags::parse_from(["queen"].iter().chain(flags)).connect.client()
    }

    #[test]
    fn a_token_is_given_once_and_a_file_holds_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (good, empty) = (file("good", "t\n"), file("empty", "\n"));
        assert!(client(&["--token-file", &good]).is_ok() && client(&["--token", "t"]).is_ok());
        for (flags, said) in [
            (&["--token", "t", "--token-file", &good][..], "QUEEN_TOKEN and QUEEN_TOKEN_FILE are both set"),
            (&["--token-file", &empty], "QUEEN_TOKEN_FILE: "),
            (&["--token-file", &empty], "is empty"),
            (&["--token-file", "/nowhere"], "QUEEN_TOKEN_FILE: /nowhere cannot be read"),
        ] {
            let error = client(flags).unwrap_err();
            assert!(Exit::of(&error) == Exit::Usage && error.to_string().contains(said), "{error}");
        }
    }
}
