//! Who may use which route, added to the document from the same table that the guard reads.

use axum::http::Method;
use utoipa::Modify;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

use crate::auth::marks::{MARKS, Mark};

const SCHEME: &str = "bearer";

pub struct Access;

impl Modify for Access {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_with(Components::new);
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A signed token (JWT) or an API key, if the broker asks for one"))
            .build();
        components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
        for (name, description) in [
            ("Unauthorized", "There is no token, or not a good one; `error` says what is wrong with it."),
            ("Forbidden", "The role is too low, or a queue is not among those granted."),
        ] {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
            let response =
                ResponseBuilder::new().description(description).content("application/json", content);
            components.responses.insert(name.to_owned(), response.build().into());
        }
        for (method, path, mark) in MARKS {
            let Mark::Needs(role, _) = mark else { continue };
            let Some(item) = document.paths.paths.get_mut(*path) else { continue };
            let operation = match *method {
                Method::GET => &mut item.get,
                Method::POST => &mut item.post,
                _ => &mut item.delete,
            };
            if let Some(operation) = operation {
                closed(operation, role.word());
            }
        }
    }
}

fn closed(operation: &mut Operation, role: &str) {
    operation.security = Some(vec![SecurityRequirement::new(SCHEME, [role])]);
    for (status, name) in [("401", "Unauthorized"), ("403", "Forbidden")] {
        let response = RefOr::Ref(Ref::from_response_name(name));
        operation.responses.responses.insert(status.to_owned(), response);
    }
}
