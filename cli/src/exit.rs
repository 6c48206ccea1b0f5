//! Exit codes and error messages.

use std::error::Error;
use std::fmt;
use std::io;

use queen_client::ErrorKind;
use rustls::CertificateError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    Nothing,
    Unreachable,
    Forbidden,
    Interrupted,
}

impl Exit {
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Done, "done"),
        (Self::Failed, "failed: the broker refused, or an error occurred"),
        (Self::Usage, "wrong usage: nothing was changed"),
        (Self::Nothing, "nothing found: no message, or no such queue, group or operation"),
        (Self::Unreachable, "the broker is unreachable, or did not respond in time"),
        (Self::Forbidden, "not allowed: the token is missing or lacks a permission"),
        (Self::Interrupted, "interrupted by ctrl-c or a signal"),
    ];

    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Nothing => 3,
            Self::Unreachable => 4,
            Self::Forbidden => 5,
            Self::Interrupted => 130,
        }
    }

    pub fn explained() -> String {
        let line = |(exit, meaning): (Self, &str)| format!("\n  {:>3}  {meaning}", exit.code());
        let lines: String = Self::ALL.into_iter().map(line).collect();
        format!(
            "Exit codes:{lines}\n\nExamples:\n  queen pop orders --group billing; test $? = 3 && echo 'all read'"
        )
    }

    /// The exit code for an error. A reader that closes its pipe (`| head`) is not an error.
    pub fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if let Some(refused) = cause.downcast_ref::<Refused>() {
                return refused.exit;
            }
            if let Some(error) = cause.downcast_ref::<queen_client::Error>() {
                return Self::of_client(error.kind());
            }
            if is_closed_pipe(cause) {
                return Self::Done;
            }
        }
        Self::Failed
    }

    fn of_client(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::BadUse => Self::Usage,
            ErrorKind::NotFound => Self::Nothing,
            ErrorKind::Network | ErrorKind::Timeout => Self::Unreachable,
            ErrorKind::Unauthorized | ErrorKind::Forbidden => Self::Forbidden,
            _ => Self::Failed,
        }
    }
}

/// The error message for people. Errors of the client already include their causes.
pub fn told(error: &anyhow::Error) -> Option<String> {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(cause.to_string());
        if let Some(client) = cause.downcast_ref::<queen_client::Error>() {
            if Exit::of_client(client.kind()) == Exit::Unreachable {
                parts.extend(advice(client).map(str::to_owned));
            }
            break;
        }
        if is_closed_pipe(cause) {
            return None;
        }
    }
    Some(parts.join(": "))
}

/// What to try when a broker cannot be reached. One whose certificate is not trusted is running.
fn advice(error: &queen_client::Error) -> Option<&'static str> {
    match refused_by_tls(error) {
        None => Some("start one with `queen serve`, or set --url"),
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::Other(_),
        )) => Some("trust it with --cacert"),
        Some(_) => None,
    }
}

fn refused_by_tls(error: &queen_client::Error) -> Option<&rustls::Error> {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        // The source of an I/O error repeats its text without context.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn is_closed_pipe(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error of a command, with its exit code.
#[derive(Debug)]
pub struct Refused {
    exit: Exit,
    text: String,
}

impl Refused {
    pub fn error(exit: Exit, text: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { exit, text: text.into() })
    }

    pub fn usage(text: impl Into<String>) -> anyhow::Error {
        Self::error(Exit::Usage, text)
    }

    pub fn nothing(text: impl Into<String>) -> anyhow::Error {
        Self::error(Exit::Nothing, text)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Error for Refused {}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_failure_ends_with_the_code_of_its_cause() {
        let unreachable = Exit::of_client(ErrorKind::Network);
        assert_eq!((unreachable, unreachable.code()), (Exit::Unreachable, 4));
        assert_eq!(Exit::of_client(ErrorKind::Forbidden).code(), 5);
        assert_eq!(Exit::of(&Refused::nothing("no such queue").context("pop")), Exit::Nothing);
        assert_eq!(Exit::of(&anyhow!("broken")), Exit::Failed);
        let bad = queen_client::Queen::connect("localhost").unwrap_err();
        assert_eq!(Exit::of(&anyhow::Error::new(bad)), Exit::Usage);
    }

    #[test]
    fn a_broken_pipe_has_no_error_message() {
        let closed: Result<(), _> = Err(io::Error::from(io::ErrorKind::BrokenPipe));
        let error = closed.context("cannot write").unwrap_err();
        assert_eq!((Exit::of(&error), told(&error)), (Exit::Done, None));
        assert_eq!(told(&anyhow!("why").context("what")).unwrap(), "what: why");
    }

    #[test]
    fn every_code_is_explained_once() {
        let text = Exit::explained();
        for (exit, meaning) in Exit::ALL {
            assert_eq!(text.matches(&format!("{:>3}  {meaning}", exit.code())).count(), 1, "{exit:?}");
        }
    }
}
