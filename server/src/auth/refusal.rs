//! Why nobody knows who asks. Precise, so that the right thing is repaired; nothing of a secret is in it.

use queen_protocol::ErrorCode;

use crate::http::error::{AUTHENTICATION_REQUIRED, ApiError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Missing,
    Scheme,
    Malformed,
    Algorithm,
    Critical,
    UnnamedKey,
    UnknownKey,
    Signature,
    Expired,
    NoExpiry,
    NotYet,
    FromTheFuture,
    Issuer,
    Audience,
    Claim(&'static str),
    Subject,
    Grants,
    ApiKey,
    TokensOff,
    /// Not the caller's fault, and worth another try.
    NoIssuer,
    NoDatabase,
}

impl Refusal {
    pub fn text(self) -> &'static str {
        match self {
            Self::Missing => AUTHENTICATION_REQUIRED,
            Self::Scheme => "the Authorization header holds neither a bearer token nor an API key",
            Self::Malformed => "not a token",
            Self::Algorithm => "algorithm not allowed",
            Self::Critical => "the token wants an extension that is not known here",
            Self::UnnamedKey => "the token does not say which key signed it",
            Self::UnknownKey => "unknown key id",
            Self::Signature => "signature does not match",
            Self::Expired => "token expired",
            Self::NoExpiry => "token never expires",
            Self::NotYet => "token not valid yet",
            Self::FromTheFuture => "token issued in the future",
            Self::Issuer => "wrong issuer",
            Self::Audience => "wrong audience",
            Self::Claim(text) => text,
            Self::Subject => {
                "the subject of the token is not usable: a text of up to 255 characters without NUL"
            }
            Self::Grants => "the grants of the token cannot be read",
            Self::ApiKey => "API key is unknown, revoked or expired",
            Self::TokensOff => "tokens are not accepted here, only API keys",
            // Published consumers go on after an error only if it speaks of a connection or a timeout.
            Self::NoIssuer => "connection timeout: the keys of the issuer could not be fetched yet",
            Self::NoDatabase => "database connection timeout: API keys cannot be checked",
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::NoIssuer | Refusal::NoDatabase => ErrorCode::Unavailable,
            _ => ErrorCode::Unauthorized,
        };
        Self::new(code, refusal.text())
    }
}
