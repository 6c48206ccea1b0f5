//! Parsers of requests and settings, made public for `fuzz/`. Not part of the server's API.

use std::sync::LazyLock;

use queen_engine::{NewTrace, RedriveAsk, SeekTo};
use queen_protocol::{BadRequest, PopFilter, PopRequest};

pub use crate::config::connection::{Parted, part_password, place};
pub use crate::http::pop::{BATCH_MAX, LEASE_SECONDS_MAX, PARTITIONS_MAX, WAIT_MAX};
pub use queen_protocol::units::{bytes, milliseconds, seconds};

use crate::app::Options;
use crate::cli::Cli;
use crate::http::redrives::StartBody;
use crate::http::request::Query;
use crate::http::seeks::SeekBody;
use crate::http::{pop, traces};

static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let settings = Cli::parse_from(["queen"]).expect("the defaults are well-formed").settings;
    settings.options().expect("the defaults make sense")
});

/// `None` where no request gets so far.
pub fn pop_query(filter: PopFilter, query: &str) -> Option<Result<PopRequest, BadRequest>> {
    Query::read(query).map(|query| pop::read(filter, &query, &OPTIONS))
}

pub fn trace_body(body: &[u8]) -> Result<NewTrace, BadRequest> {
    traces::read(body)
}

pub fn redrive_body(body: &[u8]) -> Result<RedriveAsk, BadRequest> {
    serde_json::from_slice::<StartBody>(body)?.ask()
}

pub fn seek_body(body: &[u8]) -> Result<SeekTo, BadRequest> {
    serde_json::from_slice::<SeekBody>(body)?.target()
}
