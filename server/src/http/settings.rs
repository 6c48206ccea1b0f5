//! `GET /api/v1/system/settings`: the settings of this broker, as in `queen config`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::ApiError;
use crate::app::App;
use crate::config::Setting;

#[derive(Serialize, ToSchema)]
#[schema(as = SettingsInForce)]
struct Page<'a> {
    version: &'static str,
    /// `host:port` of the broker.
    server: &'a str,
    /// In the order of docs/configuration.md.
    settings: Vec<Entry<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SettingInForce, example = json!({
    "group": "HTTP", "name": "port", "variable": "PORT", "value": "6632", "source": "default",
    "help": "Port of the HTTP API; 0 picks a free one", "secret": false,
}))]
struct Entry<'a> {
    group: &'a str,
    /// The flag, without dashes.
    name: &'a str,
    variable: &'a str,
    /// The value in force; null if there is none, or if it has no effect. `(set)` for a secret.
    #[schema(required)]
    value: Option<&'a str>,
    /// `default`, `environment` or `flag`.
    source: &'static str,
    help: &'a str,
    secret: bool,
}

/// Lists the settings of this broker and the origin of each.
#[utoipa::path(get, path = "/api/v1/system/settings", operation_id = "settings", tag = "broker",
    responses((status = 200, description = "All settings", body = Page<'static>)))]
pub async fn settings(State(app): State<App>) -> Result<Response, ApiError> {
    let settings = app.options.settings.iter().map(Entry::from).collect();
    let page = Page { version: env!("CARGO_PKG_VERSION"), server: &app.name, settings };
    answer::json(StatusCode::OK, &page)
}

impl<'a> From<&'a Setting> for Entry<'a> {
    fn from(setting: &'a Setting) -> Self {
        Self {
            group: &setting.group,
            name: &setting.name,
            variable: &setting.variable,
            value: setting.value.as_deref(),
            source: setting.source.word(),
            help: &setting.help,
            secret: setting.secret,
        }
    }
}
