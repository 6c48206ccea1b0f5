//! Why a credential was refused. The texts are precise, so that the right thing gets repaired, and contain no secrets.

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
    /// Not the fault of the caller; a retry may succeed.
    NoIssuer,
    NoDatabase,
}

/// Why a request was refused, as the audit log and the metrics show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    Missing,
    Malformed,
    Signature,
    Expired,
    Claims,
    ApiKey,
    Role,
    Grants,
    Origin,
}

/// Attached to the response, for the audit log.
#[derive(Debug, Clone)]
pub struct Denial {
    pub denied: Denied,
    pub text: String,
}

impl Denied {
    pub const ALL: [Self; 9] = [
        Self::Missing,
        Self::Malformed,
        Self::Signature,
        Self::Expired,
        Self::Claims,
        Self::ApiKey,
        Self::Role,
        Self::Grants,
        Self::Origin,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Claims => "claims",
            Self::ApiKey => "api_key",
            Self::Role => "role",
            Self::Grants => "grants",
            Self::Origin => "origin",
        }
    }

    /// Of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Role | Self::Grants | Self::Origin => 403,
            _ => 401,
        }
    }
}

impl Refusal {
    /// `None` if the check could not be made.
    fn denied(self) -> Option<Denied> {
        match self {
            Self::Missing => Some(Denied::Missing),
            Self::Scheme | Self::Malformed | Self::Critical => Some(Denied::Malformed),
            Self::Algorithm | Self::UnnamedKey | Self::UnknownKey | Self::Signature => {
                Some(Denied::Signature)
            }
            Self::Expired | Self::NotYet | Self::FromTheFuture => Some(Denied::Expired),
            Self::NoExpiry
            | Self::Issuer
            | Self::Audience
            | Self::Claim(_)
            | Self::Subject
            | Self::Grants
            | Self::TokensOff => Some(Denied::Claims),
            Self::ApiKey => Some(Denied::ApiKey),
            Self::NoIssuer | Self::NoDatabase => None,
        }
    }

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
            // Published consumers continue after an error only if its text contains "connection" or "timeout".
            Self::NoIssuer => "connection timeout: the keys of the issuer could not be fetched yet",
            Self::NoDatabase => "database connection timeout: API keys cannot be checked",
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal.denied() {
            None => Self::new(ErrorCode::Unavailable, refusal.text()),
            Some(denied) => Self::denied(denied, refusal.text()),
        }
    }
}
