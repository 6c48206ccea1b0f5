//! Reads objects, and nothing else. A derived `Deserialize` also reads a list as the fields in their
//! order; here that is an error.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::BadRequest;

/// A value that must be a JSON object.
#[derive(Debug)]
pub struct Object<T>(pub T);

/// Reads a body that must be a JSON object.
pub fn read_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BadRequest> {
    let Object(read) = serde_json::from_slice(body)?;
    Ok(read)
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}
