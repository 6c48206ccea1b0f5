//! Settings of access control, and the guard that they configure.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::http::Uri;
use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use jsonwebtoken::{Algorithm, DecodingKey};
use tracing::warn;

use super::secrets::Secret;
use crate::auth::guard::{Guard, SkipPaths};
use crate::auth::jwks::Jwks;
use crate::auth::role::Role;
use crate::auth::token::{Rules, Tokens};
use queen_protocol::units::{seconds, some_seconds};

const ACCESS: &str = "Access";
/// As long as the digest. A shorter secret can be guessed offline from a single token.
const SECRET_BYTES: usize = 32;

#[derive(Debug, Clone, Args)]
pub struct Access {
    /// Require an API key (`queen key create`) on every request.
    #[arg(long, env = "QUEEN_AUTH_ENABLED", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub auth_enabled: bool,
    /// Require a signed token (JWT) or an API key on every request.
    #[arg(long, env = "JWT_ENABLED", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub jwt_enabled: bool,
    /// Accepted signature algorithm: `HS256`, `RS256`, `EdDSA`, or `auto` for all that a key is configured for. The header of a
    /// token cannot choose another one.
    #[arg(long, env = "JWT_ALGORITHM", default_value = "HS256", value_name = "NAME", value_parser = algorithm,
          help_heading = ACCESS)]
    pub jwt_algorithm: Signed,
    /// Secret for HS256, at least 32 bytes.
    #[arg(long, env = "JWT_SECRET", value_name = "SECRET", allow_hyphen_values = true, help_heading = ACCESS)]
    pub jwt_secret: Option<Secret>,
    /// Path of a file that contains `JWT_SECRET`.
    #[arg(long, env = "JWT_SECRET_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub jwt_secret_file: Option<PathBuf>,
    /// Public key for RS256 or EdDSA: PEM text, in which `\n` may stand for a line break, or the path of a PEM file.
    #[arg(long, env = "JWT_PUBLIC_KEY", value_name = "PEM", allow_hyphen_values = true, help_heading = ACCESS)]
    pub jwt_public_key: Option<Secret>,
    /// URL of the issuer's key set (JWKS), for RS256 and EdDSA. Its keys stay valid while it cannot be reached.
    #[arg(long, env = "JWT_JWKS_URL", value_name = "URL", value_parser = key_set, help_heading = ACCESS)]
    pub jwt_jwks_url: Option<String>,
    /// How often the key set is fetched. An unknown key id triggers a fetch as well.
    #[arg(long, env = "JWT_JWKS_REFRESH_SECONDS", default_value = "5m", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = ACCESS)]
    pub jwt_jwks_refresh: Duration,
    /// Required issuer (`iss`) of tokens; any if not set.
    #[arg(long, env = "JWT_ISSUER", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_issuer: Option<String>,
    /// Required audience (`aud`) of tokens, which may list several; any if not set.
    #[arg(long, env = "JWT_AUDIENCE", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_audience: Option<String>,
    /// Allowed difference between the clocks of issuer and broker.
    #[arg(long, env = "JWT_CLOCK_SKEW", default_value = "30s", value_name = "SECONDS", value_parser = seconds,
          help_heading = ACCESS)]
    pub jwt_clock_skew: Duration,
    /// Refuse tokens without an expiry (`exp`).
    #[arg(long, env = "JWT_REQUIRE_EXP", value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub jwt_require_exp: bool,
    /// Claim with the role. A dot leads into an object: `a.b` is `b` in `a`.
    #[arg(long, env = "JWT_ROLES_CLAIM", default_value = "role", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_roles_claim: String,
    /// Claim with a list of roles; the highest applies.
    #[arg(long, env = "JWT_ROLES_ARRAY_CLAIM", default_value = "roles", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_roles_array_claim: String,
    /// Name of the role that may do everything.
    #[arg(long, env = "JWT_ROLE_ADMIN", default_value = "admin", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_admin: String,
    /// Name of the role that may push, pop and configure queues.
    #[arg(long, env = "JWT_ROLE_READ_WRITE", default_value = "read-write", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_read_write: String,
    /// Name of the role that may only read.
    #[arg(long, env = "JWT_ROLE_READ_ONLY", default_value = "read-only", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_read_only: String,
    /// Claim with grants, which limit a token to some queues.
    #[arg(long, env = "JWT_GRANTS_CLAIM", default_value = "queen", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_grants_claim: String,
    /// Paths that require neither token nor key, separated by commas. A path that ends in `/` includes all
    /// paths below it; `/` alone is only the page of the dashboard.
    #[arg(long, env = "JWT_SKIP_PATHS", default_value = "/health,/metrics/prometheus,/metrics,/", value_name = "PATHS",
          value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_skip_paths: String,
    /// Include queue and group names in `/metrics/prometheus` for callers without a token or key.
    #[arg(long, env = "QUEEN_OPEN_METRICS", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub open_metrics: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signed {
    With(Algorithm),
    Auto,
}

impl Access {
    /// `None` without access control. Fails if a setting is missing: the broker must not start open when access control was
    /// asked for.
    pub fn guard(&self) -> Result<Option<Arc<Guard>>> {
        if !self.auth_enabled && !self.jwt_enabled {
            return Ok(None);
        }
        let tokens = self.jwt_enabled.then(|| self.tokens()).transpose()?;
        let paths = self.jwt_skip_paths.split(',').map(str::trim).filter(|path| !path.is_empty());
        let skip = SkipPaths(paths.map(str::to_owned).collect());
        Ok(Some(Arc::new(Guard::new(tokens, skip, self.open_metrics))))
    }

    fn tokens(&self) -> Result<Tokens> {
        let wanted = |algorithm| {
            matches!(self.jwt_algorithm, Signed::Auto) || self.jwt_algorithm == Signed::With(algorithm)
        };
        if self.jwt_secret.as_ref().is_some_and(|secret| secret.is_empty()) {
            bail!("JWT_SECRET is empty");
        }
        let public_wanted = wanted(Algorithm::RS256) || wanted(Algorithm::EdDSA);
        let secret = self.jwt_secret.as_ref().filter(|_| wanted(Algorithm::HS256));
        let public = match &self.jwt_public_key {
            Some(key) if public_wanted => Some(public_key(key)?),
            _ => None,
        };
        let jwks = match &self.jwt_jwks_url {
            Some(url) if public_wanted => Some(self.jwks(url)?),
            _ => None,
        };
        if let Some(secret) = secret
            && secret.len() < SECRET_BYTES
        {
            let name = if self.jwt_secret_file.is_some() { "JWT_SECRET_FILE" } else { "JWT_SECRET" };
            bail!(
                "{name} has {} bytes; it needs {SECRET_BYTES} or more, because a shorter secret can be guessed from a \
                 single token: create one with `openssl rand -hex 32`",
                secret.len()
            );
        }
        let there = |algorithm: &Algorithm| match algorithm {
            Algorithm::HS256 => secret.is_some(),
            other => jwks.is_some() || public.as_ref().is_some_and(|(kind, _)| kind == other),
        };
        let algorithms = [Algorithm::HS256, Algorithm::RS256, Algorithm::EdDSA];
        let algorithms: Vec<Algorithm> =
            algorithms.into_iter().filter(|one| wanted(*one) && there(one)).collect();
        if algorithms.is_empty() {
            match self.jwt_algorithm {
                Signed::With(Algorithm::HS256) => bail!("JWT_ENABLED with HS256 needs JWT_SECRET"),
                Signed::With(other) => {
                    bail!("JWT_ENABLED with {other:?} needs JWT_JWKS_URL, or a JWT_PUBLIC_KEY for {other:?}")
                }
                Signed::Auto => bail!("JWT_ENABLED needs JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL"),
            }
        }
        let secret = secret.map(|secret| DecodingKey::from_secret(secret.as_bytes()));
        Ok(Tokens { algorithms, secret, public, jwks, rules: self.rules() })
    }

    fn rules(&self) -> Rules {
        Rules {
            issuer: self.jwt_issuer.clone(),
            audience: self.jwt_audience.clone(),
            skew: self.jwt_clock_skew,
            must_expire: self.jwt_require_exp,
            role_claim: self.jwt_roles_claim.clone(),
            roles_claim: self.jwt_roles_array_claim.clone(),
            grants_claim: self.jwt_grants_claim.clone(),
            roles: [
                (self.jwt_role_admin.clone(), Role::Admin),
                (self.jwt_role_read_write.clone(), Role::ReadWrite),
                (self.jwt_role_read_only.clone(), Role::ReadOnly),
            ],
        }
    }

    fn jwks(&self, url: &str) -> Result<Jwks> {
        let uri: Uri = url.parse().context("JWT_JWKS_URL must be a URL")?;
        let host = uri.host().unwrap_or_default();
        let near = matches!(host, "localhost" | "[::1]")
            || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        if uri.scheme_str() == Some("http") && !near {
            warn!(host, "JWT_JWKS_URL is not encrypted: an attacker on the network path can forge tokens");
        }
        Jwks::new(url, self.jwt_jwks_refresh)
    }
}

/// From PEM text or a file. The kind of key decides which algorithm it verifies.
fn public_key(given: &str) -> Result<(Algorithm, DecodingKey)> {
    let pem = match given.contains("-----BEGIN") {
        true => given.replace("\\n", "\n"),
        false => std::fs::read_to_string(Path::new(given))
            .context("JWT_PUBLIC_KEY is neither PEM nor a file that can be read")?,
    };
    if pem.contains("PRIVATE KEY") {
        bail!(
            "JWT_PUBLIC_KEY is a private key; the broker needs the public key, and the private one must stay with the issuer"
        );
    }
    if let Ok(key) = DecodingKey::from_ed_pem(pem.as_bytes()) {
        return Ok((Algorithm::EdDSA, key));
    }
    match DecodingKey::from_rsa_pem(pem.as_bytes()) {
        Ok(key) => Ok((Algorithm::RS256, key)),
        // The text of the error could repeat the key.
        Err(_) => bail!("JWT_PUBLIC_KEY holds neither an RSA nor an Ed25519 public key in PEM"),
    }
}

fn algorithm(text: &str) -> Result<Signed, String> {
    match text.to_ascii_lowercase().as_str() {
        "hs256" => Ok(Signed::With(Algorithm::HS256)),
        "rs256" => Ok(Signed::With(Algorithm::RS256)),
        "eddsa" => Ok(Signed::With(Algorithm::EdDSA)),
        "auto" => Ok(Signed::Auto),
        _ => Err("must be HS256, RS256, EdDSA or auto".to_owned()),
    }
}

fn key_set(text: &str) -> Result<String, String> {
    let uri: Uri = text.parse().map_err(|_| "must be a URL".to_owned())?;
    match (uri.scheme_str(), uri.authority()) {
        (_, Some(authority)) if authority.as_str().contains('@') => {
            Err("must not contain a user or a password".to_owned())
        }
        (Some("http" | "https"), Some(_)) => Ok(text.to_owned()),
        _ => Err("must start with http:// or https://".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;

    const ED: &str = "-----BEGIN PUBLIC KEY-----\\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\\n-----END PUBLIC KEY-----";

    fn guard(flags: &[&str]) -> Result<bool, String> {
        let settings = Cli::parse_from(["queen"].iter().chain(flags)).unwrap().settings;
        settings.access.guard().map(|guard| guard.is_some()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn it_is_off_unless_asked_for() {
        assert_eq!(guard(&[]), Ok(false));
        assert_eq!(guard(&["--jwt-secret", "s"]), Ok(false));
        assert_eq!(guard(&["--auth-enabled"]), Ok(true));
        assert_eq!(guard(&["--jwt-enabled", "--jwt-secret", &"s".repeat(32)]), Ok(true));
        assert_eq!(guard(&["--jwt-enabled", "--jwt-algorithm", "eddsa", "--jwt-public-key", ED]), Ok(true));
        assert_eq!(
            guard(&["--jwt-enabled", "--jwt-algorithm", "auto", "--jwt-jwks-url", "http://localhost/k"]),
            Ok(true)
        );
    }

    #[test]
    fn without_a_key_it_does_not_start_and_says_why() {
        for (flags, why) in [
            (&["--jwt-enabled"][..], "JWT_SECRET"),
            (&["--jwt-enabled", "--jwt-secret", ""], "JWT_SECRET is empty"),
            (
                &["--jwt-enabled", "--jwt-secret", "thirty-one bytes are not enough"],
                "JWT_SECRET has 31 bytes; it needs 32 or more",
            ),
            (
                &[
                    "--jwt-enabled",
                    "--jwt-algorithm",
                    "auto",
                    "--jwt-secret",
                    "",
                    "--jwt-jwks-url",
                    "http://localhost/k",
                ],
                "JWT_SECRET is empty",
            ),
            (&["--jwt-enabled", "--jwt-algorithm", "auto"], "JWT_JWKS_URL"),
            (&["--jwt-enabled", "--jwt-algorithm", "RS256", "--jwt-secret", "s"], "JWT_PUBLIC_KEY"),
            (&["--jwt-enabled", "--jwt-algorithm", "RS256", "--jwt-public-key", ED], "RS256"),
            (&["--jwt-enabled", "--jwt-algorithm", "EdDSA", "--jwt-public-key", "/no/such/file"], "file"),
            (
                &[
                    "--jwt-enabled",
                    "--jwt-algorithm",
                    "EdDSA",
                    "--jwt-public-key",
                    "-----BEGIN PUBLIC KEY-----",
                ],
                "neither",
            ),
            (
                &[
                    "--jwt-enabled",
                    "--jwt-algorithm",
                    "EdDSA",
                    "--jwt-public-key",
                    "-----BEGIN PRIVATE KEY-----",
                ],
                "private",
            ),
        ] {
            let error = guard(flags).unwrap_err();
            assert!(error.contains(why), "{flags:?}: {error}");
        }
    }

    #[test]
    fn a_condition_without_a_value_is_refused() {
        for flag in ["--jwt-issuer", "--jwt-audience", "--jwt-skip-paths"] {
            assert!(Cli::parse_from(["queen", flag, ""]).is_err(), "{flag}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let settings = Cli::parse_from(["queen", "--jwt-secret", "hush"]).unwrap().settings;
        assert!(!format!("{settings:?}").contains("hush"));
    }
}
