//! Replay: a group is moved back to read everything again, and dead letters are redriven once their cause is fixed.

use std::time::Duration;

use queen_client::admin::Position;
use queen_client::{Error, Queen};

const QUEUE: &str = "example.replay";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let queue = queen.queue(QUEUE);
    let group = queue.group("report");
    queue.partition("numbers").push_all(&[1, 2, 3, 4, 5]).await?;

    let first = sum(&queen).await?;
    queen.admin().seek("report", QUEUE, Position::Beginning).await?;
    let second = sum(&queen).await?;
    println!("the sum was {first}, and is {second} again");

    // A message that cannot be processed yet.
    queue.partition("numbers").push(&1_000).await?;
    for message in group.pop::<i64>().wait(Duration::from_secs(5)).await? {
        message.dead_letter("too large").await?;
    }
    let letters = group.dead_letters();
    println!("{} dead letters", letters.redrive().dry_run().await?);
    let redrive = letters.redrive().per_second(1_000).await?.finished(Duration::from_secs(30)).await?;
    println!("{} pushed again", redrive.done);
    let again = group.pop::<i64>().wait(Duration::from_secs(5)).await?;
    for message in &again {
        println!("got {}", message.data);
        message.ack().await?;
    }
    Ok(())
}

/// Sums all messages that the group has not read yet.
async fn sum(queen: &Queen) -> Result<i64, Error> {
    let group = queen.queue(QUEUE).group("report");
    let mut sum = 0;
    loop {
        let messages = group.pop::<i64>().batch(100).partitions(10).await?;
        if messages.is_empty() {
            return Ok(sum);
        }
        sum += messages.iter().map(|message| message.data).sum::<i64>();
        queen.acks().ack_all(&messages).await?;
    }
}
