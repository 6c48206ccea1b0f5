//! `GET /api/v1/whoami`: the identity and the rights of the caller, so that a page can offer what is allowed.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::ApiError;
use crate::app::App;
use crate::auth::grants::{Grant, Grants};
use crate::auth::refusal::{Denied, Refusal};
use crate::auth::role::Role;
use crate::auth::{Identity, Kind};

#[derive(Serialize, ToSchema)]
#[schema(as = WhoAmI, example = json!({
    "authentication": true, "name": "shop", "kind": "key", "role": "read-write",
    "grants": [{"queues": ["orders*"], "rights": ["push", "pop"]}],
}))]
struct WhoAmI<'a> {
    /// Whether access control is on. If not, every caller may do everything.
    authentication: bool,
    /// The subject of the token, or the name of the API key.
    #[schema(required)]
    name: Option<&'a str>,
    /// `none`, `token` or `key`.
    kind: &'static str,
    /// `read-only`, `read-write` or `admin`; each includes the ones before it.
    role: &'static str,
    /// Rights on queues, within the role; null means all queues.
    #[schema(required, value_type = Option<Vec<Grant>>)]
    grants: Option<&'a Grants>,
}

/// Shows the identity and the rights of the caller.
#[utoipa::path(get, path = "/api/v1/whoami", operation_id = "whoAmI", tag = "broker",
    responses((status = 200, description = "The caller", body = WhoAmI<'static>)))]
pub async fn whoami(
    State(app): State<App>,
    identity: Option<Extension<Arc<Identity>>>,
) -> Result<Response, ApiError> {
    if app.options.guard.is_none() {
        let everybody = WhoAmI {
            authentication: false,
            name: None,
            kind: "none",
            role: Role::Admin.word(),
            grants: None,
        };
        return answer::json(StatusCode::OK, &everybody);
    }
    // This path is open, so a request without credentials gets here. It has no caller to describe.
    let Some(Extension(identity)) = identity else { return Err(Refusal::Missing.into()) };
    let role = identity.role.ok_or_else(|| {
        ApiError::denied(Denied::Role, "Insufficient permissions: the token names no known role")
    })?;
    let caller = WhoAmI {
        authentication: true,
        name: identity.subject.as_deref(),
        kind: match identity.kind {
            Kind::Token => "token",
            Kind::Key => "key",
        },
        role: role.word(),
        grants: identity.grants.as_deref(),
    };
    answer::json(StatusCode::OK, &caller)
}
