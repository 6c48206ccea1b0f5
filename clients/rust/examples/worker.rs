//! A pool of workers: jobs that do not depend on each other, done by whoever is free. One of them fails for good, and ends
//! as a dead letter that says why.

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
    // A handler that takes long may look whether it still has to.
    if context.is_lease_lost() {
        return Err("somebody else has it".to_owned());
    }
    match message.data.number {
        13 => Err("13 is not done here".to_owned()),
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

    // A partition for each job: none of them waits for another.
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
