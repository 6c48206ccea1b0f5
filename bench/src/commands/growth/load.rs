//! Fills a fresh database along one dimension before the measurement, through the broker's own procedures.

use anyhow::Result;

use super::point::Point;
use crate::direct::{Claim, Connection, FrameWriter, Link};
use crate::environment::Site;
use crate::options::{Axis, Options};
use crate::wire::partition_name;

/// The group of consumers without a group, in the protocol.
const QUEUE_MODE: &str = "__QUEUE_MODE__";
/// Partitions or messages per call; more make searching its arrays slow.
const PAGE: usize = 1_000;

/// The contents of the database. The broker must be stopped, because it would read everything that is written.
pub async fn fill(site: &Site, queue: &str, point: Point, options: &Options) -> Result<()> {
    let mut connection = Connection::open(&site.database()?).await?;
    match point.axis {
        Axis::Partitions => {
            let idle = point.size.saturating_sub(options.partitions);
            add_idle_partitions(&mut connection, queue, idle, options).await?;
        }
        Axis::Backlog => {
            let names: Vec<String> = (0..options.partitions).map(partition_name).collect();
            let mut places = connection.partitions(queue, &names).await?;
            let each = point.size / options.partitions;
            let mut writer = FrameWriter::new(options.payload);
            connection.fill(&mut places, each, PAGE as u32, &mut writer).await?;
            connection.check(&places, None).await?;
        }
        Axis::Groups | Axis::Parked | Axis::Payload => {}
    }
    Link::open(&site.database()?).await?.settle().await
}

/// Each has had a message that was read, like a partition that was in use once.
async fn add_idle_partitions(
    connection: &mut Connection,
    queue: &str,
    count: u32,
    options: &Options,
) -> Result<()> {
    let mut writer = FrameWriter::new(options.payload);
    let names: Vec<String> = (0..count).map(|partition| format!("idle-{partition}")).collect();
    for page in names.chunks(PAGE) {
        let mut places = connection.partitions(queue, page).await?;
        let one_each = vec![1; places.len()];
        connection.push(&mut places, &one_each, &mut writer).await?;
        let claim = Claim { group: QUEUE_MODE, batch: 1, auto: true, readers: true };
        connection.lease(&mut places, claim).await?;
    }
    Ok(())
}
