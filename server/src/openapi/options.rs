//! The options of a queue as a schema, from the table in `protocol`.

use queen_protocol::{OPTIONS, QueueOption};
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

pub struct QueueOptions;

impl ToSchema for QueueOptions {}

impl PartialSchema for QueueOptions {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new().description(Some("`null` returns an option to its default."));
        OPTIONS.iter().fold(object, |object, option| object.property(option.name, property(option))).into()
    }
}

fn property(option: &QueueOption) -> Object {
    let property = ObjectBuilder::new()
        .description(Some(format!("{} Default: {}.", option.description(), option.default_text())))
        .default(Some(option.default.clone()));
    if option.default.is_boolean() {
        return property.schema_type(SchemaType::from_iter([Type::Boolean, Type::Null])).build();
    }
    let format = if option.max > i32::MAX.into() { KnownFormat::Int64 } else { KnownFormat::Int32 };
    property
        .schema_type(SchemaType::from_iter([Type::Integer, Type::Null]))
        .format(Some(SchemaFormat::KnownFormat(format)))
        .minimum(Some(option.min))
        .maximum(Some(option.max))
        .build()
}
