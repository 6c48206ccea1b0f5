//! What access control and limits add to the document: the role that each route needs, and the responses 401, 403 and 429.

use utoipa::PartialSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, HeaderBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

use crate::auth::access::Access;
use crate::routes::Route;

const SCHEME: &str = "bearer";

/// A route, with the responses that its access control and limits add.
pub fn described(route: &Route) -> OpenApi {
    let mut document = route.document();
    if let Access::Needs(role, _) = route.access {
        let items = document.paths.paths.values_mut();
        let operations = items.flat_map(|item| [&mut item.get, &mut item.post, &mut item.delete]);
        operations.flatten().for_each(|operation| closed(operation, role.word()));
    }
    document
}

/// Adds the components that the operations refer to.
pub fn describe(document: &mut OpenApi) {
    let components = document.components.get_or_insert_with(Components::new);
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A signed token (JWT) or an API key, if access control is on"))
        .build();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    for (name, description) in [
        ("Unauthorized", "The token or API key is missing or invalid; `error` gives the reason."),
        (
            "Forbidden",
            "The role is too low, a queue is not granted, or a web page of another origin sent the request. Also: an acknowledgement \
             without `leaseId` while the partition is leased, and options of a queue that delete messages it keeps now.",
        ),
        (
            "TooManyRequests",
            "The client sends too many requests per second (`QUEEN_RATE_PER_CLIENT`) or has too many reads in progress \
             (`QUEEN_MAX_READS_PER_CLIENT`), or too many administrative requests are waiting. Nothing was done. Retry \
             after `Retry-After` seconds.",
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
}

fn closed(operation: &mut Operation, role: &str) {
    operation.security = Some(vec![SecurityRequirement::new(SCHEME, [role])]);
    for (status, name) in [("401", "Unauthorized"), ("403", "Forbidden")] {
        let response = RefOr::Ref(Ref::from_response_name(name));
        operation.responses.responses.insert(status.to_owned(), response);
    }
    // Message routes describe their own 429.
    let limited = RefOr::Ref(Ref::from_response_name("TooManyRequests"));
    operation.responses.responses.entry("429".to_owned()).or_insert(limited);
}
