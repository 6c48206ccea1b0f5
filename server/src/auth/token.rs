//! Verifies a signed token (JWT) and reads its claims. The settings and the keys decide which algorithms are accepted, never the
//! token.
//!
//! Claims are checked here and not by `jsonwebtoken::Validation`, which reads the clock itself, checks no `iat`, treats `null` as
//! absent and accepts a list as `iss`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::grants::Grants;
use super::jwks::Jwks;
use super::refusal::Refusal;
use super::role::Role;
use super::{Identity, Kind};

const SUBJECT_CHARS_MAX: usize = 255;
/// For how long a token without an expiry is cached.
const FOREVER: Duration = Duration::from_secs(86_400);

/// # Invariants
/// - `secret` verifies HS256 only, and each public key verifies its own algorithm only, so a public key is never used as a
///   secret.
pub struct Tokens {
    pub algorithms: Vec<Algorithm>,
    pub secret: Option<DecodingKey>,
    pub public: Option<(Algorithm, DecodingKey)>,
    pub jwks: Option<Jwks>,
    pub rules: Rules,
}

/// What is expected of the claims.
#[derive(Debug, Clone)]
pub struct Rules {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub skew: Duration,
    pub must_expire: bool,
    pub role_claim: String,
    pub roles_claim: String,
    pub grants_claim: String,
    pub roles: [(String, Role); 3],
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Tokens {
    /// The identity, and how long it is valid. `now`: seconds since 1970.
    pub async fn verify(&self, token: &str, now: f64) -> Result<(Identity, Duration), Refusal> {
        let mut parts = token.split('.');
        let (Some(head), Some(body), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refusal::Malformed);
        };
        let header: Header = decoded(head).ok_or(Refusal::Malformed)?;
        if header.crit.is_some() {
            return Err(Refusal::Critical);
        }
        let algorithm = self.algorithm(&header.alg).ok_or(Refusal::Algorithm)?;
        let signed = &token[..head.len() + 1 + body.len()];
        self.verify_signature(algorithm, header.kid.as_deref(), signed, signature).await?;
        let claims: Map<String, Value> = decoded(body).ok_or(Refusal::Malformed)?;
        self.rules.identity(&claims, now)
    }

    fn algorithm(&self, name: &str) -> Option<Algorithm> {
        let known = match name {
            "HS256" => Algorithm::HS256,
            "RS256" => Algorithm::RS256,
            "EdDSA" => Algorithm::EdDSA,
            _ => return None,
        };
        self.algorithms.contains(&known).then_some(known)
    }

    async fn verify_signature(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
        signed: &str,
        signature: &str,
    ) -> Result<(), Refusal> {
        let matches = |key: &DecodingKey| {
            // An error means a signature that is not base64, or a key of another kind.
            crypto::verify(signature, signed.as_bytes(), key, algorithm).unwrap_or(false)
        };
        if algorithm == Algorithm::HS256 {
            let secret = self.secret.as_ref().ok_or(Refusal::Algorithm)?;
            return matches(secret).then_some(()).ok_or(Refusal::Signature);
        }
        let own = self.public.as_ref().filter(|(kind, _)| *kind == algorithm).map(|(_, key)| key);
        if own.is_some_and(matches) {
            return Ok(());
        }
        match &self.jwks {
            Some(jwks) => {
                let key = jwks.find(kid, algorithm).await?;
                matches(&key.key).then_some(()).ok_or(Refusal::Signature)
            }
            None if own.is_some() => Err(Refusal::Signature),
            None => Err(Refusal::Algorithm),
        }
    }
}

impl Rules {
    fn identity(&self, claims: &Map<String, Value>, now: f64) -> Result<(Identity, Duration), Refusal> {
        let skew = self.skew.as_secs_f64();
        let exp = time(claims, "exp", Refusal::Claim("exp is not a time"))?;
        if exp.is_none() && self.must_expire {
            return Err(Refusal::NoExpiry);
        }
        let left = exp.map(|exp| exp + skew - now);
        if left.is_some_and(|left| left <= 0.0) {
            return Err(Refusal::Expired);
        }
        let begins = time(claims, "nbf", Refusal::Claim("nbf is not a time"))?;
        if begins.is_some_and(|begins| now + skew < begins) {
            return Err(Refusal::NotYet);
        }
        let issued = time(claims, "iat", Refusal::Claim("iat is not a time"))?;
        if issued.is_some_and(|issued| now + skew < issued) {
            return Err(Refusal::FromTheFuture);
        }
        if let Some(issuer) = &self.issuer
            && claims.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(Refusal::Issuer);
        }
        if let Some(audience) = &self.audience
            && !texts(claims.get("aud")).any(|text| text == audience)
        {
            return Err(Refusal::Audience);
        }
        let identity = Identity {
            kind: Kind::Token,
            key: None,
            subject: subject(claims.get("sub"))?,
            role: self.role(claims),
            grants: self.grants(claims)?,
            until: None,
            revoked: None,
        };
        let left = left.map_or(FOREVER, |left| Duration::try_from_secs_f64(left).unwrap_or(FOREVER));
        Ok((identity, left))
    }

    /// The highest role that either claim names.
    fn role(&self, claims: &Map<String, Value>) -> Option<Role> {
        let named = [&self.role_claim, &self.roles_claim].into_iter();
        let named = named.flat_map(|name| texts(claim(claims, name)));
        named.filter_map(|word| self.roles.iter().find(|(name, _)| name == word).map(|(_, role)| *role)).max()
    }

    fn grants(&self, claims: &Map<String, Value>) -> Result<Option<Arc<Grants>>, Refusal> {
        // A path that ends early, at a value that is no object, is a mistake in the token. It must not mean "all
        // queues", as an absent claim does.
        let found = claim_or_end(claims, &self.grants_claim).map_err(|_| Refusal::Grants)?;
        let Some(value) = found else { return Ok(None) };
        let grants = Grants::deserialize(value).map_err(|_| Refusal::Grants)?;
        Ok(Some(Arc::new(grants)))
    }
}

/// A claim by its name, or else by a path of names with dots in between, because identity providers nest their claims.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claim_or_end(claims, name).ok().flatten()
}

/// The error is the value at which the path needs an object.
fn claim_or_end<'a>(claims: &'a Map<String, Value>, name: &str) -> Result<Option<&'a Value>, &'a Value> {
    if let Some(value) = claims.get(name) {
        return Ok(Some(value));
    }
    let Some((first, rest)) = name.split_once('.') else { return Ok(None) };
    match claims.get(first) {
        None => Ok(None),
        Some(Value::Object(inner)) => claim_or_end(inner, rest),
        Some(other) => Err(other),
    }
}

/// One text or an array of them.
fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let one = value.and_then(Value::as_str);
    let many = value.and_then(Value::as_array).into_iter().flatten();
    one.into_iter().chain(many.filter_map(Value::as_str))
}

fn time(claims: &Map<String, Value>, name: &str, refusal: Refusal) -> Result<Option<f64>, Refusal> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(refusal),
    }
}

fn subject(value: Option<&Value>) -> Result<Option<Arc<str>>, Refusal> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if usable(text) => Ok(Some(text.as_str().into())),
        Some(_) => Err(Refusal::Subject),
    }
}

/// It is stored with messages, and PostgreSQL allows no NUL.
pub fn usable(subject: &str) -> bool {
    !subject.contains('\0') && subject.chars().count() <= SUBJECT_CHARS_MAX
}

fn decoded<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules() -> Rules {
        Rules {
            issuer: None,
            audience: None,
            skew: Duration::from_secs(30),
            must_expire: true,
            role_claim: "role".to_owned(),
            roles_claim: "roles".to_owned(),
            grants_claim: "queen".to_owned(),
            roles: [
                ("admin".to_owned(), Role::Admin),
                ("read-write".to_owned(), Role::ReadWrite),
                ("read-only".to_owned(), Role::ReadOnly),
            ],
        }
    }

    fn read(rules: &Rules, claims: &Value) -> Result<(Identity, Duration), Refusal> {
        rules.identity(claims.as_object().unwrap(), 1_000.0)
    }

    #[test]
    fn times_are_taken_with_a_grain_of_salt() {
        let outcome = |claims: Value| read(&rules(), &claims).map(|(_, left)| left.as_secs());
        assert_eq!(outcome(json!({"exp": 2_000})), Ok(1_030));
        assert_eq!(outcome(json!({"exp": 971.5, "nbf": 1_030, "iat": 1_030})), Ok(1));
        assert_eq!(outcome(json!({"exp": 970})), Err(Refusal::Expired));
        assert_eq!(outcome(json!({"exp": 2_000, "nbf": 1_031})), Err(Refusal::NotYet));
        assert_eq!(outcome(json!({"exp": 2_000, "iat": 1_031})), Err(Refusal::FromTheFuture));
        assert_eq!(outcome(json!({"exp": "2000"})), Err(Refusal::Claim("exp is not a time")));
        assert_eq!(outcome(json!({"exp": null})), Err(Refusal::Claim("exp is not a time")));
        assert_eq!(outcome(json!({})), Err(Refusal::NoExpiry));
        let lenient = Rules { must_expire: false, ..rules() };
        assert!(read(&lenient, &json!({})).is_ok());
        assert!(read(&lenient, &json!({"exp": 1e300})).is_ok());
    }

    #[test]
    fn issuer_and_audience_count_if_they_are_asked_for() {
        let asked = Rules { issuer: Some("me".to_owned()), audience: Some("queen".to_owned()), ..rules() };
        let outcome = |claims: Value| read(&asked, &claims).map(|_| ());
        assert_eq!(outcome(json!({"exp": 2_000, "iss": "me", "aud": "queen"})), Ok(()));
        assert_eq!(outcome(json!({"exp": 2_000, "iss": "me", "aud": ["x", "queen"]})), Ok(()));
        for iss in [json!("you"), json!(["me"]), Value::Null] {
            assert_eq!(outcome(json!({"exp": 2_000, "iss": iss, "aud": "queen"})), Err(Refusal::Issuer));
        }
        for aud in [json!("x"), json!([]), json!({"queen": 1}), Value::Null] {
            assert_eq!(outcome(json!({"exp": 2_000, "iss": "me", "aud": aud})), Err(Refusal::Audience));
        }
        assert!(read(&rules(), &json!({"exp": 2_000, "iss": 7, "aud": "else"})).is_ok());
    }

    #[test]
    fn the_highest_role_counts_and_unknown_ones_do_not() {
        let role = |claims: Value| read(&rules(), &claims).unwrap().0.role;
        assert_eq!(role(json!({"exp": 2_000, "role": "read-only"})), Some(Role::ReadOnly));
        assert_eq!(
            role(json!({"exp": 2_000, "roles": ["x", "read-write", "read-only"]})),
            Some(Role::ReadWrite)
        );
        assert_eq!(role(json!({"exp": 2_000, "role": "read-only", "roles": ["admin"]})), Some(Role::Admin));
        assert_eq!(role(json!({"exp": 2_000, "role": "Admin", "roles": "root"})), None);
        let nested = Rules { roles_claim: "realm_access.roles".to_owned(), ..rules() };
        let claims = json!({"exp": 2_000, "realm_access": {"roles": ["admin"]}});
        assert_eq!(read(&nested, &claims).unwrap().0.role, Some(Role::Admin));
    }

    #[test]
    fn a_subject_that_cannot_be_stored_is_refused() {
        let subject =
            |sub: Value| read(&rules(), &json!({"exp": 2_000, "sub": sub})).map(|(who, _)| who.subject);
        assert_eq!(subject(json!("ann")).unwrap().as_deref(), Some("ann"));
        assert_eq!(subject(json!("")), Ok(None));
        for bad in [json!("a\0b"), json!("x".repeat(256)), json!(7), Value::Null] {
            assert_eq!(subject(bad), Err(Refusal::Subject));
        }
    }

    #[test]
    fn grants_that_cannot_be_read_are_no_freedom() {
        let grants = |queen: Value| {
            read(&rules(), &json!({"exp": 2_000, "queen": queen})).map(|(who, _)| who.grants.is_some())
        };
        assert_eq!(grants(json!([])), Ok(true));
        for bad in [Value::Null, json!({}), json!("orders"), json!([{"queues": ["a"]}])] {
            assert_eq!(grants(bad), Err(Refusal::Grants));
        }
        let nested = Rules { grants_claim: "access.queen".to_owned(), ..rules() };
        let grants = |access: Value| {
            read(&nested, &json!({"exp": 2_000, "access": access})).map(|(who, _)| who.grants.is_some())
        };
        assert_eq!(grants(json!({"queen": []})), Ok(true));
        assert_eq!(grants(json!({"other": []})), Ok(false));
        for bad in [Value::Null, json!([{"queen": []}]), json!("queen")] {
            assert_eq!(grants(bad), Err(Refusal::Grants));
        }
        assert!(read(&nested, &json!({"exp": 2_000})).unwrap().0.grants.is_none());
    }
}
