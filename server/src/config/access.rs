//! Settings about who may do what, and the guard that follows from them.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::http::Uri;
use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use jsonwebtoken::{Algorithm, DecodingKey};
use tracing::warn;

use crate::auth::guard::{Guard, SkipPaths};
use crate::auth::jwks::Jwks;
use crate::auth::role::Role;
use crate::auth::token::{Rules, Tokens};
use queen_protocol::units::{seconds, some_seconds};

const ACCESS: &str = "Access";
/// As long as the digest: shorter ones can be guessed offline from a single token.
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
    /// How tokens are signed: `HS256`, `RS256`, `EdDSA`, or `auto` for all that there is a key for. What a token says
    /// about itself decides nothing.
    #[arg(long, env = "JWT_ALGORITHM", default_value = "HS256", value_name = "NAME", value_parser = algorithm,
          help_heading = ACCESS)]
    pub jwt_algorithm: Signed,
    /// Secret for HS256, at least 32 bytes.
    #[arg(long, env = "JWT_SECRET", value_name = "SECRET", allow_hyphen_values = true, help_heading = ACCESS)]
    pub jwt_secret: Option<Secret>,
    /// Path of a file that contains `JWT_SECRET`.
    #[arg(long, env = "JWT_SECRET_FILE", value_name = "FILE", help_heading = ACCESS)]
    pub jwt_secret_file: Option<PathBuf>,
    /// Public key for RS256 or EdDSA: PEM, in which `\n` may stand for a line end, or a file that holds it.
    #[arg(long, env = "JWT_PUBLIC_KEY", value_name = "PEM", allow_hyphen_values = true, help_heading = ACCESS)]
    pub jwt_public_key: Option<Secret>,
    /// Address of the issuer's key set, for RS256 and EdDSA. Its keys stay valid while it cannot be reached.
    #[arg(long, env = "JWT_JWKS_URL", value_name = "URL", value_parser = key_set, help_heading = ACCESS)]
    pub jwt_jwks_url: Option<String>,
    /// How often that is fetched; an unknown key id has it fetched at once.
    #[arg(long, env = "JWT_JWKS_REFRESH_SECONDS", default_value = "5m", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = ACCESS)]
    pub jwt_jwks_refresh: Duration,
    /// The `iss` that a token must have; any if not given.
    #[arg(long, env = "JWT_ISSUER", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_issuer: Option<String>,
    /// The `aud` that a token must have, or have among others; any if not given.
    #[arg(long, env = "JWT_AUDIENCE", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_audience: Option<String>,
    /// How far the clocks of issuer and broker may be apart.
    #[arg(long, env = "JWT_CLOCK_SKEW", default_value = "30s", value_name = "SECONDS", value_parser = seconds,
          help_heading = ACCESS)]
    pub jwt_clock_skew: Duration,
    /// Refuse tokens that never expire.
    #[arg(long, env = "JWT_REQUIRE_EXP", value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub jwt_require_exp: bool,
    /// Claim that names a role. A dot leads into an object: `a.b` is `b` in `a`.
    #[arg(long, env = "JWT_ROLES_CLAIM", default_value = "role", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_roles_claim: String,
    /// Claim that names several; the highest counts.
    #[arg(long, env = "JWT_ROLES_ARRAY_CLAIM", default_value = "roles", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_roles_array_claim: String,
    /// What the role is called that may do everything.
    #[arg(long, env = "JWT_ROLE_ADMIN", default_value = "admin", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_admin: String,
    /// What the role is called that may push, pop and configure.
    #[arg(long, env = "JWT_ROLE_READ_WRITE", default_value = "read-write", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_read_write: String,
    /// What the role is called that may look.
    #[arg(long, env = "JWT_ROLE_READ_ONLY", default_value = "read-only", value_name = "ROLE", help_heading = ACCESS)]
    pub jwt_role_read_only: String,
    /// Claim that limits a token to some queues.
    #[arg(long, env = "JWT_GRANTS_CLAIM", default_value = "queen", value_name = "CLAIM", help_heading = ACCESS)]
    pub jwt_grants_claim: String,
    /// Paths that need neither token nor key, with commas in between; one that ends in `/` stands for all below it.
    #[arg(long, env = "JWT_SKIP_PATHS", default_value = "/health,/metrics/prometheus,/metrics,/", value_name = "PATHS",
          value_parser = NonEmptyStringValueParser::new(), help_heading = ACCESS)]
    pub jwt_skip_paths: String,
    /// Include queue and group names in `/metrics/prometheus` for callers that show neither token nor key.
    #[arg(long, env = "QUEEN_OPEN_METRICS", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ACCESS)]
    pub open_metrics: bool,
}

/// Never shown.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signed {
    With(Algorithm),
    Auto,
}

impl Access {
    /// `None` if everybody may do everything. An error says what is missing: an open door where a locked one was ordered
    /// must not start.
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
        // Everybody knows it.
        if self.jwt_secret.as_ref().is_some_and(|secret| secret.0.is_empty()) {
            bail!("JWT_SECRET is empty");
        }
        let public_wanted = wanted(Algorithm::RS256) || wanted(Algorithm::EdDSA);
        let secret = self.jwt_secret.as_ref().filter(|_| wanted(Algorithm::HS256));
        let public = match &self.jwt_public_key {
            Some(key) if public_wanted => Some(public_key(&key.0)?),
            _ => None,
        };
        let jwks = match &self.jwt_jwks_url {
            Some(url) if public_wanted => Some(self.jwks(url)?),
            _ => None,
        };
        if let Some(secret) = secret
            && secret.0.len() < SECRET_BYTES
        {
            let name = if self.jwt_secret_file.is_some() { "JWT_SECRET_FILE" } else { "JWT_SECRET" };
            bail!(
                "{name} has {} bytes; it needs {SECRET_BYTES} or more, because a shorter one can be guessed from a single \
                 token: openssl rand -hex 32 makes one",
                secret.0.len()
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
        let secret = secret.map(|secret| DecodingKey::from_secret(secret.0.as_bytes()));
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
            warn!(host, "JWT_JWKS_URL is not encrypted: who can change what is in between can make tokens");
        }
        Jwks::new(url, self.jwt_jwks_refresh)
    }
}

/// Text or a file; the kind of key says what it verifies.
fn public_key(given: &str) -> Result<(Algorithm, DecodingKey)> {
    let pem = match given.contains("-----BEGIN") {
        true => given.replace("\\n", "\n"),
        false => std::fs::read_to_string(Path::new(given))
            .context("JWT_PUBLIC_KEY is neither PEM nor a file that can be read")?,
    };
    if pem.contains("PRIVATE KEY") {
        bail!(
            "JWT_PUBLIC_KEY holds a private key: the broker needs the public one, and nothing else should have the other"
        );
    }
    if let Ok(key) = DecodingKey::from_ed_pem(pem.as_bytes()) {
        return Ok((Algorithm::EdDSA, key));
    }
    match DecodingKey::from_rsa_pem(pem.as_bytes()) {
        Ok(key) => Ok((Algorithm::RS256, key)),
        // Its text could repeat what was given.
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
            Err("must hold no user and password".to_owned())
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
