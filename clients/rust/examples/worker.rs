//! A worker pool: independent jobs, processed by whichever worker is free. One job always fails and becomes a dead letter that
//! contains the reason.

use std::time::Duration;

use queen_client::admin::QueueOptions;
use queen_client::{Context, Item, Message, Queen};
use serde::{Deserialize, Serialize};

const QUEUE: &str = "example.worker";

#[derive(Serialize, Deserialize)]
struct Job {
    number: u32,
}

async fn work(message: Message<Job>, context: Context) -> Result<(), String> {
    // A long-running handler can check whether it still holds the lease.
    if context.is_lease_lost() {
        return Err("the lease was lost".to_owned());
    }
    match message.data.number {
        13 => Err("13 is not supported".to_owned()),
        number => {
            println!("job {number} done");
            Ok(())
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let options = QueueOptions { retry_limit: Some(1), ..QueueOptions::default() };
    queen.admin().configure(QUEUE, &options).await?;

    // One partition per job: no job waits for another.
    let jobs = queen.queue(QUEUE);
    let items = (1..=20).map(|number| Item::new(&Job { number }).partition(format!("job-{number}")));
    jobs.push_all(items).await?;

    let summary = jobs
        .consume()
        .concurrency(4)
        .batch(5)
        .partitions(5)
        .idle_timeout(Duration::from_secs(1))
        .on_error(|error| eprintln!("{error}"))
        .each(work)
        .await?;
    println!("{} handled, {} failed", summary.handled, summary.failed);

    let page = jobs.dead_letters().list::<Job>().await?;
    for letter in &page.letters {
        println!("job {} given up: {}", letter.data.number, letter.error.as_deref().unwrap_or_default());
    }
    jobs.dead_letters().purge().await?;
    Ok(())
}
