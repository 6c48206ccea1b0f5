//! Who may use which route, and that there are limits, added to the document from the same table that the guard reads.

use axum::http::Method;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, HeaderBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, PartialSchema};

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
            (
                "Forbidden",
                "The role is too low, a queue is not among those granted, or a web page of another origin asks. Also: an acknowledgement \
                 without `leaseId` while the partition is leased, and options of a queue that delete messages it keeps now.",
            ),
            (
                "TooManyRequests",
                "Too many requests of one client, a second (`QUEEN_RATE_PER_CLIENT`) or reads in progress \
                 (`QUEEN_MAX_READS_PER_CLIENT`), or too many administrative requests are waiting. Nothing was done. Send it \
                 again after `Retry-After` seconds.",
            ),
        ] {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
            let mut response =
                ResponseBuilder::new().description(description).content("application/json", content);
            if name == "TooManyRequests" {
                let seconds = HeaderBuilder::new().schema(Some(u32::schema())).description(Some("Seconds"));
                response = response.header("Retry-After", seconds.build());
            }
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
    // Routes of messages describe their own.
    let limited = RefOr::Ref(Ref::from_response_name("TooManyRequests"));
    operation.responses.responses.entry("429".to_owned()).or_insert(limited);
}
